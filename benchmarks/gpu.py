"""Everything about GPU engines that only a GPU can tell, in one command: parity, tokens, timings.

Run: python -m benchmarks.gpu [--backend tensorrt-rtx] [--precision fp16] [--rounds 50] [--out FILE]

It exports LlamaGen-B at full size with random weights and a random drafter; then, on this machine's GPU, it
1. builds TensorRT's engines for a guidance pair, ties them to this GPU, and loads them again; a provider of ONNX
   Runtime (--backend cuda, tensorrt-ep, nv-tensorrt-rtx) runs the graphs themselves;
2. holds target and drafter against ONNX Runtime's float32 on the CPU: logits of a picture in passes of every bucket;
3. draws a picture at temperature 0 on both, and reports the first token at which they part with the margin there;
4. times a pass of every bucket, copies included, and a token of plain AR with its sampling on the host. Beside it is
   plain AR at its best: the device runtime's cycle on a model of that size, sampling and all in one captured graph
   (`benchmarks.device`; half precision in bfloat16).
The last line is JSON. Engines that lie further from float32 than export allows, or part from its greedy picture where
the choice was not close, end the run with code 1, and `failed` names each threshold. Where the package of the backend
is missing, ONNX Runtime's CUDA provider takes its place if it can be had, else the device runtime runs alone: `instead`
says so, and the code is that of what ran. Code 2: a part did not run (no GPU, an engine that the GPU refuses), which
the line says; the other parts still run.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.llamagen_checkpoint import llamagen_state
from benchmarks.report import at_least, finish, options, parse
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.chance import sampling
from underpaint.algos.draft.chain import Chain
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import decode
from underpaint.algos.tree import Verdict, root_only
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.export.device_engines import build_folder
from underpaint.export.parity import MOST
from underpaint.export.tensorrt_build import EngineBuilder
from underpaint.models.decoder import Decoder, initialise
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import CPU, EngineError, load_decoder
from underpaint.runtime.engines.engine import Engine
from underpaint.runtime.engines.pass_inputs import causal
from underpaint.runtime.engines.providers import PROVIDERS, check_provider
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.engines.tensorrt_files import MODULES, backend_module
from underpaint.runtime.engines.tensorrt_runtime import gpu_name

CONFIG = DecoderConfig(
    dim=768, layers=12, heads=12, hidden=2048, vocab_size=16384, grid_side=16, prefix=1, cond_ids=1001
)
"""The sizes of LlamaGen-B."""
BUCKETS = (1, 8, 16, 32, 64)
OPTIONS = LoadOptions(grid_side=16)
CLASS = 207
MOST_MARGIN: Final[Mapping[str, float]] = {"fp32": 1e-3, "fp16": 0.05, "bf16": 0.25}
"""Largest gap in log-probability, at guidance 2, of float32's best two tokens where an engine may take another one."""


def checkpoint(path: Path) -> int:
    """Write a random LlamaGen-B in its authors' format, and return its number of parameters."""
    torch.manual_seed(0)
    model = Decoder(CONFIG)
    initialise(model)
    torch.save({"model": llamagen_state(model)}, path)
    return sum(value.numel() for value in model.parameters())


def drafter_checkpoint(path: Path) -> None:
    """Write a random drafter in the released format, as wide as LlamaGen-B."""
    torch.manual_seed(1)
    dim, hidden = CONFIG.dim, CONFIG.hidden
    sizes = {f"self_attn.{part}_proj": (dim, dim) for part in "qkvo"}
    sizes |= {"mlp.gate_proj": (hidden, dim), "mlp.up_proj": (hidden, dim), "mlp.down_proj": (dim, hidden)}
    state = {"fc.weight": 0.02 * torch.randn(dim, 2 * dim), "fc.bias": torch.zeros(dim)}
    state |= {f"layers.0.{part}.weight": 0.02 * torch.randn(size) for part, size in sizes.items()}
    state["layers.0.post_attention_layernorm.weight"] = torch.ones(dim)
    save_file(state, path)


def prepare(work: Path, precision: str) -> tuple[Path, Path]:
    """Export one random LlamaGen-B and drafter twice: in `precision`, and in float32 for comparison."""
    target, drafter = work / "c2i_B_256.pt", work / "drafter.safetensors"
    checkpoint(target)
    drafter_checkpoint(drafter)
    folders = work / precision, work / "reference"
    for folder, chosen in zip(folders, (precision, "fp32"), strict=True):
        export_checkpoint(Request("llamagen-c2i", target, chosen, OPTIONS), folder)
        pair = ("llamagen-c2i", target)
        request = Request("eagle-drafter", drafter, chosen, LoadOptions(heads=CONFIG.heads), pair, OPTIONS)
        export_checkpoint(request, folder)
    return folders


