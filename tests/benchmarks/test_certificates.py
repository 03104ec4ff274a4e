"""The page of certificates follows from its records, and adapters find what they name."""

import json
import re

import pytest

from benchmarks.certificates.page import PAGE, PAGES, RESULTS, largest, pages, pages_of_bugs
from underpaint.sim.certify.case import case_from_dict

RECORDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}
BUGS = pages_of_bugs()
"""By verifier the page of its bug."""
MEANT_LOSSLESS = set(RECORDS) - set(BUGS)
MEANT_LOSSLESS -= {name for name, record in RECORDS.items() if record["relaxed"]}


def test_the_pages_are_those_that_the_records_make():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, path


def test_no_right_verifier_is_called_biased_and_every_bug_is_found():
    assert len(MEANT_LOSSLESS) >= 30
    for name in MEANT_LOSSLESS:
        assert RECORDS[name]["certificate"]["verdict"] in ("lossless", "lossless but for a boundary"), name
    assert len(BUGS) >= 11
    for name in BUGS:
        assert RECORDS[name]["certificate"]["verdict"] in ("biased", "faulty")


def test_a_page_of_a_bug_says_what_its_records_say():
    for page in sorted(set(BUGS.values())):
        text, record = (PAGES / f"{page}.md").read_text(encoding="utf-8"), RECORDS[page]
        for passage in (f"at `{record['version']}`, {record['judged']}.", f"    {record['command']}\n"):
            assert passage in text, page
        for other in (name for name, place in BUGS.items() if place == page != name):
            assert f"{other} ({largest(RECORDS[other])})" in text, page


def test_every_record_names_its_version_and_its_cases_are_cases():
    for name, record in RECORDS.items():
        assert re.fullmatch(r"[0-9a-f]{7}|\d+(\.\d+)+", record["version"]), name
        assert record["name"] == name
        for one in record["certificate"]["findings"]:
            case_from_dict(one["case"])
    assert PAGE.is_file()


def test_every_bug_has_a_script_that_stands_alone():
    scripts = {path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.py")}
    assert BUGS.keys() <= scripts.keys() <= RECORDS.keys()
    for name, text in scripts.items():
        compile(text, name, "exec")
        assert "underpaint" not in text
        assert len(text.splitlines()) <= 90
        if "from transformers" in text:  # a script of that name lies beside it
            assert text.index("sys.path.pop(0)") < text.index("from transformers")


def test_every_verifier_of_the_table_has_a_record():
    pytest.importorskip("torch")
    from benchmarks.certificates.table import VERIFIERS

    assert {one.name for one in VERIFIERS} == RECORDS.keys()
    for one in VERIFIERS:
        assert (one.judged, one.relaxed, one.project) == tuple(
            RECORDS[one.name][name] for name in ("judged", "relaxed", "project")
        )


def test_an_adapter_says_what_is_missing(tmp_path):
    pytest.importorskip("torch")
    from benchmarks.certificates.sources import load

    path = tmp_path / "theirs.py"
    path.write_text(
        "import nothing_of_ours\n@nothing_of_ours.wrapped\ndef scale(x: nothing_of_ours.X) -> int:\n    return 2 * x\n"
        "class Tree(nothing_of_ours.Base):\n    def step(self, x):\n        return self.y + x\n"
    )
    assert load(path, "scale")(3) == 6
    assert load(path, "Tree.step")(type("Model", (), {"y": 1})(), 2) == 3
    for missing in ("other", "Tree.other", "Other.step"):
        with pytest.raises(ValueError, match=f"expected {missing}; take the commit"):
            load(path, "scale", missing)
