"""No command overwrites what it reads, or a file of the user's, unless it is asked to."""

import io
import json
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import typer
from PIL import Image

from tests.cli.program import run_program, subcommands
from underpaint.artifacts.origin import GENERATOR_META, kind_of
from underpaint.cli.app import app
from underpaint.cli.outputs import Command, check_replaceable, output_of
from underpaint.runtime.engines.images import encoded

INPUTS = {
    *("--prompts", "--models", "--low", "--figures", "--replay", "--runs", "--trace", "--from", "--costs", "--compare"),
    *("--target", "--drafter", "--api-key-file", "--tokenizer", "--init-from", "--pictures", "--live"),
}
"""Options whose path is read. Every other one names an output."""
OWN = '{"results_version": 1, "kind": "%s"}'
LOG_LINE = '{"format": 3, "hash": "0", "settings": {}}\n'


def command(name: str) -> Any:
    click_command: Any = typer.main.get_command(app)
    for word in name.split():
        click_command = click_command.get_command(None, word)
    return click_command


@pytest.mark.parametrize("name", subcommands())
def test_every_option_with_a_path_is_an_input_or_checked_as_an_output(name: str) -> None:
    assert isinstance(command(name), Command)
    for option in command(name).params:
        if "Path" in str(option.type_descriptor.annotation) and option.opts[0].startswith("-"):
            read = output_of(option) is None
            assert read == bool({*option.opts} & INPUTS) or option.name == "prompts", f"{name} {option.opts}"