def engines(name: str, folder: Path, reference: Path, backend: str) -> tuple[Engine, Engine]:
    return load_decoder(name, name, folder, backend=backend).open(2), load_decoder(name, name, reference).open(2)


def parity(name: str, folder: Path, reference: Path, backend: str) -> dict[str, float]:
    """Return the largest logit difference over max(1, largest logit) by pass size: every bucket, and other sizes."""
    rng, pair = np.random.default_rng(0), engines(name, folder, reference, backend)
    config = pair[0].config
    tokens = rng.integers(0, config.vocab_size, config.grid.cells)
    features = rng.standard_normal((2, config.grid.cells, config.dim)).astype(np.float32)
    reads = name == "drafter"
    if not reads:
        prefix = np.array([[config.vocab_size + 1], [config.uncond_ids[0]]])
        for engine in pair:
            out = engine.run(prefix, config.first_cells(1), causal(1))
            engine.cache.commit(slice(None))
    worst: dict[str, float] = {}
    start = turn = 0
    sizes = (*BUCKETS, 3, 11)
    while start < len(tokens):
        stop = min(len(tokens), start + sizes[turn % len(sizes)])
        logits = []
        for engine in pair:
            feature_rows = features[:, start:stop] if reads else None
            out = engine.run(tokens[start:stop], np.arange(start, stop), causal(stop - start), None, feature_rows)
            engine.cache.commit(slice(None))
            logits.append(out.logits.copy())
        apart = float(np.abs(logits[0] - logits[1]).max() / max(1.0, np.abs(logits[1]).max()))
        apart = apart if np.isfinite(apart) else float("inf")
        key = str(stop - start)
        worst[key] = max(worst.get(key, 0.0), apart)
        start, turn = stop, turn + 1
    return worst


def greedy(folder: Path, reference: Path, backend: str) -> dict[str, Any]:
    """Return the first cell at which the two engines differ at temperature 0, and the float32 margin there."""
    sampler = SamplingParams(guidance=2.0, temperature=0)
    sequences = []
    for place, engine in ((folder, backend), (reference, CPU)):
        target = EngineTarget(load_decoder("target", "target", place, backend=engine), sampler)
        target.prepare(target.encoder.of_ids(np.array([CLASS])))
        sequences.append(decode(target, None, Chain(1), PointProposals(), sampling(0)).tokens)
    differs = (sequences[0] != sequences[1]).nonzero()[0]
    if not differs.size:
        return {"parts_at": None}
    cell = int(differs[0])
    target = EngineTarget(load_decoder("target", "target", reference), SamplingParams(guidance=2.0))
    target.prepare(target.encoder.of_ids(np.array([CLASS])))
    probs = target.begin().probs[0]
    for token in sequences[1][:cell]:
        tree = root_only(int(token), target.vocab_size)
        probs = target.score(tree).probs[0]
        target.commit(tree, Verdict((), 0))
    best = np.sort(np.log(probs))[-2:]
    return {"parts_at": cell, "margin": float(best[1] - best[0])}


def timings(name: str, folder: Path, backend: str, rounds: int) -> dict[str, Any]:
    """Return the median ms of a pass of every bucket, with copies in and out; each round runs all sizes in turn."""
    engine = load_decoder(name, name, folder, backend=backend).open(2)
    config, reads = engine.config, name == "drafter"
    samples: dict[int, list[float]] = {count: [] for count in BUCKETS}
    features = np.zeros((2, max(BUCKETS), config.dim), dtype=np.float32)
    for turn in range(rounds + 3):
        for count, times in samples.items():
            feature_rows = features[:, :count] if reads else None
            start = time.perf_counter()
            engine.run(np.zeros(count, dtype=np.int64), np.arange(count), causal(count), None, feature_rows)
            if turn >= 3:
                times.append(1e3 * (time.perf_counter() - start))
    curve = [[count, round(float(np.median(times)), 4)] for count, times in samples.items()]
    return {"ms": curve, "captured": engine.captured}  # type: ignore[attr-defined]


def token_ms(folder: Path, backend: str) -> float:
    """Return the ms per token of plain AR on the engine, with sampling on the host, in the second of two pictures."""
    loaded = load_decoder("target", "target", folder, backend=backend)
    target = EngineTarget(loaded, SamplingParams(guidance=4.0, top_k=1000))
    target.prepare(target.encoder.of_ids(np.array([CLASS])))
    for seed in range(2):
        start = time.perf_counter()
        result = decode(target, None, Chain(1), PointProposals(), sampling(seed))
        seconds = time.perf_counter() - start
    return round(1e3 * seconds / len(result.tokens), 4)


def best_token_ms(precision: str, rounds: int) -> float:
    """Return the ms per token of plain AR in the device runtime, as one captured graph with sampling."""
    from benchmarks.device_times import RandomWeights
    from underpaint.runtime.device.devices import open_device

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    cycle_ms: float = RandomWeights(open_device("cuda"), CONFIG, dtype, 1, rounds).cycle("ar")["cycle_ms"]
    return round(cycle_ms, 4)


