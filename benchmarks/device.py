"""The device runtime on a GPU: is it right, and how long do its cycles take?

Run: python -m benchmarks.device [--model llamagen-xl] [--batches 1,4,16] [--parts correct,parity,...] [--out FILE]

Runs from a bare checkout, on PyTorch, Triton and NumPy alone. Parts, in order; `--out FILE` is written after each:

correct    uniforms bit for bit, distributions within 1e-5, every rule's verdict on 40 trees of 60 nodes
parity     a pass against the module's own on the CPU in float32; bfloat16 against it
identity   at temperature 0 in float32, the shipped weights: lossless methods draw plain decoding's tokens
copy       GB/s of a copy
shipped    the shipped weights, whole pictures at temperature 1, every method and batch: real acceptance
plain      plain decoding of a model in a published one's sizes with random weights, against the time that its bytes
           take at the copy's bandwidth, and the eager loop that papers time
cycles     every method's cycle at those sizes; memory at its peak beside what was foreseen
breakdown  where a cycle's time goes, each part a graph of its own

A check that does not hold makes the run end with code 1: at once in `correct` and `parity`, else after all parts.
`--plan` prints the parts with their expected minutes; with `--minutes 9` a call ends in time, and the same command goes
on from the file named by `--out`.
`--device cpu` runs the same code on tiny sizes through Triton's interpreter: it shows that it runs, and nothing else.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.report import at_least, finish, options, parse, refusing

METHODS = "ar,chain,eagle1,eagle2,adt,lantern,lantern++,adt+lantern,scd-maximal,sjd-pac,jacobi-lookup"
SHIPPED = "speculative,eagle1,eagle2,adt,lantern,lantern++,adt+lantern,scd-maximal,sjd-pac,jacobi-lookup"
PARTS = ("correct", "parity", "identity", "copy", "shipped", "plain", "cycles", "breakdown")
MINUTES = {"correct": 1.0, "parity": 0.5, "identity": 1.0, "copy": 0.1, "shipped": 0.5, "plain": 1.0, "cycles": 0.3}
"""Expected minutes of one run of a part on a GPU: estimates, as no GPU has run it. Other parts: 0.1."""
FIRST = ("correct", "parity")
"""Parts in which a failed check ends the run, because later parts would time something else."""
AR_BOUNDS = {"llamagen-xl": 1.3, "7b": 1.15}
"""Bounds of plain decoding's time, relative to reading its weights and live cache at the bandwidth of a copy."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options("device", __doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... or cpu")
    parser.add_argument("--batches", default="1,4,16", help="images of a batch, with commas between")
    parser.add_argument("--model", choices=("llamagen-xl", "7b"), default="llamagen-xl")
    parser.add_argument("--methods", default=METHODS, help="of random weights, with commas between")
    parser.add_argument("--shipped", default=SHIPPED, help="of the shipped weights, with commas between")
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas between")
    parser.add_argument("--plan", action="store_true", help="print the runs with their expected minutes, and end")
    parser.add_argument(
        "--minutes", type=float, help="start no run that is expected to end later; the next call goes on"
    )
    args = parse(parser, arguments)
    if args.minutes is not None and args.out is None:
        parser.error("--minutes: expected --out too, the file that the next call goes on from; name one")
    with refusing(parser):
        batches = [at_least(1)(one) for one in args.batches.split(",")]
        parts = _check_names("--parts", args.parts, PARTS)
        from benchmarks.device_models import shipped_method, shipped_tables
        from tools.device_sizes import METHODS as KNOWN
        from underpaint.algos.rows import SamplingParams
        from underpaint.runtime.device.devices import open_device
        from underpaint.runtime.methods.registry import METHODS as NAMES

        device = None if args.plan else open_device(args.device)
        names = _check_names("--methods", args.methods, KNOWN)
        shipped, tables = _check_names("--shipped", args.shipped, [spec.name for spec in NAMES]), shipped_tables()
        if unfit := [name for name in shipped if shipped_method(name, 1.0, SamplingParams(), tables) is None]:
            raise ValueError(f"--shipped: expected methods of draft trees or Jacobi windows, got {', '.join(unfit)}")
    if args.plan:
        plan(parts, batches, names, shipped)
        return
    figures: dict[str, Any] = {"model": args.model, "batches": batches, "device": device_name(device)}
    with refusing(parser):
        earlier_runs = earlier(args.out, figures)
    failed = earlier_runs.pop("failed", [])
    work, begun = Work(device, args.model, shipped, tables, earlier_runs.get("copy", {}).get("gb_s")), perf_counter()
    for part in parts:
        for name, batch, method in runs_of(part, batches, names, shipped):
            if name in earlier_runs:
                figures[name] = earlier_runs[name]
                continue
            minutes = (perf_counter() - begun) / 60 + MINUTES.get(part, 0.1)
            if args.minutes is not None and minutes > args.minutes:
                print(f"{name} is left to the next call, which goes on from {args.out}", file=sys.stderr)
                finish({**figures, "failed": failed, "left": name}, args.out)
                raise SystemExit(int(bool(failed)))
            started = perf_counter()
            result = work.run(part, batch, method)
            checks = result.pop("checks", {})
            records = {check: one.to_record() for check, one in checks.items()}
            figures[name] = {**result, **({"checks": records} if records else {}), "seconds": perf_counter() - started}
            failed += [
                f"{name}: {check} is {one.value:.4g}, bound {one.bound:.4g}"
                for check, one in checks.items()
                if not one.holds
            ]
            print(name, figures[name], file=sys.stderr, flush=True)
            finish({**figures, "failed": failed}, args.out)
        if part in FIRST and any(one.startswith(f"{part}: ") for one in failed):
            break
    if failed:
        print("\n".join(["checks that do not hold:", *failed]), file=sys.stderr)
        raise SystemExit(1)


