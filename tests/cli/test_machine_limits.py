"""What a machine lacks, or what a path names besides files: one message, exit code 2, no traceback, nothing hangs."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.program import run_program
from underpaint.algos.memory import lacks_memory
from underpaint.artifacts.files import check_regular
from underpaint.cli.tables import Column, ResultTable, show
from underpaint.runtime.engines import context, engine
from underpaint.zoo.load import FOLDER

FOX = '"a fox left of a panda"'


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The shipped folder of models, of links."""
    folder = tmp_path / "models"
    folder.mkdir()
    for path in FOLDER.iterdir():
        if path.suffix in (".json", ".onnx", ".npz", ".safetensors"):
            (folder / path.name).symlink_to(path.resolve())
    return folder


@pytest.mark.parametrize("command", ["generate --method ar --out x.png", "compare --methods ar,adt --out x", "costs"])
def test_a_clock_that_stands_still_is_told_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setattr(engine, "perf_counter", lambda: 1.0)
    line = command if command == "costs" else f"{command} {FOX}"
    ran = run_program(f"{line} --resolution 64", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert "the clock of this process stands still, so nothing can be timed" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_clock_that_moves_slowly_is_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([0.0] * 5000 + [0.015] * 2)
    monkeypatch.setattr(engine, "perf_counter", lambda: next(looks))
    engine.check_clock()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.png"), "raise that with `ulimit -n 1024`"),
        (OSError(errno.ENFILE, os.strerror(errno.ENFILE)), "raise that with `ulimit -n 1024`"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "out of memory"),
        (
            MemoryError("Unable to allocate 8 GiB"),
            "out of memory (Unable to allocate 8 GiB); reduce the batch or the size",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
            "out of memory",
        ),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore"), "out of memory (CUDA out of memory."),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("checked", [True, False], ids=["while it is checked", "at work"])
def test_what_the_machine_lacks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str, checked: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    place = "underpaint.artifacts.results.read_results" if checked else "underpaint.cli.results.show"
    monkeypatch.setattr(place, fail)
    shutil.copy(Path(__file__).parents[2] / "benchmarks/results/textured-compare-128-t1.json", tmp_path / "a.json")
    ran = run_program("results validate a.json", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, ""), ran
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_another_runtime_error_is_a_bug_and_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("underpaint.artifacts.results.read_results", fail)
    assert "cannot be multiplied" in run_program("results validate a.json", tmp_path, monkeypatch).crash
    assert not lacks_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc", "out of memory"),
        ("BFCArena: Failed to allocate memory for requested buffer", "out of memory"),
        ("system error 24: Too many open files", "ulimit -n 1024"),
        ("Protobuf parsing failed", "onnxruntime could not load it (Protobuf parsing failed); export the model again"),
    ],
)
def test_a_model_that_does_not_load_for_want_of_memory_is_not_to_be_exported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> object:
            if name == "InferenceSession":
                raise RuntimeError(said)
            return getattr(context.import_module("onnxruntime"), name)

    monkeypatch.setattr(context, "onnx_runtime", Refusing)
    ran = run_program(f"generate {FOX} --resolution 64 --method ar --out x.png", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert told in ran.err
    assert ("export the model again" in ran.err) == ("Protobuf" in said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["model_index.json", "target64.json", "target64.onnx", "codebook.npz", "other.json"],
)
def test_a_pipe_among_the_models_is_refused(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (models / name).unlink(missing_ok=True)
    os.mkfifo(models / name)
    ran = run_program(f"generate {FOX} --models models --resolution 64 --out x.png", tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, "")
    assert name in ran.err or name.partition(".")[0] in ran.err
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"generate {FOX} --method roofline --set costs=pipe.json --out x.png", "pipe.json"),
        ("simulate sweep --model pipe.npz --policies chain --rules chain --out x", "pipe.npz"),
        ("simulate sweep --machines pipe.json --policies chain --rules chain --out x", "pipe.json"),
        ("simulate predict --trace pipe.npz --costs pipe.json --compare pipe.json", "pipe"),
        ("report pipe.json", "pipe.json"),
        ("results validate pipe.json", "pipe.json: expected a regular file, got a named pipe"),
        ("certify --replay pipe.json", "pipe.json: expected a regular file, got a named pipe"),
        ("report . --figures pipe.json", "pipe.json: expected a regular file, got a named pipe"),
        ("certify pipe.py:verify", "pipe.py"),
        ("export --kind vq pipe.pt --out x", "pipe.pt"),
        ("export target_pair --runs runs --out x", "checkpoint.pt"),
    ],
)
def test_a_pipe_in_place_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, told: str
) -> None:
    for name in ("pipe.json", "pipe.npz", "pipe.py", "pipe.pt"):
        os.mkfifo(tmp_path / name)
    for stage in ("target_pair", "target64", "target128"):
        (tmp_path / "runs" / stage).mkdir(parents=True)
        os.mkfifo(tmp_path / "runs" / stage / "checkpoint.pt")
    ran = run_program(line, tmp_path, monkeypatch)
    assert (ran.code, ran.crash) == (2, ""), ran
    assert told in ran.err.replace("\n", "")


def test_what_a_path_names_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a named pipe"), (tmp_path, "a folder"), (Path("/dev/null"), "a device")):
        with pytest.raises(OSError, match=f"expected a regular file, got {kind}"):
            check_regular(path)
    check_regular(tmp_path / "nothing")


@pytest.mark.parametrize("columns", ["0", "1", "19", "-5", "", "wide", "\u0663\u0663", "99999999999999999999"])
def test_columns_that_are_no_width_are_not_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    plain = {line: run_program(line, tmp_path, monkeypatch).out for line in ("simulate known", "generate --help")}
    for line, expected in plain.items():
        monkeypatch.setenv("COLUMNS", columns)
        ran = run_program(line, tmp_path, monkeypatch)
        assert (ran.code, ran.out) == (0, expected)
    monkeypatch.setenv("COLUMNS", columns)
    show([ResultTable("results", (Column("name"),), [{"name": "adt"}])])
    assert "adt" in capsys.readouterr().out


def test_the_program_ends_in_a_message_where_files_run_out(tmp_path: Path) -> None:
    """A real limit, in a process of its own: whatever fails first, it is a message."""
    import subprocess

    script = (
        "import resource, sys; from underpaint.cli.app import main\n"
        "import underpaint.runtime.pipeline, underpaint.runtime.evaluation.report\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (6, hard))\n"
        f"sys.argv = ['underpaint', 'evaluate', {FOX}, '--resolution', '64', '--methods', 'ar', '--jobs', '2', "
        "'--out', 'out']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "ulimit -n 1024" in done.stderr
