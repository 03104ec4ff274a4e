import io
import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.cli.synthetic_pipeline import SyntheticPipeline, replace_models
from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.app import app
from underpaint.runtime.evaluation import drawer
from underpaint.runtime.methods.registry import METHODS

PROMPT = "a woolly fox left of an owl"
FEW = ["--methods", "eagle2,lantern", "--prompts-count", "2", "--resolution", "64"]
NARROW = {"mulo-islands": "draft_window=2", "zipar": "window=2", "zipar-adaptive": "window=2"}
"""The low grid of the synthetic pipeline is 2 x 2."""


@pytest.fixture(autouse=True)
def opened_models(monkeypatch):
    opened = []

    def made(side):
        opened.append(side)
        return SyntheticPipeline(side or 128)

    replace_models(monkeypatch, made)
    return opened


def called(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


def refused(result, message):
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_generate_writes_the_same_picture_every_time(tmp_path):
    pictures = []
    for name in ("one.png", "two.png", "three.webp"):
        result = called("generate", PROMPT, "--out", tmp_path / name, "--seed", 3, "--resolution", 64)
        assert result.exit_code == 0, result.output
        assert "tokens per target pass" in result.stdout
        pictures.append(np.asarray(Image.open(tmp_path / name).convert("RGB")))
    assert pictures[0].shape == (64, 64, 3)
    np.testing.assert_array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(pictures[0], pictures[2])
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize("method", [one.name for one in METHODS])
def test_generate_draws_by_every_method(tmp_path, method, temperature):
    out = tmp_path / "picture.png"
    narrow = ("--set", NARROW[method]) if method in NARROW else ()
    result = called("generate", PROMPT, "--method", method, "--temperature", temperature, *narrow, "--out", out)
    assert result.exit_code == 0, result.output
    Image.open(io.BytesIO(out.read_bytes())).verify()


def test_generate_takes_another_rule_and_settings(tmp_path):
    out = tmp_path / "picture.png"
    result = called(
        *("generate", PROMPT, "--method", "eagle2", "--rule", "lantern", "--set", "delta=0.3", "--set", "depth=2"),
        *("--out", out),
    )
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "expected a prompt that names two things"),
        (["a woolly foxx and an owl"], "unknown word 'foxx'; did you mean 'fox'"),
        ([PROMPT, "--method", "eagel2"], "did you mean 'eagle2'"),
        ([PROMPT, "--rule", "lantem"], "did you mean 'lantern'"),
        ([PROMPT, "--method", "eagle2", "--rule", "without_replacement"], "covers without_replacement trees"),
        ([PROMPT, "--method", "eagle1", "--rule", "block"], "covers iid trees"),
        ([PROMPT, "--temperature", "-0.5"], "temperature must be >= 0"),
        ([PROMPT, "--temperature", "nan"], "'nan'"),
        ([PROMPT, "--top-p", "0"], "top_p must be in [1e-06, 1]"),
        ([PROMPT, "--method", "adt", "--set", "betta=1"], "did you mean 'beta'"),
        ([PROMPT, "--method", "adt+lantern", "--set", "delta=7"], "delta must be in [0, 1]"),
        ([PROMPT, "--seed", "-1"], "--seed"),
        ([PROMPT, "--method", "mulo", "--set", "tau=nan"], "tau must be at least 0, got nan"),
        ([PROMPT, "--method", "mulo", "--set", "tau=high"], "setting 'tau' is a number"),
        ([PROMPT, "--method", "mulo", "--set", "radius=4"], "radius: expected 0..3"),
        ([PROMPT, "--method", "mulo", "--set", "rows=3"], "rows: expected 1..2"),
        ([PROMPT, "--method", "mulo", "--rule", "lantem"], "one of pooled, lantern, exact"),
        ([PROMPT, "--method", "zipar", "--set", "window=-1"], "window must be at least 1, got -1"),
        ([PROMPT, "--method", "zipar", "--set", "window=5"], "window: expected 1..4"),
        ([PROMPT, "--preset", "papers"], "expected one of tuned, paper or eagle-code, got 'papers'"),
    ],
)
def test_generate_refuses_bad_input_before_any_work(tmp_path, arguments, message):
    out = tmp_path / "picture.png"
    refused(called("generate", *arguments, "--out", out), message)
    assert list(tmp_path.iterdir()) == []


