"""Pages of figures are made from the recorded results, and every benchmark is listed."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import gallery, pages
from benchmarks.page_cells import Section, plain
from benchmarks.shipped import BESIDE, NO_MORE, NOTICE, beside, named_models, ships
from underpaint.zoo.load import manifest, names

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_the_pages_are_those_that_the_results_make() -> None:
    made = pages.render_pages()
    assert {path.name: path.read_text(encoding="utf-8") for path in pages.PAGES.glob("*.md")} == made


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
    pages.README.write_text(written.replace("| `ar` | yes | 1.00", "| `ar` | yes | 2.00"), encoding="utf-8")
    (tmp_path / "costs.md").write_text("faster than measured", encoding="utf-8")
    (tmp_path / "older.md").write_text("", encoding="utf-8")
    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().err == "out of date: README.txt, costs.md, older.md; run python -m benchmarks.pages\n"


def test_every_result_is_on_a_page() -> None:
    shown = {section.file for section in pages.SECTIONS}
    assert {path.name for path in RESULTS.glob("*.json")} <= shown


def test_a_record_is_of_the_shipped_models_where_all_of_its_hashes_are_theirs() -> None:
    shipped = {name: (held.weights or held).sha256 for name in names() for held in [manifest(name)]}
    (name, digest), *_ = shipped.items()
    assert ships({"model": {"sha256": dict(shipped)}}) is True
    assert ships({"rows": [{"model": {"sha256": {name: digest}}}, {"model": {"sha256": {name: "0" * 64}}}]}) is False
    assert ships({"model": {"sha256": {"of no such name": digest}}}) is False
    assert ships({"model": {"sha256": None}, "rows": []}) is None


def test_a_model_beside_those_that_ship_is_named() -> None:
    shipped = {name: (held.weights or held).sha256 for name in names() for held in [manifest(name)]}
    (digest, what), *_ = BESIDE.items()
    assert digest not in shipped.values()
    assert beside({"model": {"sha256": shipped}}) == ""
    assert beside({"model": {"sha256": {**shipped, "target128": digest, "target64": digest}}}) == what
    assert ships({"model": {"sha256": {**shipped, "target128": digest}}}) is True
    assert ships({"model": {"sha256": {"target128": digest, "drafter128": "0" * 64}}}) is False
    assert beside({"model": {"sha256": {"target128": digest, "drafter128": "0" * 64}}}) == ""


def test_every_model_beside_those_that_ship_has_a_record() -> None:
    recorded = {
        digest for path in RESULTS.glob("*.json") for _, digest in named_models(json.loads(path.read_text("utf-8")))
    }
    assert set(BESIDE) <= recorded


def test_a_column_that_no_row_has_a_figure_for_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"first": 1.0, "last": None}, {"first": None, "last": 2.0}]
    monkeypatch.setattr(pages, "read_result", lambda name: {"rows": rows})
    columns = tuple((name, plain(name)) for name in ("first", "absent", "last"))
    table = pages.render_section(Section("page", "Heading", "record.json", columns)).partition("record.json`")[2]
    assert table.split("\n") == ["", "", "| first | last |", "|---|---|", "| 1.00 |  |", "|  | 2.00 |"]


def test_results_of_models_that_ship_no_more_say_so() -> None:
    records = {path.name: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    assert sum(bool(list(named_models(record))) for record in records.values()) > 15
    for section in pages.SECTIONS:
        if section.file in records:
            assert (NOTICE in pages.render_section(section)) == (ships(records[section.file]) is False), section.file
    gone = [section for section in pages.SECTIONS if ships(records.get(section.file)) is False]
    assert pages.render_pages()["index.md"].count(f"| {NO_MORE.removeprefix('of models that ')} |") == len(gone) > 15


def test_the_readme_and_the_bars_are_of_the_models_that_ship() -> None:
    files = (pages.README_FILE, *pages.TEXTURED_FILES)
    assert [file for file in files if not ships(pages.read_result(file)) or beside(pages.read_result(file))] == []


def test_the_readmes_picture_is_of_the_recorded_methods(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gallery, "METHODS", ("ar", "mulo-islands"))
    out = tmp_path / "gallery.png"
    gallery.main(["--columns", "1", "--out", str(out)])
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_the_readme_picture_is_drawn_with_the_recorded_settings() -> None:
    recorded = pages.read_result(pages.README_FILE)["settings"]["methods"]
    for method in gallery.METHODS:
        drawn = gallery.as_recorded(method, 1.0, recorded[method]).to_dict()
        parts = ("settings", "policy", "policy_settings")
        assert [drawn.get(part) for part in parts] == [recorded[method].get(part) for part in parts]
    islands = recorded["mulo-islands"]["settings"]
    other = {"loop": "mulo", "settings": {**islands, "tau": 0.25, "k": 7, "rows": 2}}
    assert gallery.as_recorded("mulo-islands", 1.0, other).to_dict() == other
    with pytest.raises(ValueError, match="compare anew"):
        gallery.as_recorded("ar", 1.0, {"policy": "chain"})


def test_every_benchmark_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    scripts = [path for path in RESULTS.parent.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert len(scripts) > 10
    assert [path.stem for path in scripts if f"`python -m benchmarks.{path.stem}" not in page] == []


def test_no_record_names_a_path_of_one_machine() -> None:
    """A command is to be typed again elsewhere: its files are named from the folder that it runs in."""
    records = sorted(RESULTS.rglob("*.json"))
    assert len(records) > 30
    found = {
        path.name: re.findall(r"(?<![\w.])/(?:tmp|home|root|work|Users)/[^ \"]*", path.read_text()) for path in records
    }
    assert {name: paths for name, paths in found.items() if paths} == {}
