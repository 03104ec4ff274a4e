"""A full disk: every command that writes finds it before the work; one that fills up in the work is told as well."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from tests.cli.killed_commands import PREPARED
from tests.cli.program import Ran, listing, run_program
from tests.models.tiny import save_exportable, save_target, tiny_target
from tests.published.checkpoints import save_llamagen
from tests.published.limits import files_of_at_most
from tests.training.test_textured_world import SETTINGS
from underpaint.artifacts import files as probing
from underpaint.models.vq import VQModel

NO_ROOM = 1024
"""Bytes of a file at most: fewer than a probe of the disk writes."""
SOME_ROOM = 1 << 16
"""As many as a probe writes."""
PROMPT = '"a fox, an owl" --resolution 64'
GENEVAL = '{"tag": "colors", "include": [{"class": "fox", "count": 1}], "prompt": "a woolly fox, an owl"}\n'
DRAWN = "--prompts-count 1 --resolution 64"
STAGES = ("tokenizer", "judge", "sampler", "superres")
RUNS = "trained"
PREDICT = "simulate predict --trace trace.npz --costs costs.json --compare compared/compare.json"
EXPORT = "export c2i.pt --kind llamagen-c2i --heads 2 --grid 4 --out"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    (folder / "verifier.py").write_text("def verify(draft, uniforms):\n    return [], 0\n")
    (folder / "prompts.jsonl").write_text(GENEVAL)
    save_target(folder / "target.pt", tiny_target())
    save_llamagen(folder / "c2i.pt", captions=False)
    save_exportable(folder / RUNS)
    (folder / "costs.json").write_text(
        json.dumps({"format": 3, "verify_ms": [[1, 2.0], [8, 5.0]], "draft_ms": [[1, 0.5], [8, 0.75]]})
    )
    with pytest.MonkeyPatch.context() as patch:
        for place, name, stand_in in PREPARED["synthetic"]():
            patch.setattr(place, name, stand_in)
        for line in (
            "compare --methods ar,eagle2 --prompts-count 1 --resolution 64 --out compared",
            "evaluate --methods ar --jobs 0 --resolution 64 --prompts prompts.jsonl --out evaluated",
            f"{EXPORT} exported",
            f"trace {DRAWN} --prompts-skip 8 --depths 2 --keep 8 --out trace.npz",
        ):
            ran = run_program(line, folder, patch)
            assert ran.code == 0, ran.err
    return folder


def limited(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> Ran:
    with files_of_at_most(count):
        return run_program(line, folder, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        f"generate {PROMPT} --out fox.png",
        f"generate {PROMPT} --method zipar --out new/fox.webp",
        "compare --methods ar --prompts-count 1 --resolution 64 --out x",
        "compare --methods ar --prompts-count 1 --resolution 64 --out x --json figures.json",
        "sweep --vary zipar.window=2 --prompts-count 1 --resolution 64 --out x",
        "trace --prompts-count 1 --resolution 64 --out x.npz",
        "simulate sweep --model flat --policies chain --rules chain --most-images 2 --jobs 1 --out x",
        "certify verifier.py:verify --cases 1",
        "certify verifier.py:verify --cases 1 --json x.json",
        "results rank compared/compare.json --json x.json",
        "costs --export x.json",
        f"evaluate --methods ar --jobs 0 {DRAWN} --out x",
        "metrics write geneval evaluated --prompts prompts.jsonl --out x",
        "report compared --out x.html",
        f"premises {DRAWN} --json x.json",
        "engine exported --backend tensorrt-rtx",
        *(f"train {stage} --steps 1 --out x" for stage in STAGES),
        "train world --hours 1 --out x",
        "export verifier.py --kind vq --out x",
        f"export target --runs {RUNS} --out x",
        f"{PREDICT} --json x.json",
    ],
)
def test_a_full_disk_is_found_before_the_work(files: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    before = listing(files)
    ran = limited(line, files, monkeypatch, NO_ROOM)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.out, ran.err)
    assert listing(files) == before
    assert ran.err.startswith("error: ")
    assert "make room there, or choose another place" in ran.err


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("compare --methods ar,eagle2 --prompts-count 8 --resolution 64 --out x", ["x", "x/drawings.jsonl"]),
        ("trace --prompts-count 4 --resolution 64 --depths 4 --out x.npz", []),
    ],
)
def test_a_disk_that_fills_up_in_the_work_is_told(
    files: Path, small_models: Path, monkeypatch: pytest.MonkeyPatch, line: str, kept: list[str]
) -> None:
    line = f"{line} --models {small_models}"
    before = listing(files)
    ran = limited(line, files, monkeypatch, SOME_ROOM)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.out, ran.err)
    assert "File too large; make room there" in ran.err
    new_paths = sorted(listing(files).keys() - before.keys())
    assert [name for name in new_paths if not name.endswith((".png", ".json"))] == kept
    assert not [name for name in new_paths if name.endswith(".part")]
    assert run_program(line, files, monkeypatch).code == 0


@pytest.mark.parametrize(
    ("line", "prepared", "kept"),
    [
        ("costs --export x.json", "known_curve", ()),
        (f"evaluate --methods ar --jobs 0 {DRAWN} --out jobs", "synthetic", None),
        ("metrics write geneval evaluated --prompts prompts.jsonl --out x", "", ()),
        ("certify verifier.py:verify --cases 1 --json x.json", "", ()),
        ("report compared --out x.html", "synthetic", ()),
        ("results rank compared/compare.json --json x.json", "", ()),
        (f"premises {DRAWN} --no-costs --json x.json", "synthetic", ()),
        (f"generate {PROMPT} --out fox.png --save-tokens", "synthetic", ()),
        (f"compare --methods ar {DRAWN} --out drawn", "synthetic", ("drawn/drawings.jsonl",)),
        (f"trace {DRAWN} --depths 2 --keep 8 --out x.npz", "synthetic", ()),
        ("simulate tables --json x.json", "", ()),
        (
            "simulate sweep --model flat --policies chain --rules chain --most-images 2 --jobs 1 --out x",
            *("", ("x/results.jsonl",)),
        ),
        (f"{EXPORT} x", "", ()),
        (f"export target --runs {RUNS} --out x", "", ()),
        (f"{PREDICT} --json x.json", "", ()),
        ("train world --hours 1 --out x", "tiny_recipes", ()),
        ("engine exported", "no_tensorrt", ()),
    ],
)
def test_a_disk_that_is_full_once_the_work_is_done_is_told(
    files: Path, monkeypatch: pytest.MonkeyPatch, line: str, prepared: str, kept: tuple[str, ...] | None
) -> None:
    """kept: names; None where a log is named after the process."""
    monkeypatch.setattr(probing, "_PROBED", b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(files / "cache"))
    for place, name, stand_in in PREPARED[prepared]():
        monkeypatch.setattr(place, name, stand_in)
    before = listing(files)
    ran = limited(line, files, monkeypatch, 1)
    assert not ran.crash, ran.crash
    assert ran.code == 2, (ran.out, ran.err)
    (error_line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert error_line.count("make room there") == 1
    assert "Errno" not in error_line
    after = listing(files)
    new_files = {name for name in after.keys() - before.keys() if (files / name).is_file()}
    logs = {name for name in new_files if Path(name).match("jobs/drawings-*.jsonl")} if kept is None else set(kept)
    assert new_files <= logs
    assert {name: after[name] for name in before if (files / name).is_file()} == {
        name: state for name, state in before.items() if (files / name).is_file()
    }


def test_a_disk_that_fills_up_in_a_training_keeps_the_last_checkpoint(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe saves after every step; the disk has room for the probe, the log and no checkpoint."""
    for place, name, stand_in in PREPARED["tiny_recipes"]():
        monkeypatch.setattr(place, name, stand_in)
    line = "train judge --steps {} --out x"
    first = limited(line.format(2), tmp_path, monkeypatch, SOME_ROOM)
    assert (first.code, first.crash) == (2, "")
    (error_line,) = [line for line in first.err.splitlines() if line.startswith("error: ")]
    assert "x/checkpoint.pt could not be written" in error_line
    assert "nothing was kept before" in error_line
    assert [name for name in listing(tmp_path) if name != "x"] == []
    assert run_program(line.format(1), tmp_path, monkeypatch).code == 0
    checkpoint = (tmp_path / "x" / "checkpoint.pt").read_bytes()
    assert len(checkpoint) > SOME_ROOM
    again = limited(line.format(3), tmp_path, monkeypatch, SOME_ROOM)
    assert (again.code, again.crash) == (2, "")
    assert "the checkpoint before it is kept" in again.err
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["checkpoint.pt"]
    assert (tmp_path / "x" / "checkpoint.pt").read_bytes() == checkpoint
    done = run_program(line.format(3), tmp_path, monkeypatch)
    assert done.code == 0
    assert "3 steps, finished" in done.out


def test_a_disk_that_fills_up_while_pictures_are_encoded_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is room for the probe, and none for the codes of all training scenes."""
    for place, name, stand_in in PREPARED["tiny_recipes"]():
        monkeypatch.setattr(place, name, stand_in)
    vq = VQModel(SETTINGS.vq)
    saved = {"config": {"kind": "tokenizer", "vq": asdict(vq.config)}, "model": vq.state_dict()}
    torch.save(saved, tmp_path / "tokenizer.pt")
    ran = limited("train superres --tokenizer tokenizer.pt --tokens codes --out x", tmp_path, monkeypatch, SOME_ROOM)
    assert (ran.code, ran.crash) == (2, "")
    (error_line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert "codes/train_64.codes" in error_line
    assert "make room there" in error_line
    assert not (tmp_path / "x" / "checkpoint.pt").exists()