def test_generate_refuses_a_place_that_cannot_be_written(tmp_path, opened_models):
    (tmp_path / "file").write_text("in the way")
    refused(called("generate", PROMPT, "--out", tmp_path / "file" / "picture.png"), "is not a folder")
    refused(called("generate", PROMPT, "--out", tmp_path / "picture.gif"), "ends in .png")
    refused(called("generate", PROMPT, "--out", "/proc/picture.png"), "cannot write into /proc")
    assert opened_models == []


@pytest.mark.parametrize("command", ["generate", "compare"])
@pytest.mark.parametrize("error", [ManifestError("target: expected sha256 ab, got cd"), OSError("no such model")])
def test_models_that_do_not_open_are_bad_input(tmp_path, monkeypatch, command, error):
    def broken(side):
        raise error

    replace_models(monkeypatch, broken)
    out = tmp_path / "out" / "picture.png" if command == "generate" else tmp_path / "out"
    refused(called(command, PROMPT, "--out", out), str(error))
    assert list(tmp_path.iterdir()) == []


def test_compare_writes_figures_and_pictures(tmp_path):
    out, figures = tmp_path / "out", tmp_path / "figures.json"
    result = called("compare", *FEW, "--temperature", 0, "--out", out, "--json", figures)
    assert result.exit_code == 0, result.output
    plain = json.loads(figures.read_text())
    assert [row["method"] for row in plain["rows"]] == ["ar", "eagle2", "lantern"]
    assert plain["rows"][1]["identical_to_ar"] is True
    assert plain["settings"]["temperature"] == 0
    assert plain["settings"]["guidance"] == 2.0
    assert set(plain) >= {"command", "machine", "model"}
    assert plain["rows"][1]["accuracy_over_ar"] == plain["rows"][1]["accuracy_over_ar_high"] == 0.0
    assert {path.name for path in out.iterdir()} == {"gallery.png", "drawings.jsonl"}
    for expected in ("eagle2", "1.00x", str(figures), str(out / "gallery.png")):
        assert expected in result.stdout


def test_compare_reports_on_other_prompts_than_settings_were_tuned_on(tmp_path):
    prompts = []
    for skipped in (0, 2):
        out = tmp_path / str(skipped)
        assert called("compare", *FEW, "--prompts-skip", skipped, "--out", out).exit_code == 0
        prompts.append(set(json.loads((out / "compare.json").read_text())["settings"]["prompts"]))
    assert [len(one) for one in prompts] == [2, 2]
    assert not prompts[0] & prompts[1]


def test_compare_of_given_prompts_with_a_setting_of_one_method(tmp_path):
    result = called(
        *("compare", PROMPT, "a panda and an owl", "--methods", "ar,adt", "--set", "adt.beta=0.25", "--seeds", 2),
        *("--out", tmp_path),
    )
    assert result.exit_code == 0, result.output
    plain = json.loads((tmp_path / "compare.json").read_text())
    assert plain["settings"]["methods"]["adt"]["policy_settings"]["beta"] == 0.25
    assert len(plain["settings"]["prompts"]) == 2
    assert plain["rows"][1]["images"] == 4


def test_compare_stops_on_ctrl_c_and_the_same_command_goes_on(tmp_path, monkeypatch):
    command = ("compare", *FEW, "--out", tmp_path)
    real = drawer.draw
    drawings = []

    def stopping(*arguments):
        drawings.append(real(*arguments))
        if len(drawings) == 6:  # each of three methods warms up
            raise KeyboardInterrupt
        return drawings[-1]

    monkeypatch.setattr(drawer, "draw", stopping)
    stopped = called(*command)
    assert stopped.exit_code == 130
    assert "2 of 6 drawings are done; the same command continues" in stopped.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["drawings.jsonl"]
    monkeypatch.setattr(drawer, "draw", real)
    before = (tmp_path / "drawings.jsonl").read_text()
    assert called(*command).exit_code == 0
    assert (tmp_path / "drawings.jsonl").read_text().startswith(before)
    assert (tmp_path / "gallery.png").exists()


