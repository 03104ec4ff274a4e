"""Bad arguments end every benchmark with code 2 and one line that says what was expected, before any work."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.report as report

REFUSED = [
    ("device", ["--device", "cuda:99"], "there is no CUDA device here"),
    ("device", ["--device", "cpu", "--methods", "eagel2"], "there is no eagel2"),
    ("device", ["--device", "cpu", "--shipped", "mulo"], "expected methods of draft trees or Jacobi windows, got mulo"),
    ("device", ["--device", "cpu", "--minutes", "1"], "--minutes: expected --out too"),
    ("device_program", ["--batches", "0"], "expected a whole number from 1, got '0'"),
    ("device_program", ["--batches", "4", "--curves", "here"], "cost curves are of one image and of all methods"),
    ("device_program", ["--methods", "ar", "--curves", "here"], "cost curves are of one image and of all methods"),
    ("device_program", ["--quantization", "fp8", "--curves", "here"], "cost curves are of one image and of all"),
    ("gpu", ["--rounds", "0"], "expected a whole number from 1, got '0'"),
    ("gpu", ["--backend", "cuda:1"], "invalid choice: 'cuda:1'"),
    ("paired_speed", ["absent"], "no folder absent"),
    ("rank_acceptance", ["--ranks", "0"], "expected a whole number from 1"),
    ("validation", ["--images", "1"], "expected a whole number from 2"),
    ("protocol_predictions", ["--trace", "a.npz", "--costs", "absent.json", "--record", "absent.json"], "absent.json"),
]
POSITIONAL = {
    "protocol_predictions": ["--record", "absent.json", "--trace", "absent.npz", "--costs", "absent.json"],
    "paired_speed": ["absent"],
}
FOLDER = Path(report.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if "from benchmarks.report import" in path.read_text())


def refused(name, arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"benchmarks.{name}").main(arguments)
    assert stopped.value.code == 2
    output = capsys.readouterr()
    assert not output.out
    return output.err.splitlines()[-1]


@pytest.mark.parametrize(("name", "arguments", "message"), REFUSED)
def test_bad_arguments_are_refused_in_one_line(name, arguments, message, capsys):
    last = refused(name, arguments, capsys)
    assert last.startswith(f"python -m benchmarks.{name}: error: ")
    assert message in last


@pytest.mark.parametrize("name", NAMES)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(name, capsys):
    first = POSITIONAL.get(name, [])
    assert "cannot write into /proc/here" in refused(name, [*first, "--out", "/proc/here/found.json"], capsys)


def test_importing_a_benchmark_leaves_the_environment_alone() -> None:
    # A benchmark that chose how kernels run as it was imported chose it for every process that a test started later.
    root = Path(report.__file__).parents[1]
    names = sorted(path.stem for path in (root / "benchmarks").glob("*.py"))
    program = (
        "import importlib, os\nbefore = dict(os.environ)\n"
        f"for name in {names!r}:\n    importlib.import_module('benchmarks.' + name)\n"
        "assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
