"""Every published size of LlamaGen: read from a file of its shapes, the odd head of 3B built, and B whole."""

import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu import checkpoint
from tests.published.checkpoints import VOCAB, randomise
from tests.published.llamagen_reference import Transformer, TransformerConfig
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.chance import sampling
from underpaint.algos.draft.chain import Chain
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import cycles
from underpaint.artifacts.manifest import check
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.device_engines import build_folder
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.models.published.files import read_checkpoint
from underpaint.models.published.llamagen import llamagen
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.target import EngineTarget
from underpaint.zoo.load import manifest

ROOT = Path(__file__).parents[2]
SIZES = {"B": (12, 12, 768), "L": (24, 16, 1024), "XL": (36, 20, 1280), "XXL": (48, 24, 1536), "3B": (24, 32, 3200)}
"""Layers, heads and width, as in LlamaGen's `autoregressive/models/gpt.py`."""
HIDDEN = {"B": 2048, "L": 2816, "XL": 3584, "XXL": 4096, "3B": 8704}
FULL = """
import atexit, resource
from underpaint.cli.app import app
atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
app()
"""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("captions", [False, True], ids=["c2i", "t2i"])
def test_sizes_are_read_from_the_shapes(tmp_path: Path, size: str, captions: bool) -> None:
    layers, heads, dim = SIZES[size]
    extra = {"model_type": "t2i", "cls_token_num": 120} if captions else {}
    config = TransformerConfig(dim, layers, heads, 16384, 1024 if captions else 256, **extra)  # type: ignore[arg-type]
    with torch.device("meta"):
        shapes = Transformer(config).state_dict()
    # One number each, seen as many: a file of these shapes and hardly any bytes.
    state = {name: torch.zeros(1).expand(value.shape) for name, value in shapes.items()}
    torch.save({"model": state}, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").stat().st_size < 1 << 20
    parts = llamagen(read_checkpoint(tmp_path / "model.pt"), LoadOptions(), captions)
    actual = parts.config
    assert (actual.layers, actual.heads, actual.dim, actual.hidden) == (layers, heads, dim, HIDDEN[size])
    assert (actual.vocab_size, actual.grid_side, actual.prefix) == (16384, 16, 120 if captions else 1)
    assert (parts.conditioner is not None, parts.features) == ((True, 2048) if captions else (False, 0))


def test_heads_of_100_export_and_build(tmp_path: Path) -> None:
    """3B's: no power of two, and an odd number of pairs turns by rows and by columns."""
    model = Transformer(TransformerConfig(200, 1, 2, VOCAB, 16, num_classes=5, multiple_of=16)).eval()
    randomise(model)
    torch.save({"model": model.state_dict()}, tmp_path / "c2i.pt")
    for precision in ("fp32", "fp16"):
        out = tmp_path / precision
        request = Request("llamagen-c2i", tmp_path / "c2i.pt", precision, LoadOptions(heads=2, grid_side=4))
        export_checkpoint(request, out)
        assert max(manifest("target", out).parity.values()) < (1e-4 if precision == "fp32" else 0.05)
        assert manifest("target", out).settings["head_dim"] == 100
        tensorrt = pytest.importorskip("tensorrt_rtx", reason="the extra 'tensorrt-rtx' is not installed")
        builder = EngineBuilder(tensorrt, "tensorrt-rtx", "any")
        built = [record for _, record in build_folder(out, builder, only=("target",), buckets=(1,))]
        assert [record.precision for record in built] == [precision] * 2


@pytest.mark.slow
def test_llamagen_b_at_full_size_is_exported_and_drawn(tmp_path: Path) -> None:
    """The export takes less than 6 GiB, and compares the graph with torch as `underpaint check` does."""
    assert checkpoint(tmp_path / "c2i_B_256.pt") == 110_888_448
    out = tmp_path / "out"
    command = ["export", str(tmp_path / "c2i_B_256.pt"), "--kind", "llamagen-c2i", "--out", str(out)]
    done = subprocess.run([sys.executable, "-c", FULL, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) < 6 << 30
    exported = manifest("target", out)
    assert set(exported.parity) == {"random", "one_row", "first_code", "last_code", "tree"}
    assert 0.0 < max(exported.parity.values()) < 1e-4
    check(exported, out)
    target = EngineTarget.open("target", SamplingParams(), out, EngineContext(threads=1))
    target.prepare(target.encoder.of_ids(np.array([207])))
    drawing = cycles(target, None, Chain(1), PointProposals(), sampling(0), 1)
    tokens = [cycle.verdict.token for cycle in islice(drawing, 64)]
    assert len(set(tokens)) > 30
    assert len(tokens) == 64, "four rows of sixteen"
