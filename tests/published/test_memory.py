"""Loading needs little more memory than the weights it ends with, whatever precision the file has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.published.llamagen_reference import Transformer, TransformerConfig

# In processes of their own, whose peaks are their own: what is mapped and read counts, and what is freed too late.
MEASURE = """
import json, os, sys
from pathlib import Path
import torch
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions
own = LoadOptions(heads=12)
def kibibytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
def measured(kind, path, precision, target=None):
    load("llamagen-c2i", Path(small), precision, own)  # a forked process maps libraries anew as it comes upon them
    before = kibibytes("VmRSS")
    decoder = load(kind, Path(path), precision, own, target and (target[0], Path(target[1])), own).decoder
    held = sum(value.numel() * value.element_size() for value in decoder.parameters())
    print(json.dumps([(kibibytes("VmHWM") - before) * 1024 / held, held]), flush=True)
torch.set_num_threads(1)
small, *cases = json.loads(sys.argv[1])
load("llamagen-c2i", Path(small), "fp16", own)
for case in cases:
    child = os.fork()
    if not child:
        measured(*case)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""
ROOT = Path(__file__).parents[2]


def _some(*shape: int) -> torch.Tensor:
    """Weights that are not the same everywhere, in no more memory than they take."""
    weights = torch.zeros(shape)
    weights.view(-1)[::2] = 0.5
    return weights


def llamagen(path: Path, layers: int, vocab: int) -> None:
    config = TransformerConfig(dim=768, n_layer=layers, n_head=12, vocab_size=vocab, block_size=256)
    with torch.device("meta"):
        shapes = Transformer(config).state_dict()
    state = {name: _some(*value.shape) for name, value in shapes.items()}
    if path.suffix == ".safetensors":
        save_file(dict(state), path)
    else:
        torch.save({"model": state}, path)


def drafter(path: Path) -> None:
    layer, dim, hidden = "layers.0.", 768, 2048
    state = {
        "fc.weight": _some(dim, 2 * dim),
        **{f"{layer}self_attn.{part}_proj.weight": _some(dim, dim) for part in "qkvo"},
        f"{layer}mlp.gate_proj.weight": _some(hidden, dim),
        f"{layer}mlp.up_proj.weight": _some(hidden, dim),
        f"{layer}mlp.down_proj.weight": _some(dim, hidden),
        f"{layer}post_attention_layernorm.weight": torch.ones(dim),
    }
    torch.save(state, path)


def peaks(small: Path, *cases: tuple[object, ...]) -> list[tuple[float, int]]:
    """Peak memory over that of the weights loaded, and their bytes, of each case; `small` is loaded to warm up."""
    command = [sys.executable, "-c", MEASURE, json.dumps([small, *cases], default=str)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(ratio, weight_bytes) for ratio, weight_bytes in map(json.loads, done.stdout.splitlines())]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads Linux's account of memory")
def test_loading_needs_little_more_than_the_weights(tmp_path: Path) -> None:
    """From both kinds of file, converted or not; and of its target, a drafter keeps the codes and the head alone."""
    llamagen(tmp_path / "small.pt", layers=1, vocab=8)
    for suffix in (".pt", ".safetensors"):
        llamagen(tmp_path / f"large{suffix}", layers=6, vocab=4096)
    llamagen(tmp_path / "target.pt", layers=1, vocab=32768)
    drafter(tmp_path / "drafter.pt")
    large = [("large.pt", "fp16", 2), ("large.safetensors", "bf16", 2), ("large.pt", "fp32", 4)]
    measurements = peaks(
        tmp_path / "small.pt",
        *(("llamagen-c2i", tmp_path / name, precision) for name, precision, _ in large),
        ("eagle-drafter", tmp_path / "drafter.pt", "fp16", ("llamagen-c2i", tmp_path / "target.pt")),
    )
    for (name, precision, wide), (_, weight_bytes) in zip(large, measurements[:3], strict=True):
        assert weight_bytes == pytest.approx((tmp_path / name).stat().st_size * wide / 4, rel=0.02), precision
    ratios = [ratio for ratio, _ in measurements]
    assert len(ratios) == 4
    assert min(ratios) > 0.9, ratios
    assert max(ratios) < 1.3, ratios
