"""TensorRT plans of the shipped models, beside an older checkout's: bytes, seconds, and bytes of the weights.

Run: python -m benchmarks.tensorrt_plans --old ../before [--out FILE]

Both versions build with TensorRT for RTX, which needs no GPU for it, in folders of their own. Bytes are of every engine
file that a decoder has in the end: the older version has one for each number of rows, and each holds the weights.
"""

import shutil
import subprocess
import sys
import time
from os import environ
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from benchmarks.report import finish, options, parse, refusing
from underpaint.runtime.device.weights import stored_numbers
from underpaint.runtime.engines.tensorrt_files import RTX, backend_module
from underpaint.zoo.load import FOLDER, locate

HERE: Final = Path(__file__).parents[1]


class Case(NamedTuple):
    """What a decoder's plans are for, and the options of `underpaint engine` that build them, a call each."""

    what: str
    old: tuple[str, ...]
    new: str


CASES: Final = (
    Case("the host's passes, 1 to 8 rows", tuple(f"--rows {rows}" for rows in (1, 2, 4, 8)), "--rows 1,8"),
    Case(
        "the device's passes of eagle2 and adt, batches of 1 and 4",
        ("--for-device eagle2,adt --batch 1", "--for-device eagle2,adt --batch 4"),
        "--for-device eagle2,adt --batch 4",
    ),
)


class Built(NamedTuple):
    """The bytes of a decoder's plans, None where a build failed, and the seconds of all that was built with them."""

    bytes: int | None
    seconds: float


def build(checkout: Path, calls: tuple[str, ...], decoder: str) -> Built:
    """Build in a copy of the shipped models by the commands of `checkout`."""
    with TemporaryDirectory() as work:
        folder = Path(work) / "models"
        shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__", "*.py"))
        begun, failed = time.perf_counter(), False
        for call in calls:
            only = "" if "--for-device" in call else f"--model {decoder}"
            command = f"-m underpaint engine {folder} --backend {RTX} {only} {call}".split()
            own = {**environ, "PYTHONPATH": str(checkout)}
            done = subprocess.run([sys.executable, *command], cwd=checkout, env=own, capture_output=True, check=False)
            failed |= done.returncode != 0
        seconds = time.perf_counter() - begun
        sizes = [file.stat().st_size for file in folder.glob(f"{decoder}.*.engine")]
    return Built(None if failed else sum(sizes), seconds)


def row(case: Case, old: Path, decoder: str, kind: str) -> dict[str, Any]:
    """A row of figures."""
    before, now = build(old, case.old, decoder), build(HERE, (case.new,), decoder)
    weights = 4 * stored_numbers(locate(decoder, kind))
    print(f"{decoder}, {case.what}: {before} before, {now} now, {weights} bytes of weights", flush=True)
    return {
        "decoder": decoder,
        "what": case.what,
        "weight_bytes": weights,
        "old_bytes": before.bytes,
        "old_s": before.seconds,
        "new_bytes": now.bytes,
        "new_s": now.seconds,
    }


def main(arguments: list[str] | None = None) -> int:
    """Return 1 where plans are not smaller than 1.1 times the weights."""
    parser = options("tensorrt_plans", __doc__)
    parser.add_argument("--old", type=Path, required=True, help="an older checkout")
    asked = parse(parser, arguments)
    if not (asked.old / "export" / "tensorrt_build.py").is_file():
        parser.error(f"--old: expected a checkout of this repository, got {asked.old}; make one with git worktree")
    with refusing(parser):
        version = backend_module(RTX).__version__
    decoders = (("target128", "target"), ("drafter128", "drafter"))
    rows = [row(case, asked.old.resolve(), *decoder) for case in CASES for decoder in decoders]
    finish({"benchmark": "tensorrt_plans", "tensorrt_rtx": version, "rows": rows}, asked.out)
    return int(any(one["new_bytes"] is None or one["new_bytes"] > 1.1 * one["weight_bytes"] for one in rows))


if __name__ == "__main__":
    sys.exit(main())
