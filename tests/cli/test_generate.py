"""`generate` of several pictures, `prompts`, and folders that settings name."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.cli.app import app
from underpaint.cli.generate import _slug
from underpaint.zoo.textured_prompts import THINGS, parse_textured


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    pipeline = SyntheticPipeline()
    replace_models(monkeypatch, lambda resolution: pipeline)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_several_prompts_and_seeds_go_into_a_folder_with_their_tokens(here: Path) -> None:
    (here / "prompts.txt").write_text("a fox, an owl\na panda above an owl\n")
    done = called("generate", "--prompts", "prompts.txt", "--seeds", 2, "--seed", 5, "--out", "out", "--save-tokens")
    assert done.exit_code == 0, done.output
    pictures = sorted((here / "out").glob("*.png"))
    assert [path.name[:4] + path.stem[-6:] for path in pictures] == [
        "0000-seed5",
        "0000-seed6",
        "0001-seed5",
        "0001-seed6",
    ]
    assert "panda-above" in pictures[2].name
    for path in pictures:
        record = json.loads(path.with_suffix(".json").read_text())
        assert path.name.endswith(f"seed{record['seed']}.png")
        alone = called("generate", record["prompt"], "--seed", record["seed"], "--out", "alone.png", "--save-tokens")
        assert alone.exit_code == 0, alone.output
        assert json.loads((here / "alone.json").read_text())["tokens"] == record["tokens"]
        assert np.array_equal(np.asarray(Image.open("alone.png")), np.asarray(Image.open(path)))


def test_tokens_that_cannot_be_written_are_told_before_a_picture_is_drawn(here: Path) -> None:
    (here / "alone.json").mkdir()
    refused = called("generate", "a fox, an owl", "--out", "alone.png", "--save-tokens")
    assert refused.exit_code == 2
    assert "cannot write alone.json: it is a folder" in refused.stderr
    assert not (here / "alone.png").exists()


def test_default_files_tell_settings_apart(here: Path) -> None:
    for options in ([], ["--temperature", "0"], ["--method", "eagle2"], []):
        assert called("generate", "a fox, an owl", *options).exit_code == 0
    assert len(list(here.glob("runs/generate/*/0000-*-seed0.png"))) == 3


def test_default_files_tell_prompts_apart_that_their_names_cannot_hold() -> None:
    long = "a woolly fox left of an outlined pumpkin, with a honeybee, on"
    names = [_slug(f"{long} {ground} foliage") for ground in ("green", "ochre")] + [_slug("狐狸"), _slug("猫")]
    assert len(set(names)) == 4
    assert all(len(name) <= 60 and name.isascii() for name in names)
    assert _slug("a fox, an owl") == "a-fox-an-owl"
    assert len({_slug(text) for text in ("A fox!", "a fox", "a fox?", "")}) == 4


def test_two_comparisons_in_a_row_do_not_refuse_each_other(here: Path) -> None:
    for options in (["--temperature", "0"], ["--temperature", "1"], ["--temperature", "1"]):
        done = called("compare", "--methods", "eagle2", "--prompts-count", 1, *options)
        assert done.exit_code == 0, done.output
    assert len(list(here.glob("runs/compare/*/compare.json"))) == 2
    result = called("compare", "--methods", "eagle2", "--prompts-count", 1, "--json", "-")
    assert json.loads(result.stdout)["settings"]["temperature"] == 1.0


def test_figures_on_standard_output_stand_there_alone(here: Path) -> None:
    result = called("compare", "--methods", "eagle2", "--prompts-count", 1, "--save-pictures", "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["kind"] == "compare"
    (folder,) = here.glob("runs/compare/*/pictures")
    assert str(folder.relative_to(here)) in result.stderr
    assert len(list(folder.glob("*/*.png"))) == 2


def test_a_sweep_takes_the_same_options(here: Path) -> None:
    results = []
    for skip in (0, 1):
        done = called(
            *("sweep", "--vary", "lantern.delta=0.1,0.3", "--prompts-count", 1, "--prompts-skip", skip, "--json", "-")
        )
        assert done.exit_code == 0, done.output
        results.append(json.loads(done.stdout))
    assert results[0]["settings"]["prompts"] != results[1]["settings"]["prompts"]
    assert [row["variant_of"] for row in results[0]["rows"]] == ["ar", "lantern", "lantern"]
    assert len(list(here.glob("runs/sweep/*/pareto.png"))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a prompt"),
        (["a fox, an owl", "--prompts", "absent.txt"], "or prompts on the command line, got both; leave one out"),
        (["--prompts", "absent.txt"], "absent.txt"),
        (["a fox, an owl", "a panda, an owl", "--out", "one.png"], "expected a folder for several pictures"),
        (["a fox, an owl", "--out", "folder"], "expected a name that ends in .png"),
        (["a fox, an owl", "a pander, an owl"], "pander"),
    ],
)
def test_what_cannot_be_drawn_is_said_before_anything_is_written(
    here: Path, arguments: list[str], message: str
) -> None:
    done = called("generate", *arguments)
    assert (done.exit_code, list(here.iterdir())) == (2, [])
    assert message in done.output


def test_the_vocabulary_and_random_prompts() -> None:
    words = {row["slot"]: row for row in json.loads(called("prompts", "--format", "json").stdout)}
    assert next(iter(THINGS)) in " ".join(row["words"] for row in words.values())
    prompts = called("prompts", "--random", 5, "--seed", 1).stdout.splitlines()
    assert len(prompts) == 5
    for text in prompts:
        assert parse_textured(text).caption() == text
    assert called("prompts", "--random", 5, "--seed", 1).stdout.splitlines() == prompts
    assert "woolly" in called("prompts").stdout
