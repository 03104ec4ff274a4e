"""What a newcomer meets in the first hour: defaults, readable objects, and what to do next."""

import builtins
import dataclasses
import io
import json
import pickle

import pytest
from PIL import Image

import underpaint
from tests.cli.program import run_program
from underpaint.algos.accept import RULES
from underpaint.runtime.evaluation.pareto import _says_something
from underpaint.runtime.evaluation.report_row import ReportRow, above_floor
from underpaint.runtime.methods import DEFAULT_METHOD
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.page.figures import COLUMNS, acceptance_maps

PROMPT = "a woolly fox left of an outlined pumpkin"


@pytest.fixture(scope="module")
def pipeline():
    return underpaint.open_pipeline(resolution=64)


@pytest.fixture(scope="module")
def report(pipeline):
    return underpaint.compare(pipeline, ["jacobi-lookup", "zipar"], [PROMPT])


@pytest.fixture
def fewer_rules():
    before = {spec.name: spec for spec in RULES}
    yield
    RULES._specs.clear()
    RULES._specs.update(before)


def mine(**changes):
    return dataclasses.replace(underpaint.RULES["point"], name="mine", **changes)


def test_a_rule_of_ones_own_is_replaced_where_asked(fewer_rules):
    underpaint.register_rule(mine())
    with pytest.raises(ValueError, match="'mine' is registered already; pass replace=True"):
        underpaint.register_rule(mine(source="second"))
    underpaint.register_rule(mine(source="third"), replace=True)
    assert underpaint.RULES["mine"].source == "third"


@pytest.mark.parametrize("where", [(builtins, "__IPYTHON__"), ("sys", "ps1")])
def test_a_cell_that_defines_a_rule_can_be_run_again(fewer_rules, monkeypatch, where):
    import sys

    monkeypatch.setattr(sys if where[0] == "sys" else where[0], where[1], True, raising=False)
    for source in ("first", "second"):
        underpaint.register_rule(mine(source=source))
    assert underpaint.RULES["mine"].source == "second"


@pytest.mark.parametrize("replace", [True, None])
def test_a_rule_of_the_project_is_never_replaced(fewer_rules, monkeypatch, replace):
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    before = underpaint.RULES["chain"]
    with pytest.raises(ValueError, match="'chain' is registered already; choose another name"):
        underpaint.register_rule(dataclasses.replace(mine(), name="chain"), replace=replace)
    assert underpaint.RULES["chain"] is before


def test_the_default_method_is_lossless_and_the_relaxed_picture_of_the_tutorial_differs(tmp_path, monkeypatch):
    tables = underpaint.open_pipeline(resolution=64).tables
    assert build_method(DEFAULT_METHOD, resolve(DEFAULT_METHOD, 1.0), tables).lossless
    for more in ("", "--method adt+lantern "):
        done = run_program(f'generate "{PROMPT}" --resolution 64 {more}--out {len(more)}.png', tmp_path, monkeypatch)
        assert done.code == 0, done.err
    first, second = sorted(path.read_bytes() for path in tmp_path.glob("*.png"))
    assert first != second


def test_a_pipeline_and_a_report_are_readable(pipeline, report):
    text = repr(pipeline)
    assert len(text) < 300
    assert all(part in text for part in ("64 px", "target64", "drafter64", "4,096 codes", "cpu"))
    lines = repr(report).splitlines()
    assert lines[0].split()[:2] == ["method", "lossless"]
    assert [line.split()[:2] for line in lines[1:]] == [["ar", "yes"], ["jacobi-lookup", "yes"], ["zipar", "no"]]


def test_a_notebook_shows_a_drawing_as_its_picture(pipeline):
    drawing = underpaint.draw(pipeline, PROMPT, temperature=0)
    image = Image.open(io.BytesIO(drawing._repr_png_()))
    assert image.size == (64, 64)
    assert (pipeline.picture(drawing.tokens_array()) == image).all()
    assert len(repr(drawing)) < 300
    assert "by jacobi-lookup, seed 0: 64 tokens" in repr(drawing)
    copied = pickle.loads(pickle.dumps(drawing))
    assert copied == drawing
    assert drawing == copied
    assert hash(copied) == hash(drawing)
    assert dataclasses.asdict(copied) == dataclasses.asdict(drawing)