def runs_of(
    part: str, batches: Sequence[int], names: Sequence[str], shipped: Sequence[str]
) -> list[tuple[str, int, str]]:
    """Return the runs of a part as (name, images of a batch, method). Each takes well under two minutes on a GPU."""
    if part == "plain":
        return [(f"plain, batch {batch}", batch, "ar") for batch in batches]
    from tools.device_sizes import FRONTS
    from tools.device_sizes import METHODS as KNOWN

    in_parts = [name for name in names if KNOWN[name][0] != FRONTS]  # the cycle of row fronts is one part
    methods = {"shipped": shipped, "cycles": names, "breakdown": in_parts}.get(part)
    if methods is None:
        return [(part, 1, "ar")]
    return [(f"{part} {name}, batch {batch}", batch, name) for batch in batches for name in methods]


def plan(parts: Sequence[str], batches: Sequence[int], names: Sequence[str], shipped: Sequence[str]) -> None:
    """Print the number of runs of each part, and their expected minutes on a GPU."""
    counts = {part: len(runs_of(part, batches, names, shipped)) for part in parts}
    for part, runs in counts.items():
        print(f"{part:10s} {runs:3d} runs, {runs * MINUTES.get(part, 0.1):5.1f} minutes")
    total = sum(runs * MINUTES.get(part, 0.1) for part, runs in counts.items())
    print(f"{'all':10s} {total:15.1f} minutes expected; --minutes N ends in time, and the same command goes on")


def earlier(out: Path | None, figures: dict[str, Any]) -> dict[str, Any]:
    """Return the runs that an earlier call of the same command wrote to `out`.

    Raises ValueError if they are of another model, device or batches.
    """
    if out is None or not out.is_file():
        return {}
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    for key, value in figures.items():
        if record.pop(key, value) != value:
            raise ValueError(f"--out {out}: its '{key}' is another one than this call's; name another file")
    record.pop("left", None)
    return record


def _check_names(option: str, text: str, choices: Any) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise ValueError(f"{option}: there is no {', '.join(unknown)}; known: {', '.join(choices)}")
    return names


def device_name(device: Any) -> dict[str, Any]:
    """Describe the device and the versions of its packages."""
    import torch
    import triton

    description = {"torch": torch.__version__, "triton": triton.__version__, "name": str(device)}
    if device.type == "cuda":
        from underpaint.runtime.device.kernels.layers import product_kernel
        from underpaint.runtime.device.launch import overlap_capability, overlaps

        gpu = torch.cuda.get_device_properties(device)
        description |= {"name": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "bytes": gpu.total_memory}
        description["cuda"] = torch.version.cuda
        description["dependent launches"] = overlaps(product_kernel, overlap_capability(device.index))
    return description


class Work:
    """Runs the parts, and keeps what later runs need from earlier ones."""

    def __init__(self, device: Any, model: str, shipped: Sequence[str], tables: Any, gb_s: float | None) -> None:
        """gb_s: bandwidth of a copy in GB/s, if an earlier call measured it."""
        self._device, self._model, self._shipped, self._tables, self._gb_s = device, model, shipped, tables, gb_s
        self._weights: Any = None

    def run(self, part: str, batch: int, method: str) -> dict[str, Any]:
        """Return the figures of one run, with its checks."""
        from benchmarks import device_checks as checks
        from benchmarks.device_times import copy_gb_s, shipped_pictures

        if part == "correct":
            return {"checks": checks.correctness(self._device)}
        if part == "parity":
            return {"checks": checks.parity(self._device)}
        if part == "identity":
            return {"checks": checks.identity(self._device, self._shipped, self._tables)}
        if part == "shipped":
            return shipped_pictures(self._device, [method], batch, self._tables)
        if part in ("copy", "plain") and self._gb_s is None:
            self._gb_s = copy_gb_s(self._device)
        if part == "copy":
            return {"gb_s": self._gb_s}
        if self._weights is None or self._weights.batch != batch:
            self._weights = None  # freed before the next is made
            self._weights = self._random(batch)
        if part == "plain":
            return dict(self._weights.plain(self._gb_s))
        return dict(self._weights.breakdown(method) if part == "breakdown" else self._weights.cycle(method))

    def _random(self, batch: int) -> Any:
        """Create the model at its full size, or a tiny one for the interpreter."""
        import torch

        from benchmarks.device_models import TINY
        from benchmarks.device_times import RandomWeights
        from tools.device_sizes import SEVEN_B, XL

        if self._device.type == "cpu":
            return RandomWeights(self._device, TINY, torch.float32, batch, 1)
        config = XL if self._model == "llamagen-xl" else SEVEN_B
        return RandomWeights(self._device, config, torch.bfloat16, batch, 30, AR_BOUNDS[self._model])


if __name__ == "__main__":
    main()
