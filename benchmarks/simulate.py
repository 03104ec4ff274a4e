"""How much faster many images in lockstep are than the decoding loop, and how long a sweep takes.

Run: python -m benchmarks.simulate [--images 512] [--loop-images 6] [--sweep] [--jobs 2] [--out FILE]

Both decode 256-token images of the same model by the same policy and rule; tokens per cycle stand beside each other.
Times are processor seconds, which other work on the machine disturbs less than the clock; --sweep runs 1,000
configurations (200 simulations on 5 machines) and reports both. The last line is JSON.
"""

import resource
import tempfile
import time
from pathlib import Path

from benchmarks.report import at_least, finish, options, parse
from underpaint.artifacts.workers import usable_cores
from underpaint.sim.batched.decoding import make_scheme, run_lockstep, run_loop
from underpaint.sim.report.statistics import tokens_per_cycle
from underpaint.sim.sweep.plan import SweepPlan, jobs
from underpaint.sim.sweep.run import Results, run, workers
from underpaint.sim.synthetic.field import make_synthetic_model

TREE = {"depth": 4, "top_k": 4, "total_tokens": 12}
SCHEMES = (
    ("chain", "chain", {}, {}),
    ("eagle1", "without_replacement", {"widths": (3, 4, 3, 2)}, {}),
    ("eagle2", "point", TREE, {}),
    ("eagle2", "greedy", TREE, {}),
    ("eagle2", "lantern", TREE, {"k": 8, "delta": 0.1}),
    ("adt", "point", {"start_width": 4, "max_width": 6, "total_tokens": 12}, {}),
)
SWEEP = SweepPlan(
    models=("field", "flat", "sharp", "duplicates", "patchy"),
    policies=("chain", "eagle2", "adt"),
    rules=("chain", "point", "lantern"),
    machines=tuple(f"{machine}/llamagen-xl" for machine in ("rtx4090", "a100", "h100", "h200", "b200")),
    vary={"model.noise": (0.2, 0.5, 0.8, 1.2), "policy.depth": (2, 3, 4), "rule.k": (8,)},
)


def compare(images: int, loop_images: int) -> list[dict[str, object]]:
    model = make_synthetic_model("field", {})
    rows: list[dict[str, object]] = []
    for policy, rule, shape, settings in SCHEMES:
        scheme = make_scheme(model, policy, rule, shape, settings)
        run_lockstep(model, scheme, 16, 1)
        started = time.process_time()
        fast = run_lockstep(model, scheme, images, 0).runs
        fast_ms = 1e3 * (time.process_time() - started) / images
        started = time.process_time()
        slow = run_loop(model, scheme, loop_images, 0)
        slow_ms = 1e3 * (time.process_time() - started) / loop_images
        found = tokens_per_cycle(fast), tokens_per_cycle(slow)
        print(
            f"{policy:8s} {rule:20s} lockstep {fast_ms:7.3f} ms  loop {slow_ms:7.1f} ms  {slow_ms / fast_ms:6.0f}x  "
            f"tokens per cycle {found[0].mean:.3f} and {found[1].mean:.3f} ({found[1].low:.3f} to {found[1].high:.3f})",
            flush=True,
        )
        rows.append(
            {
                **{"policy": policy, "rule": rule, "lockstep_ms": fast_ms, "loop_ms": slow_ms},
                **{"times_faster": slow_ms / fast_ms, "tokens_lockstep": found[0].mean, "tokens_loop": found[1].mean},
            }
        )
    return rows


def processor_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def sweep(count: int) -> dict[str, float]:
    configurations = len(jobs(SWEEP)) * len(SWEEP.machines)
    with tempfile.TemporaryDirectory() as folder:
        results = Results(Path(folder), SWEEP)
        started, spent = time.perf_counter(), processor_seconds()
        run(SWEEP, results, workers(jobs=count), lambda line: None)
        seconds, spent = time.perf_counter() - started, processor_seconds() - spent
    widest = max((high - low) / 2 / mean for line in results.lines for mean, low, high in line["speedup"].values())
    print(
        f"{configurations} configurations ({len(results.lines)} simulations on {len(SWEEP.machines)} machines): "
        f"{seconds:.0f} s by the clock, {spent:.0f} processor seconds, {count} processes; "
        f"widest interval +-{widest:.1%}"
    )
    return {
        **{"configurations": configurations, "simulations": len(results.lines), "seconds": seconds},
        **{"processor_seconds": spent, "jobs": count, "widest_half_interval": widest},
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options("simulate", __doc__)
    parser.add_argument("--images", type=at_least(2), default=512, help="in lockstep")
    parser.add_argument("--loop-images", type=at_least(2), default=6, help="by the decoding loop")
    parser.add_argument("--sweep", action="store_true", help="time a sweep of 1,000 configurations too")
    parser.add_argument("--jobs", type=at_least(1), default=usable_cores(), help="processes of the sweep")
    asked = parse(parser, arguments)
    found: dict[str, object] = {"benchmark": "simulate", "images": asked.images}
    found["rows"] = compare(asked.images, asked.loop_images)
    if asked.sweep:
        found["sweep"] = sweep(asked.jobs)
    finish(found, asked.out)


if __name__ == "__main__":
    main()
