"""LlamaGen-B at full size, random weights: export, check, a picture, and a token's cost beside memory speed.

Run: python -m benchmarks.llamagen_b [--threads 2] [--rounds 20] [--keep DIR] [--out FILE]

A one-token pass has to read every weight once, so the machine's own reading speed sets its floor: that is measured
here, on a buffer of the weights' size, beside the pass. The last line is JSON.
"""

import resource
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.report import at_least, finish, options, parse, refusing
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.chance import sampling
from underpaint.algos.draft.chain import Chain
from underpaint.algos.memory import usable_cores
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.algos.tree import chain_tree
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.files import check_folder_writable
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.verify import verify
from underpaint.models.decoder import Decoder, initialise
from underpaint.models.published.llamagen import llamagen_state
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.costs.passes import halfway
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.target import EngineTarget

CONFIG = DecoderConfig(
    dim=768, layers=12, heads=12, hidden=2048, vocab_size=16384, grid_side=16, prefix=1, cond_ids=1001
)
COUNTS = (1, 2, 4, 8, 16, 32, 64)


def checkpoint(path: Path) -> int:
    """Write a random checkpoint as LlamaGen publishes them; its parameters."""
    torch.manual_seed(0)
    model = Decoder(CONFIG)
    initialise(model)
    torch.save({"model": llamagen_state(model)}, path)
    return sum(value.numel() for value in model.parameters())


def drafter_checkpoint(path: Path) -> None:
    """A random drafter in the released form, as wide as LlamaGen-B."""
    torch.manual_seed(1)
    dim, hidden = CONFIG.dim, CONFIG.hidden
    layer = "layers.0."
    state = {
        "fc.weight": 0.02 * torch.randn(dim, 2 * dim),
        "fc.bias": torch.zeros(dim),
        **{f"{layer}self_attn.{part}_proj.weight": 0.02 * torch.randn(dim, dim) for part in "qkvo"},
        f"{layer}mlp.gate_proj.weight": 0.02 * torch.randn(hidden, dim),
        f"{layer}mlp.up_proj.weight": 0.02 * torch.randn(hidden, dim),
        f"{layer}mlp.down_proj.weight": 0.02 * torch.randn(dim, hidden),
        f"{layer}post_attention_layernorm.weight": torch.ones(dim),
    }
    save_file(state, path)


def reading_ms(size_bytes: int, rounds: int, threads: int) -> float:
    """Least milliseconds to read a buffer of this size once: a sum over it, by PyTorch's threads."""
    torch.set_num_threads(threads)
    held = torch.ones(size_bytes // 4)
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        held.sum().item()
        found.append(time.perf_counter() - start)
    return 1e3 * min(found)


def passes_ms(target: EngineTarget, rounds: int) -> dict[int, float]:
    """Median milliseconds of a pass over T positions behind half a picture."""
    halfway(target)
    samples: dict[int, list[float]] = {count: [] for count in COUNTS}
    for turn in range(rounds + 1):
        for count, found in samples.items():
            before = target.engine.cost.seconds
            target.score(chain_tree(np.arange(count) % target.vocab_size, target.vocab_size))
            if turn:
                found.append(1e3 * (target.engine.cost.seconds - before))
    return {count: float(np.median(found)) for count, found in samples.items()}


def main(arguments: list[str] | None = None) -> None:
    parser = options("llamagen_b", __doc__)
    parser.add_argument("--threads", type=at_least(1), default=usable_cores(), help="threads of an operation")
    parser.add_argument("--rounds", type=at_least(1), default=20, help="samples of every size")
    parser.add_argument("--keep", type=Path, help="keep the export in this folder")
    given = parse(parser, arguments)
    if given.keep is not None:
        with refusing(parser):
            check_folder_writable(given.keep)
    with nullcontext(given.keep) if given.keep else TemporaryDirectory() as folder:
        work = Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        parameters = checkpoint(work / "c2i_B_256.pt")
        start, spent = time.perf_counter(), time.process_time()
        request = Request("llamagen-c2i", work / "c2i_B_256.pt", options=LoadOptions(grid_side=16))
        written = export_checkpoint(request, work / "out")
        export_seconds, export_cpu_seconds = time.perf_counter() - start, time.process_time() - spent
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"export with parity {export_seconds:.1f} s, peak memory {peak / 2**30:.2f} GiB")
        (checked,) = verify(work / "out", True, 0)
        print("\n".join(checked.lines()))
        settings = EngineContext(threads=given.threads)
        target = EngineTarget.open("target", SamplingParams(guidance=1.0), work / "out", settings)
        target.prepare(target.encoder.of_ids(np.array([207])))
        start = time.perf_counter()
        decoded = decode(target, None, Chain(1), PointProposals(), sampling(0))
        picture_seconds = time.perf_counter() - start
        # The embedding's rows are looked up, not read through.
        read = 4 * (parameters - CONFIG.dim * (CONFIG.vocab_size + CONFIG.cond_ids))
        floor = reading_ms(read, given.rounds, given.threads)
        curve = passes_ms(target, given.rounds)
    print(f"{len(decoded.tokens)} tokens in {picture_seconds:.1f} s; reading {read / 2**20:.0f} MiB {floor:.1f} ms")
    print(f"{'T':>4} {'median ms':>10} {'/ T=1':>7} {'/ read':>7}")
    for count, found in curve.items():
        print(f"{count:4d} {found:10.2f} {found / curve[1]:7.2f} {found / floor:7.2f}")
    result = {
        "benchmark": "llamagen_b",
        "threads": given.threads,
        "parameters": parameters,
        "export_seconds": round(export_seconds, 1),
        "export_cpu_seconds": round(export_cpu_seconds, 1),
        "peak_memory_bytes": peak,
        "parity": dict(written[0].parity),
        "checked": checked.passed,
        "greedy_parting": None if checked.report.parting is None else list(checked.report.parting),
        "picture_seconds": round(picture_seconds, 2),
        "weights_read_bytes": read,
        "reading_ms": round(floor, 3),
        "verify_ms": [[count, round(found, 3)] for count, found in curve.items()],
        "token_over_reading": round(curve[1] / floor, 3),
    }
    finish(result, given.out)


if __name__ == "__main__":
    main()
