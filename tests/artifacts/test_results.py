"""Files of results: read as the schema says, brought up, merged, and told apart."""

import copy
import json
from pathlib import Path

import pytest

from underpaint.artifacts.results import (
    VERSION,
    ResultsError,
    fingerprint,
    merged,
    read_results,
    results_text,
    schema,
    validate,
)
from underpaint.runtime.protocol.tables import ranked, sides_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
RECORDED = [
    *RESULTS.glob("textured-compare-128-t*.json"),
    RESULTS / "textured-quality-128-t1.json",
]


def compared(**changed):
    row = {
        "method": "ar",
        "lossless": True,
        "speedup": 1.0,
        "target_nfe": 256,
        "tokens_per_cycle": 1.0,
        "images": 4,
    }
    return {
        "results_version": VERSION,
        "kind": "compare",
        "command": "underpaint compare",
        "machine": {"processor": "one", "cores": 2},
        "model": {"target": "target128", "engine": "onnxruntime", "sha256": {"target": "ab"}},
        "settings": {"temperature": 1.0},
        "rows": [row, {**row, "method": "adt", "speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6}],
        **changed,
    }


def written(folder, values, name="one.json"):
    path = folder / name
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return path


def test_results_as_the_schema_says_are_read(tmp_path):
    assert read_results(written(tmp_path, compared())) == compared()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_comparisons_are_read(path, tmp_path):
    results = read_results(path)
    assert results["kind"] == ("sweep" if "frontier" in path.stem else "compare")
    assert max(row["speedup"] for row in ranked(sides_of([("a", results)]))) >= 1.0
    without = {name: value for name, value in results.items() if name not in ("results_version", "kind")}
    with pytest.raises(ResultsError, match="got a file without 'results_version'"):
        read_results(written(tmp_path, without))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "expected a JSON object, got list"),
        ("{}", "without 'results_version'"),
        (compared(results_version=VERSION + 1), "install a newer underpaint"),
        (compared(kind="comparison"), "kind: expected one of compare"),
        (compared(rows=[{"method": "ar"}]), r"rows\[0\]: 'lossless' is missing"),
        (compared(machine={}), "machine: 'processor' is missing"),
        (compared(settings=3), "settings: expected object, got 3"),
        (compared(model={"target": "a", "engine": "b", "sha256": {"a": 1}}), "model.sha256.a: expected string"),
    ],
)
def test_other_files_are_refused(tmp_path, values, message):
    with pytest.raises(ResultsError, match=message):
        read_results(written(tmp_path, values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [{**compared()["rows"][0], "target_nfe": 3}]}, "3 target passes of 1 tokens do not draw 256 cells"),
        ({"cost_curve": {}}, "cost_curve: expected fingerprint and verify_ms, got nothing"),
        ({"kind": "sweep"}, "'ar': expected variant_of in a row of a sweep"),
    ],
)
def test_figures_that_contradict_the_model_are_refused(tmp_path, change, message):
    model = {**compared()["model"], "grid": [16, 16]}
    with pytest.raises(ResultsError, match=message):
        read_results(written(tmp_path, compared(model=model, **change)))
    assert read_results(written(tmp_path, compared(model=model)))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ResultsError, match="there is no such file"):
        read_results(tmp_path / "none.json")


def test_other_versions_say_what_to_do(tmp_path):
    for version, todo in ((VERSION + 1, "install a newer underpaint"), (1.0, "repeat the command that wrote it")):
        with pytest.raises(ResultsError, match=todo):
            read_results(written(tmp_path, compared(results_version=version)))


def test_runs_are_told_apart_and_the_same_run_is_kept_once():
    other = compared(machine={"processor": "another"})
    merged_results = merged([("a", compared()), ("b", other), ("c", compared())])
    assert validate(merged_results, schema()) == []
    assert [run["name"] for run in merged_results["runs"]] == ["a", "b"]
    assert len({run["fingerprint"] for run in merged_results["runs"]}) == 2
    assert merged([("again", merged_results), ("d", compared())]) == merged_results


@pytest.mark.parametrize("field", ["machine", "model", "settings"])
def test_every_field_that_tells_runs_apart_does(field):
    changed = copy.deepcopy(compared())
    changed[field]["more"] = 1
    assert fingerprint(changed) != fingerprint(compared())
    assert fingerprint(compared(rows=[])) == fingerprint(compared())


def test_two_sets_of_figures_of_one_command_clash():
    with pytest.raises(ResultsError, match="keep one of them"):
        merged([("a", compared()), ("b", compared(rows=[]))])
    assert len(merged([("a", compared()), ("b", compared(rows=[], command="another"))])["runs"]) == 2


def test_the_fastest_is_first():
    faster = [{**row, "speedup": 2 * row["speedup"]} for row in compared()["rows"]]
    other = compared(machine={"processor": "another"}, rows=faster)
    sides = sides_of(
        [("both", merged([("a", compared()), ("b", other)])), ("cold", compared(settings={"temperature": 0.0}))]
    )
    assert [side["machine"] for side in sides] == ["one", "another", "one"]
    rows = ranked(sides)
    assert [(row["method"], row["temperature"]) for row in rows] == [("adt", 1), ("ar", 1), ("adt", 0), ("ar", 0)]
    assert rows[0]["sides"]["A"]["speedup"] == 1.5
    assert rows[0]["sides"]["B"]["speedup"] == 3.0
    assert rows[0]["sides"]["C"] is None
    assert rows[0]["speedup"] == pytest.approx((1.5 * 3.0) ** 0.5)


def test_our_reading_of_the_schema_agrees_with_jsonschema():
    library = pytest.importorskip("jsonschema")
    check = library.Draft202012Validator(schema())
    check.check_schema(schema())
    for values in (compared(), compared(rows=[{}]), compared(kind="x"), compared(machine=3), read_results(RECORDED[0])):
        assert check.is_valid(values) == (validate(values, schema()) == [])


def test_large_results_are_one_line_of_the_same_values() -> None:
    small, large = {"rows": [1, 0.1, None]}, {"rows": [{"speedup": 0.1 + at} for at in range(2000)]}
    assert results_text(small) == '{\n "rows": [\n  1,\n  0.1,\n  null\n ]\n}\n'
    text = results_text(large)
    assert text.index("\n") == len(text) - 1
    assert " " not in text
    assert json.loads(text) == large