def test_maps_of_acceptance_show_windows_and_leave_out_what_drafts_nothing(report):
    rows = [dataclasses.asdict(row) for row in report.rows]
    shares = {name: cells.tolist() for name, cells in report.acceptance.items()}
    maps = [one.method for one in acceptance_maps(shares, rows)]
    assert "jacobi-lookup" in maps
    assert "zipar" not in maps
    assert report.acceptance["jacobi-lookup"].any()


@pytest.mark.parametrize(
    ("distance", "floor", "shown"), [(3.0, 2.0, True), (2.0, 2.0, False), (1.0, 2.0, False), (1.0, None, False)]
)
def test_a_frechet_distance_is_shown_above_its_floor_alone(report, distance, floor, shown):
    assert above_floor(distance, floor) == shown
    row: ReportRow = dataclasses.replace(report.rows[1], frechet_distance=distance, frechet_floor=floor)
    assert _says_something(row, "frechet_distance") == shown
    column = next(one for one in COLUMNS if one.field == "frechet_distance")
    assert column.value(dataclasses.asdict(row)) == (distance if shown else None)


def test_exact_says_what_it_ran_and_repeats_no_row(tmp_path, monkeypatch):
    done = run_program("exact lantern", tmp_path, monkeypatch)
    assert "settings                             k=2, delta=0.1, residual=paper" in done.out
    assert "--model flat                         flat distributions, as of image tokens" in done.out
    assert "paper, standard" in done.out
    assert json.loads(run_program("exact lantern --json -", tmp_path, monkeypatch).out)["residuals"].keys() == {
        "paper",
        "standard",
    }
    changed = run_program("exact lantern --set delta=0.25 --model far", tmp_path, monkeypatch)
    assert "delta=0.25" in changed.out
    assert "knows nothing of the target" in changed.out


def test_methods_begins_with_what_each_method_is(tmp_path, monkeypatch):
    done = run_program("methods", tmp_path, monkeypatch)
    assert done.out.splitlines()[0].strip() == "methods"
    assert "plain autoregression" in done.out[:1200]
    assert "total_tokens=" not in done.out
    for line in ("methods --settings", "methods --preset paper"):
        assert "total_tokens=" in run_program(line, tmp_path, monkeypatch).out


@pytest.mark.parametrize(
    ("line", "then"),
    [
        (
            "compare --methods zipar --resolution 64 --prompts-count 1 --no-likelihood --out 'a run'",
            "underpaint report 'a run'",
        ),
        (
            "compare --methods zipar --resolution 64 --prompts-count 1 --no-likelihood --out 'a run' --json 'a.json'",
            "underpaint report 'a run' --figures a.json",
        ),
        ("report 'a run'", "open a run/report.html in a browser"),
        ("sweep --resolution 64 --prompts-count 1 --vary zipar.window=1,2 --out s", "open s/pareto.png"),
        (
            "simulate sweep --model field --policies chain --rules chain --most-images 8 --out m",
            "open m/report.html in a browser",
        ),
        ("trace --resolution 64 --prompts-count 1 --out t.npz", "underpaint advise t.npz"),
    ],
)
def test_commands_that_write_files_say_what_to_do_next(tmp_path, monkeypatch, line, then):
    monkeypatch.setattr("underpaint.cli.costs._curve", lambda *_, **__: None)
    if line.startswith("report"):  # of a comparison, whichever tests ran in this process before
        compare = "compare --methods zipar --resolution 64 --prompts-count 1 --no-likelihood --out 'a run'"
        assert run_program(compare, tmp_path, monkeypatch).code == 0
    done = run_program(line, tmp_path, monkeypatch)
    assert done.code == 0, done.err + done.crash
    assert f"next: {then}" in done.out
