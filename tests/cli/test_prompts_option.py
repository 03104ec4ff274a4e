"""`--prompts FILE`: which of a file's prompts are drawn, by models of words and of classes, and what is refused."""

import json
import os
from threading import Thread

import pytest
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.artifacts.model_index import ModelIndex
from underpaint.cli.app import app

LINES = "a woolly fox, an owl\nan oil painting of a castle\na stone whale, an owl\na stone panda, an owl\n"


def class_models(side):
    return SyntheticPipeline(judge=None, index=ModelIndex({}, (), condition="class"))


@pytest.fixture(autouse=True)
def opened_models(monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline())


def compare(folder, *arguments):
    command = ("compare", "--methods", "ar", "--out", folder / "out", *arguments)
    return CliRunner().invoke(app, [str(one) for one in command])


def settings_of(folder):
    return json.loads((folder / "out" / "compare.json").read_text())["settings"]


def written(folder, text, name="mine.txt"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_unknown_words_are_refused_with_their_number_or_skipped(tmp_path):
    path = written(tmp_path, LINES)
    refused = compare(tmp_path, "--prompts", path)
    assert refused.exit_code == 2
    assert "1 of 4 prompts have words that this model does not know" in refused.stderr
    assert "--skip-unknown draws the rest" in refused.stderr
    assert not (tmp_path / "out").exists()
    result = compare(tmp_path, "--prompts", path, "--skip-unknown")
    assert result.exit_code == 0, result.output
    assert "1 of 4 prompts are left out; the first, 'an oil painting of a castle' (line 2)" in result.stderr
    settings = settings_of(tmp_path)
    assert [prompt.split(",")[0] for prompt in settings["prompts"]] == [
        "a woolly fox left of a glossy owl",
        "a stone whale left of a glossy owl",
        "a stone panda left of a glossy owl",
    ]
    source = settings["prompts_file"]
    assert (source["name"], source["form"], source["drawn"], source["unknown"]) == ("mine.txt", "text", 3, 1)
    assert len(source["sha256"]) == 64


def test_count_and_skip_are_of_the_file(tmp_path):
    path = written(tmp_path, LINES)
    assert compare(tmp_path, "--prompts", path, "--prompts-skip", 2, "--prompts-count", 1).exit_code == 0
    assert [prompt.split(",")[0] for prompt in settings_of(tmp_path)["prompts"]] == [
        "a stone whale left of a glossy owl"
    ]


def test_models_of_classes_take_imagenets_by_number(tmp_path, monkeypatch):
    replace_models(monkeypatch, class_models)
    classes = {"0": ["n01440764", "tench"], "207": ["n02099601", "golden_retriever"]}
    path = written(tmp_path, json.dumps(classes), "imagenet_class_index.json")
    result = compare(tmp_path, "--prompts", path)
    assert result.exit_code == 0, result.output
    assert settings_of(tmp_path)["prompts"] == ["0", "207"]


def test_models_of_classes_have_no_captions(tmp_path, monkeypatch):
    replace_models(monkeypatch, class_models)
    refused = compare(tmp_path, "--prompts", written(tmp_path, LINES))
    assert refused.exit_code == 2
    assert "4 of 4 prompts" in refused.stderr
    assert "expected a class" in refused.stderr


def test_prompts_that_are_one_to_the_model_are_refused_or_drawn_once(tmp_path):
    path = written(tmp_path, "a woolly fox, an owl\na Woolly  fox, an owl\n")
    refused = compare(tmp_path, "--prompts", path)
    assert refused.exit_code == 2
    assert "(line 1) and 'a Woolly  fox, an owl' (line 2) are one prompt to this model" in refused.stderr
    assert compare(tmp_path, "--prompts", path, "--skip-repeated").exit_code == 0
    assert len(settings_of(tmp_path)["prompts"]) == 1


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("none.txt", None, [], "there is no such file of prompts"),
        ("parti.tsv", b"Text\tCategory\na fox\tx\n", [], "expected a column 'prompt'"),
        ("latin.txt", "a caf\u00e9".encode("latin-1"), [], "expected UTF-8, byte 5"),
        ("twice.txt", b"a fox\na cat\na fox\n", [], "pass --skip-repeated"),
        ("mine.txt", b"a fox\n", ["--prompts-form", "part"], "did you mean 'parti'"),
        ("mine.txt", b"a fox, an owl\n", ["--prompts-count", "2"], "it has 1 prompts"),
        ("mine.txt", b"a fox\n", ["a panda"], "or prompts on the command line, got both"),
    ],
)
def test_files_that_cannot_be_drawn_are_refused(tmp_path, name, content, options, message):
    path = tmp_path / name if content is None else written(tmp_path, content, name)
    refused = compare(tmp_path, *options, "--prompts", path)
    assert refused.exit_code == 2, refused.output
    assert message in refused.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [["--skip-unknown"], ["--skip-repeated"], ["--prompts-form", "parti"]])
