"""The device runtime on a GPU: is it right, and how long do its cycles take?

Run: python -m benchmarks.device [--batch 1] [--model llamagen-xl] [--methods ar,eagle2,...] [--device cuda]

Correctness first; a failure ends the run with code 1. Uniforms must be the reference's bit for bit; distributions
must have the reference's support and lie within 1e-5; every rule must give the reference's verdict on 40 random
trees of 60 nodes over 1,000 codes. Then, with random weights in the model's sizes, in bfloat16: a copy's bandwidth,
and every method's cycle as one captured graph, timed by CUDA events, beside what `device_program` predicts. Random
weights accept hardly a draft, so cycles are timed, not pictures. `--out FILE` is written after every part.

`--device cpu` runs the same code on tiny sizes through Triton's interpreter: it shows that it runs, and nothing else.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.report import at_least, finish, options, parse, refusing

METHODS = "ar,chain,eagle1,eagle2,adt,lantern,lantern++,adt+lantern"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options("device", __doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... or cpu")
    parser.add_argument("--batch", type=at_least(1), default=1)
    parser.add_argument("--rounds", type=at_least(1), default=30)
    parser.add_argument("--model", choices=("llamagen-xl", "7b"), default="llamagen-xl")
    parser.add_argument("--methods", default=METHODS, help="with commas between")
    asked = parse(parser, arguments)
    with refusing(parser):
        from underpaint.runtime.device.runner import open_device

        device = open_device(asked.device)
        names = asked.methods.split(",")
        from underpaint.runtime.device.sizes import METHODS as KNOWN

        unknown = [name for name in names if name not in KNOWN]
        if unknown:
            raise ValueError(f"--methods: there is no {', '.join(unknown)}; known: {', '.join(KNOWN)}")
    figures: dict[str, Any] = {"model": asked.model, "batch": asked.batch, "device": device_name(device)}
    parts: list[tuple[str, Callable[[], dict[str, Any]]]] = [("correct", lambda: correctness(device))]
    parts.append(("copy", lambda: copy_bandwidth(device)))
    for name in names:
        parts.append((name, lambda name=name: timed(device, asked.model, name, asked.batch, asked.rounds)))
    for name, part in parts:
        started = perf_counter()
        figures[name] = part() | {"seconds": perf_counter() - started}
        print(name, figures[name], file=sys.stderr, flush=True)
        finish(figures, asked.out)
        if name == "correct" and not all(value for value in figures[name].values()):
            raise SystemExit(1)


def device_name(device: Any) -> dict[str, Any]:
    import torch
    import triton

    found = {"torch": torch.__version__, "triton": triton.__version__, "name": str(device)}
    if device.type == "cuda":
        held = torch.cuda.get_device_properties(device)
        found |= {"name": held.name, "capability": f"{held.major}.{held.minor}", "bytes": held.total_memory}
    return found


def correctness(device: Any) -> dict[str, Any]:
    """Whether uniforms, distributions and verdicts are the reference's."""
    import torch

    from underpaint.algos.chance import Philox, Role
    from underpaint.algos.rows import SamplingParams, sampling_probs
    from underpaint.runtime.device.kernels.probs import probs
    from underpaint.runtime.device.kernels.uniforms import uniforms

    def whole(*numbers: int) -> Any:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    out = torch.zeros(1, 1, 70, dtype=torch.float64, device=device)
    uniforms(out, whole(2**40), whole(9), whole(1000), whole(2))
    same = bool((out.cpu().numpy()[0, 0] == Philox(2**40, 9).uniforms(1000, Role(2), 70)).all())
    small = device.type == "cpu"
    nodes, vocab_size = (2, 300) if small else (60, 16384)
    logits = (3 * np.random.default_rng(0).standard_normal((2, nodes, vocab_size))).astype(np.float32)
    close = []
    for sampler in (SamplingParams(guidance=4.0, top_k=100), SamplingParams(guidance=2.0, temperature=0.8, top_p=0.9)):
        made = torch.zeros(1, nodes, vocab_size, device=device)
        marks = torch.zeros(2, 1, nodes, dtype=torch.int32, device=device)
        probs(torch.from_numpy(logits).to(device)[:, None], made, marks[0], marks[1], whole(nodes), sampler)
        found, wanted = made.cpu().numpy()[0], sampling_probs(logits, sampler)
        close.append(bool(np.abs(found - wanted).max() < 1e-5 and ((found > 0) == (wanted > 0)).mean() > 0.99999))
    rules = {f"rule {name}": agree for name, agree in verdicts(device, small).items()}
    return {"uniforms": same, "distributions": all(close), **rules}


