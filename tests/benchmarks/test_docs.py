"""Pages of figures are made from the recorded results, and every benchmark is listed."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import pages, validation
from benchmarks.claims import CLAIMS, Claim, Figure
from underpaint.artifacts.results import merged
from underpaint.zoo.load import manifest, names

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
COMPARED = "textured-compare-128-t1.json"
"""The record that the README's picture shows."""


def test_the_pages_are_those_that_the_results_make() -> None:
    page_texts = pages.render_pages()
    assert {path.name: path.read_text(encoding="utf-8") for path in pages.PAGES.glob("*.md")} == page_texts


def test_a_page_that_was_edited_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in pages.PAGES.glob("*.md"):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(pages, "PAGES", tmp_path)
    monkeypatch.setattr(pages, "README", tmp_path / "README.txt")
    written = (ROOT / "README.md").read_text(encoding="utf-8")
    pages.README.write_text(written, encoding="utf-8")
    assert pages.main(["--check"]) == 0
    pages.README.write_text(written.replace("| `ar` | lossless |", "| `ar` | no bound |"), encoding="utf-8")
    (tmp_path / "costs.md").write_text("faster than measured", encoding="utf-8")
    (tmp_path / "older.md").write_text("", encoding="utf-8")
    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().err == "out of date: README.txt, costs.md, older.md; run python -m benchmarks.pages\n"


def test_a_record_of_the_protocol_makes_a_page_and_the_best_rows_of_the_readme(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = []
    for heat in (1.0, 0.0):
        run = pages.read_result(COMPARED)
        run["settings"] = {**run["settings"], "temperature": heat}
        run["protocol"] = {"drawn": 5, "planned": 9, "left_out": {"vvs": "no drafter"}}
        same = {"identical_share": 0.5} if heat == 0 else {}
        run["rows"] = [{**row, **same, "variant_of": row["method"], "preset": "tuned"} for row in run["rows"]]
        slow = {**run["rows"][1], "method": "eagle2 (paper)", "variant_of": "eagle2", "preset": "paper", "speedup": 9.0}
        run["settings"]["methods"]["eagle2 (paper)"] = {}
        run["rows"].append(slow)
        runs.append((f"{heat:g}", run))
    (tmp_path / pages.PROTOCOL_FILE).write_text(json.dumps(merged(runs)), encoding="utf-8")
    (tmp_path / pages.RULES_FILE).write_bytes((RESULTS / pages.RULES_FILE).read_bytes())
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    table = pages.render_readme((ROOT / "README.md").read_text(encoding="utf-8")).split(pages.README_BEGIN)[1]
    rows = re.findall(r"^\| `(\S+)` \| (lossless|bounded|no bound) \| 100 of 200 \| (\S+)", table, re.MULTILINE)
    assert len(rows) == pages.README_ROWS
    assert rows[0][0] == "ar"
    speeds = [float(speed) for _, _, speed in rows[1:]]
    assert speeds == sorted(speeds, reverse=True)
    assert "zipar" not in [name for name, _, _ in rows]  # surely worse than plain autoregression
    page = pages.render_protocol()
    assert page.count("`eagle2 (paper)`") == 2
    assert "| left out | vvs: no drafter |" in page


def test_every_speedup_of_protocol_1_is_predicted_within_a_tenth() -> None:
    rows = pages.read_result("protocol-predictions.json")["rows"]
    record = pages.read_result(pages.PROTOCOL_FILE)
    methods = [row["method"] for run in record["runs"] for row in run["results"]["rows"] if row["method"] != "ar"]
    assert [row["method"] for row in rows] == methods
    for row in rows:
        assert abs(row["speedup_error"]) <= validation.WITHIN
        assert row["speedup_error"] == pytest.approx(row["speedup"][0] / row["measured_speedup"] - 1.0)


def test_every_result_is_on_a_page() -> None:
    text = "".join(pages.render_pages().values())
    unnamed = {path.name for path in RESULTS.glob("*.json") if f"`{path.name}`" not in text}
    assert unnamed <= {pages.PROTOCOL_FILE, validation.FILE}  # whole pages are of these
    for command in re.findall(r"python -m benchmarks\.(\w+)[^`]*`(?! \(since deleted)", text):
        assert (RESULTS.parent / f"{command}.py").is_file()


def test_columns_without_a_figure_are_left_out() -> None:
    assert pages.filled("| a | b | c |\n| 1 |  |  |\n| 2 |  | 3 |\n") == "| a | c |\n| 1 |  |\n| 2 | 3 |\n"


def test_the_readme_and_the_claims_are_of_the_models_that_ship() -> None:
    shipped = {name: (record.weights or record).sha256 for name in names() for record in [manifest(name)]}
    files = {COMPARED, *(claim.file for claim in CLAIMS)}
    named = {file: model["sha256"] for file in files for model in _models(pages.read_result(file))}
    assert len(named) >= len(files) - 1  # the ablation names its models otherwise
    for file, hashes in named.items():
        other = {name for name, digest in hashes.items() if shipped.get(name) != digest}
        assert other <= {"sampler_up_ce"}, file  # a variant of the ablation, which does not ship


def _models(record: object) -> list[dict[str, dict[str, str]]]:
    """Everything in a record that names models by their hashes."""
    if isinstance(record, dict):
        models = [record] if isinstance(record.get("sha256"), dict) else []
        return models + [model for value in record.values() for model in _models(value)]
    return [model for value in record for model in _models(value)] if isinstance(record, list) else []


@pytest.mark.parametrize(
    ("figure", "above", "below"),
    [
        (Figure(2.0, 1.5, 2.5), "holds", "fails"),
        (Figure(0.5, 0.2, 1.0), "fails", "undecided"),
        (Figure(0.5, 0.2, 0.9), "fails", "holds"),
        (Figure(1.5, 1.0, 2.0), "undecided", "fails"),
        (Figure(1.0, 0.5, 1.5), "undecided", "undecided"),
    ],
)
def test_a_claim_is_decided_by_its_whole_interval(figure: Figure, above: str, below: str) -> None:
    for side, expected in ((False, above), (True, below)):
        assert Claim("paper", "text", "figure", "file", lambda _: figure, below=side).verdict({}) == expected


def test_the_page_of_claims_is_one_table() -> None:
    page = pages.render_claims()
    assert len(CLAIMS) <= 30
    assert page.count("\n|---|") == 1
    for claim in CLAIMS:
        assert page.count(claim.text) == 1


def test_every_benchmark_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    scripts = [path for path in RESULTS.parent.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert len(scripts) >= 9
    assert [path.stem for path in scripts if f"`python -m benchmarks.{path.stem}" not in page] == []


def test_no_record_names_a_path_of_one_machine() -> None:
    """A command is to be typed again elsewhere: its files are named from the folder that it runs in."""
    records = sorted(RESULTS.rglob("*.json"))
    assert len(records) > 20
    paths_by_record = {
        path.name: re.findall(r"(?<![\w.])/(?:tmp|home|root|work|Users)/[^ \"]*", path.read_text()) for path in records
    }
    assert {name: paths for name, paths in paths_by_record.items() if paths} == {}
