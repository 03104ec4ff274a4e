"""The page of certificates follows from its records, and adapters find what they name."""

import json
import re

import pytest

from benchmarks.certificates.bugs import BUGS
from benchmarks.certificates.page import PAGE, RESULTS, pages
from underpaint.sim.certify.case import case_from_dict

RECORDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.glob("*.json")}
MEANT_LOSSLESS = {
    "sjd",
    "deepspec",
    "sequoia",
    "opt-tree",
    "vllm-ascend",
    "eagle",
    "angelslim",
    "lantern-off",
    "gpt-fast",
}
MEANT_LOSSLESS |= {"transformers", "spec-bench-sps", "romsto", "tensorrt-llm", "specinfer-in-sequoia"}


def test_the_pages_are_those_that_the_records_make():
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, path


def test_no_right_verifier_is_called_biased_and_every_bug_is_found():
    for name in MEANT_LOSSLESS & RECORDS.keys():
        assert RECORDS[name]["certificate"]["verdict"] in ("lossless", "lossless but for a boundary"), name
    assert BUGS.keys() <= RECORDS.keys()
    for name, bug in BUGS.items():
        for found in (RECORDS[name], *(RECORDS[other] for other in bug.also)):
            assert found["certificate"]["verdict"] in ("biased", "faulty")


def test_every_record_names_its_version_and_its_cases_are_cases():
    for name, found in RECORDS.items():
        assert re.fullmatch(r"[0-9a-f]{7}|\d+(\.\d+)+", found["version"]), name
        assert found["name"] == name
        for one in found["certificate"]["findings"]:
            case_from_dict(one["case"])
    assert PAGE.is_file()


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
    with pytest.raises(ValueError, match="expected other; take the commit"):
        load(path, "scale", "other")
    with pytest.raises(ValueError, match="expected"):
        load(path, "Other.step")