def test_another_compare_in_the_folder_is_refused_unless_fresh(tmp_path):
    assert called("compare", *FEW, "--out", tmp_path).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = ("compare", *FEW, "--temperature", "0.5", "--out", tmp_path)
    refused(called(*other), "differs in temperature")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert called(*other, "--fresh").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "eagle2,adtt"], "did you mean 'adt'"),
        (["--methods", "eagle2,eagle2"], "eagle2 is named twice"),
        (["--temperature", "-1"], "temperature must be >= 0"),
        (["--preset", "best"], "expected one of tuned, paper or eagle-code, got 'best'"),
        (["--set", "beta=1"], "expected method.name=value"),
        (["--set", "adt.betta=1"], "did you mean 'beta'"),
        (["a panda and an owl", "--prompts-count", "3"], "leave the prompts out"),
        (["a panda and an owl", "--prompts-skip", "3"], "leave the prompts out"),
        (["a pandda and an owl"], "did you mean 'panda'"),
        (["a panda and an owl", "a panda and an owl"], "is named twice"),
        (["--json", "/proc/figures.json"], "cannot write into /proc"),
        (["--methods", "roofline", "--set", "roofline.costs=absent.json"], "absent.json"),
    ],
)
def test_compare_refuses_bad_input_before_any_work(tmp_path, arguments, message):
    out = tmp_path / "out"
    refused(called("compare", *arguments, "--out", out), message)
    assert not out.exists()


def test_compare_refuses_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(called("compare", *FEW, "--out", tmp_path / "file"), "is not a folder")
    refused(called("compare", *FEW, "--out", "/proc/here"), "cannot write into /proc/here")


def test_methods_lists_every_registered_name_with_its_promise():
    result = called("methods", "--json", "-")
    assert result.exit_code == 0
    listing = json.loads(result.stdout)
    assert [one["name"] for one in listing["methods"]] == [one.name for one in METHODS]
    assert [one["name"] for one in listing["policies"]] == [one.name for one in POLICIES]
    assert [one["name"] for one in listing["rules"]] == [one.name for one in RULES]
    assert all(one["promise"] in ("lossless", "bounded", "unbounded") and one["source"] for one in listing["rules"])
    assert all(one["source"] for one in listing["policies"])
    output = called("methods").stdout
    assert all(one.name in output for one in METHODS)


def test_distribution_prints_exact_figures():
    result = called("exact", "without_replacement", "--model", "peaked", "--json", "-")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["promise"] == "lossless"
    assert figures["total_variation"] < 1e-12
    assert figures["transport_gap"] > -1e-12
    relaxed = json.loads(called("exact", "lantern", "--set", "delta=0.3", "--policy", "eagle2", "--json", "-").stdout)
    assert relaxed["settings"]["delta"] == 0.3
    assert relaxed["total_variation"] > 1e-6
    assert "total variation" in called("exact", "point").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pont"], "did you mean 'point'"),
        (["point", "--model", "flatt"], "did you mean 'flat'"),
        (["point", "--policy", "chain"], "covers top_k trees"),
        (["point", "--policy", "eagle2", "--set-policy", "dept=3"], "did you mean 'depth'"),
        (["point", "--set-policy", "depth=3"], "needs --policy"),
        (["lantern", "--set", "delta=3"], "delta must be in [0, 1]"),
        (["point", "--max-nodes", "1"], "at least 2"),
    ],
)
def test_distribution_refuses_bad_input(arguments, message):
    refused(called("exact", *arguments), message)


def test_help_explains_itself():
    for command in ([], ["generate"], ["compare"], ["methods"], ["exact"], ["train"], ["export"]):
        result = called(*command, "--help")
        assert result.exit_code == 0, result.output
        assert "usage:" in result.output.lower()