def verdicts(device: Any, small: bool) -> dict[str, bool]:
    """Whether each rule with a device form gives the reference's verdict on random trees."""
    from benchmarks.device_trees import agrees
    from underpaint.runtime.device.rules import DEVICE_RULES

    count, nodes, vocab_size = (2, 8, 50) if small else (40, 60, 1000)
    return {name: all(agrees(name, device, nodes, vocab_size, seed) for seed in range(count)) for name in DEVICE_RULES}


def copy_bandwidth(device: Any) -> dict[str, Any]:
    """GB/s of a copy, read and written bytes both counted."""
    import torch

    size = 2**20 if device.type == "cpu" else 2**30
    source, out = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    ms = time_ms(device, lambda: out.copy_(source), 10)
    return {"gb_s": 2 * size / ms / 1e6}


def time_ms(device: Any, run: Callable[[], Any], rounds: int) -> float:
    """The median of `rounds` runs."""
    import torch

    found = []
    for _ in range(rounds):
        if device.type == "cpu":
            started = perf_counter()
            run()
            found.append(1e3 * (perf_counter() - started))
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        last.synchronize()
        found.append(first.elapsed_time(last))
    return median(found)


def timed(device: Any, model: str, name: str, batch: int, rounds: int) -> dict[str, Any]:
    """A method's cycle on a model of random weights; see `cycle_figures`."""
    import torch

    from underpaint.runtime.device.sizes import SEVEN_B, XL

    config, dtype = XL if model == "llamagen-xl" else SEVEN_B, torch.bfloat16
    if device.type == "cpu":
        config, rounds, dtype = replace(config, dim=32, layers=1, heads=2, hidden=16, vocab_size=128), 1, torch.float32
    return cycle_figures(device, config, dtype, name, batch, rounds)


def cycle_figures(device: Any, config: Any, dtype: Any, name: str, batch: int, rounds: int) -> dict[str, Any]:
    """A method's cycle, sampling and all, as one captured graph: ms by events, and what its program implies."""
    import torch

    from underpaint.algos.draft.spec import Grid
    from underpaint.runtime.device.decoder import DecoderForward, shapes_alone
    from underpaint.runtime.device.program import count_cycle
    from underpaint.runtime.device.runner import DeviceRunner
    from underpaint.runtime.device.sizes import method_of

    drafts = replace(config, layers=1, drafter=True, fc_bias=False, condition="none", cond_ids=0, prefix=1)
    decoders = []
    with torch.no_grad():
        for part in (config, drafts):
            made = shapes_alone(part, dtype, device)
            for weights in made.parameters():
                weights.normal_(std=0.02) if weights.dim() > 1 else weights.fill_(1.0)
            decoders.append(DecoderForward(made, 2))
    method = method_of(name, config.vocab_size)
    grid = Grid(config.grid_side, config.width)
    runner = DeviceRunner(decoders[0], decoders[1], method, grid, config.prefix, batch, device)
    condition = torch.randn(2 * batch, config.prefix, config.dim, dtype=dtype, device=device)
    runner.begin(condition, [0] * batch, list(range(batch)))
    runner.capture()
    runner.begin(condition, [0] * batch, list(range(batch)))
    ms = time_ms(device, runner.step, rounds)
    program = count_cycle(config, method, batch)
    found = {"cycle_ms": ms, "nodes": len(program.nodes), "bytes": sum(node.bytes for node in program.nodes)}
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    return found


if __name__ == "__main__":
    main()