OUTPUTS = [
    (name, option.opts[0])
    for name in subcommands()
    for option in command(name).params
    if (found := output_of(option)) is not None and found.file and not found.folder
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for place in ("c", "s", "z"):
        (tmp_path / place).mkdir()
    (tmp_path / "c/compare.json").write_text(OWN % "compare")
    for name in ("drawings.jsonl", "replays.jsonl"):
        (tmp_path / "c" / name).write_text(LOG_LINE)
    (tmp_path / "s/results.jsonl").write_text('{"format": 1, "hash": "0", "settings": {}}\n{"model": "flat"}\n')
    os.link(tmp_path / "c/drawings.jsonl", tmp_path / "linked.json")
    (tmp_path / "symlinked.json").symlink_to(tmp_path / "c/drawings.jsonl")
    (tmp_path / "z/model_index.json").write_text('{"format": 1}')
    (tmp_path / "verifiers.py").write_text("def verify(*given):\n    return 0\n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "a cat"}\n')
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "line",
    [
        "compare --out c --json c/replays.jsonl",
        "compare --out c --json c/drawings.jsonl --overwrite",
        "compare --out c --json linked.json",
        "compare --out c --json symlinked.json --overwrite",
        "simulate sweep --out s --json s/results.jsonl",
        "report c --out c/compare.json",
        "report c --out c/compare.json --overwrite",
        "report c --out c/drawings.jsonl",
        "certify verifiers.py:verify --out verifiers.py",
        "certify verifiers.py:verify --out verifiers.py --overwrite",
        "certify verifiers.py:verify --json verifiers.py",
        "certify verifiers.py:verify --json ./verifiers.py",
        "compare --prompts p.jsonl --json p.jsonl --overwrite",
        "costs --export z/model_index.json",
        "costs --export z/model_index.json --overwrite",
        "compare --out z",
        "generate 'a cat' --out c/compare.json",
        "methods --json notes.json",
        "report c --out notes.json",
        "methods --json ''",
        "methods --json new/",
        "methods --json /",
        "methods --json .",
        "compare --out ''",
        "compare --out /",
    ],
)
def test_what_is_not_to_be_replaced_stays_byte_for_byte(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    before = contents(folder)
    done = run_program(line, folder, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert contents(folder) == before


@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_every_output_of_every_command_spares_a_file_of_the_user(
    name: str, option: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required_arguments = [
        "x" if one.param_type_name == "argument" else f"{one.opts[0]} x"
        for one in command(name).params
        if one.required and one.opts[0] != option and output_of(one) is None
    ]
    before = contents(folder)
    done = run_program(f"{name} {' '.join(required_arguments)} {option} notes.json", folder, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "--overwrite" in done.err
    assert contents(folder) == before


_SWEEP = "simulate sweep --model flat --policies chain --rules chain --most-images 8 --jobs 1"
_COMPARE = "compare --methods ar --prompts-count 1 --resolution 64"


@pytest.mark.parametrize(
    "line",
    [
        f"{_COMPARE} --out new --json new/replays.jsonl",
        f"{_COMPARE} --out new --json new/gallery.png",
        f"{_SWEEP} --out new --json new/results.jsonl",
        f"{_SWEEP} --out new --json new/report.html",
    ],
)
def test_a_name_that_the_run_itself_takes_later_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    before = contents(folder)
    done = run_program(line, folder, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "name two files" in done.err
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("new/pictures/ar/0000-seed0.png", f"{_COMPARE} --out new --save-pictures"),
        ("new/gallery.png", f"{_COMPARE} --out new"),
        ("new/compare.json", f"{_COMPARE} --out new"),
        ("new/evaluate.json", "evaluate --methods ar --prompts-count 1 --resolution 64 --jobs 0 --out new"),
        ("new/report.html", f"{_SWEEP} --out new"),
        ("fox.json", "generate 'a fox left of a panda' --method ar --resolution 64 --out fox.png --save-tokens"),
        ("failing-case.json", "certify gallery:no-residual --cases 2"),
    ],
)
def test_names_that_a_command_chooses_spare_a_file_of_the_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, line: str
) -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text('{"mine": 1}')
    before = contents(folder)
    done = run_program(line, folder, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "--overwrite" in done.err
    assert contents(folder) == before


@pytest.mark.parametrize("line", ["methods --json", "certify rule:point --cases 2 --json"])
def test_results_of_another_command_are_replaced_on_request_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    (folder / "kept.json").write_text(OWN % "compare")
    done = run_program(f"{line} kept.json", folder, monkeypatch)
    assert (done.code, done.crash) == (2, ""), done
    assert "got results of kind 'compare'" in done.err
    assert (folder / "kept.json").read_text() == OWN % "compare"
    if line.startswith("methods"):
        assert run_program(f"{line} kept.json --overwrite", folder, monkeypatch).code == 0


@pytest.mark.parametrize("line", ["methods", "exact chain", "simulate tables"])
def test_the_same_command_twice_replaces_its_own_file(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    for _ in range(2):
        done = run_program(f"{line} --json own.json", folder, monkeypatch)
        assert done.code == 0, done
    assert json.loads((folder / "own.json").read_text())


def test_overwrite_replaces_a_file_of_the_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program("methods --json notes.json --overwrite", folder, monkeypatch).code == 0
    assert "rules" in json.loads((folder / "notes.json").read_text())


def test_the_permission_to_overwrite_ends_with_its_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_program("methods --json new.json --overwrite", folder, monkeypatch).code == 0
    with pytest.raises(ValueError, match="pass --overwrite"):
        check_replaceable("--out", folder / "notes.json")


def opened(path: Path) -> np.ndarray[Any, Any]:
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_the_mark_of_a_picture_changes_no_pixel(tmp_path: Path, form: Literal["PNG", "WEBP"]) -> None:
    pixels = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    stream = io.BytesIO()
    picture = Image.fromarray(pixels)
    picture.save(stream, form, lossless=True)
    path = tmp_path / f"picture.{form.lower()}"
    path.write_bytes(stream.getvalue())
    assert kind_of(path) is None
    before = opened(path)
    path.write_bytes(encoded(pixels, form))
    assert kind_of(path) == form.lower()
    np.testing.assert_array_equal(opened(path), before)


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", "null", '{"results_version": 1, "kind": "else"}', "\x00"])
def test_files_of_others_are_of_no_kind(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    assert kind_of(path) is None


def test_pages_are_known_by_their_generator(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(f"<!doctype html><head>{GENERATOR_META}</head>")
    assert kind_of(path) == "html"