def test_options_of_a_file_need_one(tmp_path, options):
    refused = compare(tmp_path, *options)
    assert refused.exit_code == 2
    assert "need --prompts FILE; add it" in refused.stderr


def test_no_more_prompts_are_chosen_than_there_are(tmp_path):
    refused = compare(tmp_path, "--prompts-count", 10_001)
    assert refused.exit_code == 2
    assert "at most 10,000 to be skipped and chosen together, got 0 and 10,001" in refused.stderr


def generated(folder, *arguments):
    command = ("generate", "--method", "ar", *arguments)
    return CliRunner().invoke(app, [str(one) for one in command])


@pytest.mark.parametrize("lines", ["a woolly fox, an owl\n", "a woolly fox, an owl\na Woolly  fox, an owl\n"])
def test_one_prompt_that_is_left_of_a_file_goes_into_a_folder_or_a_picture(tmp_path, lines):
    path = written(tmp_path, lines)
    options = ("--prompts", path, "--skip-repeated")
    into_folder = generated(tmp_path, *options, "--out", tmp_path / "folder")
    assert into_folder.exit_code == 0, into_folder.output
    (picture,) = (tmp_path / "folder").iterdir()
    assert picture.name.startswith("0000-a-woolly-fox")
    as_picture = generated(tmp_path, *options, "--out", tmp_path / "one.png")
    assert as_picture.exit_code == 0, as_picture.output
    assert (tmp_path / "one.png").read_bytes() == picture.read_bytes()
    chosen = generated(tmp_path, "--prompts-count", 1, "--out", tmp_path / "chosen")
    assert chosen.exit_code == 0, chosen.output
    assert len(list((tmp_path / "chosen").iterdir())) == 1
    for name in ("one.jpg", "one.gif"):
        refused = generated(tmp_path, *options, "--out", tmp_path / name)
        assert refused.exit_code == 2
        assert "expected a name that ends in .png, .webp" in refused.stderr
    refused = generated(tmp_path, *options, "--seeds", 2, "--out", tmp_path / "one.png")
    assert refused.exit_code == 2
    assert "expected a folder for several pictures" in refused.stderr


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_prompts_come_through_pipes(tmp_path, command):
    """As `--prompts /dev/stdin` and `--prompts <(head -1 FILE)` give them."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=("a woolly fox, an owl\n",), daemon=True)
    writer.start()
    options = ("--prompts", pipe, "--out", tmp_path / "out")
    result = generated(tmp_path, *options) if command == "generate" else compare(tmp_path, "--prompts", pipe)
    assert result.exit_code == 0, result.output
    writer.join(60)
    assert not writer.is_alive()
    if command == "compare":
        assert settings_of(tmp_path)["prompts_file"]["name"] == "a pipe"


def test_several_models_share_one_pipe(tmp_path, monkeypatch):
    replace_models(monkeypatch, lambda side: SyntheticPipeline(resolution=side or 128, name=f"target{side}"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_text, args=("a woolly fox, an owl\n",), daemon=True)
    writer.start()
    command = ("evaluate", "--prompts", pipe, "--methods", "ar", "--jobs", 0, "--out", tmp_path / "out")
    folders = ("--models", f"{tmp_path}@64", "--models", f"{tmp_path}@128")
    result = CliRunner().invoke(app, [str(one) for one in (*command, *folders)])
    assert result.exit_code == 0, result.output
    writer.join(60)
    assert not writer.is_alive()