def lacking(look: Callable[[], object]) -> str | None:
    """Return what this machine lacks by `look`, with a remedy; None if it lacks nothing."""
    try:
        look()
    except EngineError as error:
        return str(error)
    return None


def substitute(backend: str) -> tuple[str | None, str | None]:
    """Return the backend to run instead of `backend` (None: no engine), and a message (None: `backend` itself runs)."""
    reasons = []
    for tried in (backend, "cuda"):
        why = lacking(lambda tried=tried: backend_module(tried) if tried in MODULES else check_provider(tried))
        if why is None:
            reasons.append(f"ran --backend {tried} and the device runtime")
            return tried, "; ".join(reasons) if tried != backend else None
        reasons.append(why)
    return None, "; ".join([*dict.fromkeys(reasons), "ran the device runtime alone"])


def attempt(name: str, part: Callable[[], Any], result: dict[str, Any]) -> None:
    """Store the result of `part` in `result[name]`, or the reason for its failure; other parts still run."""
    try:
        result[name] = part()
    except Exception as error:  # errors of NVIDIA's packages and PyTorch share no base
        traceback.print_exc()
        result[f"{name}_not_run"] = f"{type(error).__name__}: {error}".splitlines()[0]


def measure(args: argparse.Namespace, backend: str | None, work: Path, result: dict[str, Any]) -> None:
    """Fill `result` part by part. backend: None for the device runtime only."""
    result["gpu"], only = gpu_name(), ("target", "drafter")
    attempt("best_token_ms", lambda: best_token_ms(args.precision, args.rounds), result)
    if backend is None:
        return
    folder, reference = prepare(work, args.precision)
    if backend in MODULES:
        builder = EngineBuilder(backend_module(backend), backend, gpu_name())
        start = time.perf_counter()
        built = list(build_folder(folder, builder, only, BUCKETS, (2,)))
        result["engines"] = [record.engine_bytes for _, record in built]
        result["build_seconds"] = round(time.perf_counter() - start, 1)
    for name in only:
        attempt(f"{name}_parity", lambda name=name: parity(name, folder, reference, backend), result)
    attempt("greedy", lambda: greedy(folder, reference, backend), result)
    for name in only:
        attempt(f"{name}_passes", lambda name=name: timings(name, folder, backend, args.rounds), result)
    attempt("token_ms", lambda: token_ms(folder, backend), result)


def failures(result: Mapping[str, Any], precision: str) -> list[str]:
    """Describe the thresholds that the figures exceed."""
    messages = []
    for name in ("target", "drafter"):
        for count, apart in result.get(f"{name}_parity", {}).items():
            if apart > MOST[precision]:  # type: ignore[index]
                most = MOST[precision]  # type: ignore[index]
                messages.append(f"{name}_parity: {apart:.3g} in passes of {count}, expected at most {most:g}")
    parts = result.get("greedy", {"parts_at": None})
    if parts["parts_at"] is not None and not parts["margin"] <= MOST_MARGIN[precision]:
        messages.append(
            f"greedy: parts from float32 at cell {parts['parts_at']}, whose best two tokens lie {parts['margin']:.3g} "
            f"apart, expected at most {MOST_MARGIN[precision]:g}"
        )
    return messages


def main(arguments: list[str] | None = None) -> int:
    parser = options("gpu", __doc__)
    parser.add_argument("--backend", default="tensorrt-rtx", choices=(*MODULES, *PROVIDERS))
    parser.add_argument("--precision", default="fp16", choices=("fp32", "fp16", "bf16"))
    parser.add_argument("--rounds", type=at_least(1), default=50, help="samples of every size")
    args = parse(parser, arguments)
    result: dict[str, Any] = {"benchmark": "gpu", "backend": args.backend, "precision": args.precision}
    no_gpu = lacking(gpu_name)
    if no_gpu is not None:
        result["not_run"] = no_gpu
    else:
        backend, reason = substitute(args.backend)
        if reason is not None:
            result |= {"backend": backend, "asked": args.backend, "instead": reason}
            print(f"instead of --backend {args.backend}: {reason}", file=sys.stderr)
        with TemporaryDirectory() as work:
            try:
                measure(args, backend, Path(work), result)
            except (ValueError, RuntimeError, OSError) as error:
                result["not_run"] = str(error)
    result["failed"] = failures(result, args.precision)
    for line in result["failed"]:
        print(f"FAILED {line}", file=sys.stderr)
    finish(result, args.out)
    if result["failed"]:
        return 1
    return 2 if any(name.endswith("not_run") for name in result) else 0


if __name__ == "__main__":
    sys.exit(main())
