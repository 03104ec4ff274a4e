"""How fast the simulator draws, beside an older checkout of it, and what a million images take.

Run: python -m benchmarks.simulator_scale --old CHECKOUT [--repeats 2] [--images 1000000] [--out FILE]

Each case runs in processes of its own, of the old checkout and of this one in turn, with one thread each; the least
processor time of the repeats counts. Whole simulations are commands, on two processes, and count by the clock. Both
checkouts draw the same images in all cases: the digest of their counts is compared. The last line is JSON.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.report import at_least, finish, options, parse
from underpaint.artifacts.workers import ONE_THREAD

HERE: Final = Path(__file__).resolve().parents[1]
SMALL_TREE: Final = {"depth": 4, "top_k": 2, "total_tokens": 7}
WIDTHS: Final = {"widths": (2, 2, 2, 1)}
CASES: Final[tuple[tuple[str, str, str, dict[str, Any], int], ...]] = (
    ("run_loop", "chain", "chain", {"length": 7}, 20),
    ("run_loop", "eagle1", "without_replacement", WIDTHS, 20),
    ("run_loop", "eagle2", "point", SMALL_TREE, 20),
    ("run_loop", "eagle2", "point", {}, 10),
    ("run_lockstep", "chain", "lantern", {"length": 7}, 1024),
    ("run_lockstep", "eagle1", "lantern_pp", WIDTHS, 1024),
    ("run_lockstep", "eagle2", "lantern_greedy", SMALL_TREE, 1024),
    ("run_lockstep", "eagle2", "lantern", SMALL_TREE, 1024),
    ("run_lockstep", "eagle2", "lantern", {}, 1024),
)
"""Loop, policy, rule, settings of the policy, images; on the synthetic model `field`."""
_CASE: Final = """
import hashlib, json, sys, time
from underpaint.sim.batched import decoding
from underpaint.sim.synthetic.field import make_synthetic_model
loop, policy, rule, settings, images = json.loads(sys.argv[1])
model = make_synthetic_model("field", {})
scheme = decoding.make_scheme(model, policy, rule, settings)
run = getattr(decoding, loop)
run(model, scheme, 2, 0)
started = time.process_time()
runs = run(model, scheme, images, 0)
seconds = time.process_time() - started
runs = getattr(runs, "runs", runs)
counts = b"".join(getattr(runs, name).tobytes() for name in ("cycles", "accepted", "depth", "verify", "draft"))
print(json.dumps([seconds, hashlib.sha256(counts).hexdigest()]))
"""
_SWEEP: Final = "simulate sweep --model field --machines a100/llamagen-xl --precision 1e-9 --jobs 2"
LOOPED: Final = (
    f"{_SWEEP} --policies chain --rules block --vary model.height=8 --vary model.width=8 --most-images 16000"
)
LARGE: Final = f"{_SWEEP} --policies eagle1 --rules without_replacement --vary policy.widths=2:2:2:1 --most-images"


def started(checkout: Path, *command: str, folder: Path | None = None) -> str:
    """The standard output of a Python command with the code of `checkout`."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(checkout)}
    place = folder or checkout
    return subprocess.run([sys.executable, *command], cwd=place, env=environment, stdout=-1, check=True).stdout.decode()


def whole_s(checkout: Path, command: str) -> float:
    """Seconds that a whole command takes."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        started(checkout, "-m", "underpaint", *command.split(), "--out", "x", folder=Path(folder))
        return time.perf_counter() - begun


def compared(what: str, images: int, old_s: float, new_s: float) -> dict[str, Any]:
    """A row of figures."""
    print(f"{what}: {old_s:.2f} s, now {new_s:.2f} s", flush=True)
    return {"what": what, "images": images, "old_s": old_s, "new_s": new_s, "times": old_s / new_s}


def main(arguments: list[str] | None = None) -> None:
    parser = options("simulator_scale", __doc__)
    parser.add_argument("--old", type=Path, required=True, help="an older checkout")
    parser.add_argument("--repeats", type=at_least(1), default=2)
    parser.add_argument("--images", type=at_least(2), default=1_000_000, help="of the large simulation; 10^7 at most")
    asked = parse(parser, arguments)
    if not (asked.old / "sim" / "batched").is_dir():
        parser.error(f"--old: expected a checkout of this repository, got {asked.old}; make one with git worktree")
    rows = []
    for case in CASES:
        loop, policy, rule, settings, images = case
        drawn: dict[Path, list[list[Any]]] = {asked.old.resolve(): [], HERE: []}
        for _ in range(asked.repeats):
            for checkout, outcomes in drawn.items():
                outcomes.append(json.loads(started(checkout, "-c", _CASE, json.dumps(case))))
        if len({digest for outcomes in drawn.values() for _, digest in outcomes}) > 1:
            raise RuntimeError(f"{case}: the checkouts draw other images")
        old_s, new_s = (min(seconds for seconds, _ in outcomes) for outcomes in drawn.values())
        shape = ", ".join(f"{name} {value}" for name, value in settings.items()) or "as published"
        rows.append(compared(f"{loop.removeprefix('run_')}: {policy} + {rule}, {shape}", images, old_s, new_s))
    old_s, new_s = (whole_s(checkout, LOOPED) for checkout in (asked.old.resolve(), HERE))
    rows.append(compared("whole: chain + block by the loop, 64 cells", 16_000, old_s, new_s))
    large_s = whole_s(HERE, f"{LARGE} {asked.images}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{asked.images:,} images of a tree of 8 nodes: {large_s:.0f} s, at most {peak:.0f} MiB a process")
    large = {"images": asked.images, "seconds": large_s, "peak_mib": peak}
    finish({"benchmark": "simulator_scale", "repeats": asked.repeats, "rows": rows, "large": large}, asked.out)


if __name__ == "__main__":
    main()
