"""Verdicts on the papers' claims follow from the records, by the rule that the page states."""

import copy
import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import pages
from benchmarks.claim_parts import COMPARED, EMOJI, PAIRED, Claim
from benchmarks.claims import CLAIMS, PAPERS, introduction, tallied
from benchmarks.claims_adt import TWO_WIDE, forked_claims, start_claims
from benchmarks.shipped import NO_MORE, NOTICE
from benchmarks.verdicts import (
    Counted,
    Figure,
    NoFigureError,
    Sense,
    Verdict,
    beside_published,
    figure,
    inverse,
    less,
    mean_and_half,
    ordering,
    paired_speed,
    pick,
    quotient,
    verdict,
    written,
)

RECORDS = pages.claim_records()
ends = st.tuples(*[st.floats(0.01, 100)] * 2).map(sorted)


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (1.01, 1.2, Verdict.HOLDS, Verdict.FAILS),
        (1.0, 1.2, Verdict.UNTOLD, Verdict.FAILS),
        (0.9, 1.1, Verdict.UNTOLD, Verdict.UNTOLD),
        (0.9, 1.0, Verdict.FAILS, Verdict.UNTOLD),
        (0.9, 0.99, Verdict.FAILS, Verdict.HOLDS),
        (1.0, 1.0, Verdict.FAILS, Verdict.FAILS),
        (None, None, Verdict.UNTOLD, Verdict.UNTOLD),
        (None, 0.9, Verdict.UNTOLD, Verdict.UNTOLD),
        (math.nan, 2.0, Verdict.UNTOLD, Verdict.UNTOLD),
        (1.5, math.inf, Verdict.UNTOLD, Verdict.UNTOLD),
    ],
)
def test_the_verdict_at_the_edges_of_an_interval(low, high, above, below):
    found = Figure(1.0, low, high)
    assert verdict(found, Sense.ABOVE, 1.0) is above
    assert verdict(found, Sense.BELOW, 1.0) is below


def test_one_counter_example_refutes_what_never_happens():
    assert verdict(Counted(0, 24), Sense.NEVER) is Verdict.HOLDS
    assert verdict(Counted(1, 24), Sense.NEVER) is Verdict.FAILS
    assert verdict(Counted(0, 0), Sense.NEVER) is Verdict.UNTOLD
    assert written(Counted(0, 24)) == "0 of 24 (at most 12 %)"
    assert written(Counted(24, 24)) == "24 of 24"
    with pytest.raises(ValueError, match="expected a count, got a figure"):
        verdict(Figure(0.0, 0.0, 0.0), Sense.NEVER)


@given(ends, ends, st.floats(0, 1), st.floats(0, 1))
def test_end_by_end_no_pair_of_values_inside_the_intervals_is_left_out(one, other, first, second):
    left, right = one[0] + first * (one[1] - one[0]), other[0] + second * (other[1] - other[0])
    a, b = Figure(left, *one), Figure(right, *other)
    for found in (quotient(a, b), less(a, b), quotient(a, inverse(b))):
        assert found.both_ends
        assert found.low is not None
        assert found.high is not None
        slack = 1e-9 * (1 + abs(found.value))
        assert found.low - slack <= found.value <= found.high + slack
    assert quotient(a, b).low == one[0] / other[1]
    assert less(a, b).high == one[1] - other[0]


def test_what_lacks_an_interval_has_none_afterwards():
    bare, whole = Figure(2.0, None, None), Figure(4.0, 3.0, 5.0)
    assert quotient(whole, bare) == Figure(2.0, None, None)
    assert less(bare, whole) == Figure(-2.0, None, None)
    assert inverse(bare) == Figure(0.5, None, None)


def test_where_the_published_figure_lies_outside_it_is_told_on_which_side():
    found = Figure(1.3, 1.2, 1.4)
    assert beside_published(found, 1.75) == "less than published"
    assert beside_published(found, 1.1) == "more than published"
    assert beside_published(found, 1.4) == ""
    assert beside_published(found, None) == ""
    assert beside_published(Figure(1.3, None, None), 1.75) == ""


def paired(of: str, **rows: tuple[float, float, float]) -> dict[str, Any]:
    names = ("faster", "faster_low", "faster_high")
    return {"of": of, "rows": [{"method": name, **dict(zip(names, row, strict=True))} for name, row in rows.items()]}


def test_a_pair_is_read_directly_where_the_record_is_of_one_of_the_two():
    measure = paired_speed("f", "adt", "eagle2")
    by_itself = measure({"f": paired("adt", eagle2=(1.25, 1.2, 1.3))})
    assert by_itself == Figure(1.25, 1.2, 1.3)
    other_way = measure({"f": paired("eagle2", adt=(0.8, 0.5, 1.0))})
    assert other_way == Figure(1.25, 1.0, 2.0)
    by_a_third = measure({"f": paired("third", adt=(2.0, 1.6, 2.5), eagle2=(3.0, 2.5, 3.2))})
    assert by_a_third == Figure(1.5, 1.0, 2.0, both_ends=True)
    with pytest.raises(NoFigureError, match="`f` has no row of method eagle2"):
        measure({"f": paired("third", adt=(2.0, 1.6, 2.5))})


def test_differences_recorded_with_a_standard_error():
    one = {"figure": "prompt_accuracy", "better": "a", "worse": "b", "found": [0.8, 0.7], "standard_error": 0.1}
    rows = [{"method": method, "images": 32, "kept_share": 0.5} for method in ("a", "b")]
    record = {"rows": rows, "orderings": [{**one, "figure": "frechet_distance"}, one]}
    found = ordering("f", "a", "b")({"f": record})
    assert isinstance(found, Figure)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1 - 0.196, 0.1 + 0.196), abs=1e-12)
    # 32 pictures have 0.1, so n have 0.1 * sqrt(32 / n); 2.8 of those are 0.05 at n = 32 * 5.6 ** 2 = 1003.52
    assert found.note.endswith("with 32 pictures, as if unpaired; a difference of 0.05 takes about 1,004.")
    held = {"rows": [{"kind": "a", "up": {"mean": 2.0, "half": 0.5}}, {"kind": "b", "up": {"mean": 1.0, "half": 0.25}}]}
    apart = mean_and_half("f", {"kind": "a"}, {"kind": "b"}, "up")({"f": held})
    assert apart == Figure(1.0, 0.25, 1.75, both_ends=True)
    with pytest.raises(NoFigureError, match="No `down` is recorded"):
        mean_and_half("f", {"kind": "a"}, {"kind": "b"}, "down")({"f": held})


def test_differences_recorded_picture_by_picture():
    one = {"figure": "prompt_accuracy", "better": "a", "worse": "b", "difference": 0.1, "low": 0.01, "high": 0.206}
    other = {**one, "figure": "attribute_log_probability", "difference": -0.3, "low": -0.5, "high": -0.108}
    records = {"f": {"rows": [{"method": "a", "images": 50}, {"method": "b"}], "orderings": [other, one]}}
    found = ordering("f", "a", "b")(records)
    assert (found.value, found.low, found.high) == (0.1, 0.01, 0.206)
    # 50 pictures have 0.05, so n have 0.05 * sqrt(50 / n); 2.8 of those are 0.05 at n = 50 * 2.8 ** 2 = 392
    assert found.note == "Standard error 0.050 with 50 pictures, of pairs; a difference of 0.05 takes about 392."
    likely = ordering("f", "a", "b", "attribute_log_probability")(records)
    assert (likely.value, likely.low, likely.high) == (-0.3, -0.5, -0.108)
    assert likely.note == "Standard error 0.100 with 50 pictures, of pairs."
    for missing in (ordering("f", "b", "a"), ordering("f", "a", "b", "psnr")):
        with pytest.raises(NoFigureError):
            missing(records)
    with pytest.raises(NoFigureError):
        ordering("f", "a", "b")({"f": {"rows": []}})


@pytest.mark.parametrize(
    ("worse", "kept", "told", "means"),
    [
        ("b, matched", 0.49, "50% and 49%.", Verdict.HOLDS),
        ("b, matched", 0.25, "50% and 25%, which is no match.", Verdict.UNTOLD),
        ("b, matched", 0.75, "50% and 75%, which is no match.", Verdict.UNTOLD),
        ("b", 0.75, "of pairs; a difference of 0.05 takes about 392.", Verdict.HOLDS),
    ],
)
def test_quality_of_variants_that_were_not_matched_tells_nothing(worse, kept, told, means):
    one = {"figure": "prompt_accuracy", "better": "a", "worse": worse, "difference": 0.1, "low": 0.01, "high": 0.206}
    rows = [{"method": "a", "images": 50, "kept_share": 0.5}, {"method": worse, "kept_share": kept}]
    found = ordering("f", "a", worse)({"f": {"rows": rows, "orderings": [one]}})
    assert found.note.endswith(told)
    assert verdict(found, Sense.ABOVE) is means


def test_a_row_that_is_not_the_only_one_is_no_answer():
    rows = [{"method": "a", "speedup": 1.0}, {"method": "a", "speedup": 2.0}]
    with pytest.raises(NoFigureError, match="`f` has 2 rows of method a"):
        pick({"f": {"rows": rows}}, "f", method="a")


def test_every_claim_reads_a_record_that_is_there_or_says_what_is_needed():
    for claim in CLAIMS:
        assert claim.paper in PAPERS
        assert claim.text.endswith(".")
        assert claim.published
        found = claim.judge(RECORDS)
        if found.figure:
            assert claim.files, claim.text
            assert set(claim.files) <= RECORDS.keys(), claim.text
        else:
            assert claim.needs, claim.text
            assert found.verdict is Verdict.UNTOLD
            assert claim.needs in found.remark
    assert len({(claim.paper, claim.text) for claim in CLAIMS}) == len(CLAIMS) > 60


def test_every_claim_reads_the_files_that_it_names_and_no_other():
    for claim in CLAIMS:
        own = {file: RECORDS[file] for file in claim.files}
        assert claim.judge(own) == claim.judge(RECORDS), claim.text
        for file in claim.files:
            without = {name: record for name, record in own.items() if name != file}
            found = claim.judge(without)
            assert found.verdict is Verdict.UNTOLD, claim.text
            assert f"There is no `{file}`. Needed: " in found.remark


def moved(value: Any, up: bool) -> Any:
    """A record whose every figure with an interval lies far above, or far below, every bound of a claim."""
    if isinstance(value, list):
        return [moved(one, up) for one in value]
    if not isinstance(value, dict):
        return value
    found = {name: moved(one, up) for name, one in value.items()}
    for name in value:
        stem = name.removesuffix("low").removesuffix("_")
        centre = "value" if name == "low" else stem
        if name.endswith("low") and value.get(name) is not None and centre in value:
            place = 50.0 if up else -50.0
            found |= {centre: place, name: place, name.removesuffix("low") + "high": place}
    return found


@pytest.mark.parametrize("up", [True, False])
def test_a_changed_record_changes_the_verdict_of_a_plain_figure(up):
    record, place = moved(dict(RECORDS), up), 50.0 if up else -50.0
    changed = 0
    for claim in CLAIMS:
        found = claim.judge(record)
        if found.figure == written(Figure(place, place, place), claim.form):
            changed += 1
            agrees = up == (claim.sense is Sense.ABOVE)
            assert found.verdict is (Verdict.HOLDS if agrees else Verdict.FAILS), claim.text
    assert changed > 10


def test_a_changed_record_changes_the_verdict_of_a_pair():
    claim = next(one for one in CLAIMS if one.text == "`lantern` is faster than `eagle2`, temperature 1.")
    changed = copy.deepcopy(dict(RECORDS))
    for faster, told in ((0.1, Verdict.HOLDS), (9.0, Verdict.FAILS)):
        for row in changed[PAIRED[1]]["rows"]:
            if row["method"] == "lantern":
                row |= {"faster": faster, "faster_low": 0.9 * faster, "faster_high": 1.1 * faster}
        assert claim.judge(changed).verdict is told
    for row in changed[PAIRED[1]]["rows"]:
        row["faster_low"] = row["faster_high"] = None
    bare = claim.judge(changed)
    assert bare.verdict is Verdict.UNTOLD
    assert "No interval is recorded." in bare.remark


def test_a_changed_record_changes_the_verdict_of_a_count():
    claim = next(one for one in CLAIMS if one.text.startswith("ADT-Tree is lossless"))
    assert claim.judge(RECORDS).verdict is Verdict.HOLDS
    changed = copy.deepcopy(dict(RECORDS))
    row = next(row for row in changed[COMPARED[0]]["rows"] if row["method"] == "adt")
    row["identical_share"] = 1 - 1 / row["images"]
    found = claim.judge(changed)
    assert (found.figure, found.verdict) == (f"1 of {row['images']}", Verdict.FAILS)


def test_depth_is_not_judged_alone_where_the_record_adapts_the_width_too():
    claim = next(one for one in CLAIMS if one.text.startswith("Adapting the depth alone"))
    speed = {"speedup": 1.5, "speedup_low": 1.2, "speedup_high": 1.6, "tokens_per_cycle": 3.0}
    rows = [{"variant": name, **speed} for name in ("default", "step_width=0", "step_depth=0")]
    found = claim.judge({"adt-settings-t1.json": {"rows": rows}})
    assert found.figure == "1.00 (0.75 to 1.33), both ends"
    assert "one token wide" in found.remark
    rows[0]["tokens_per_cycle"] = 3.5
    found = claim.judge({"adt-settings-t1.json": {"rows": rows}})
    assert (found.figure, found.verdict) == ("", Verdict.UNTOLD)


def variants(**rows: tuple[float, float, float]) -> dict[str, Any]:
    names = ("over_default", "over_default_low", "over_default_high")
    return {"rows": [{"variant": name, **dict(zip(names, row, strict=True))} for name, row in rows.items()]}


def test_variants_are_compared_with_the_default_picture_by_picture_where_that_is_recorded():
    fast = next(one for one in start_claims(EMOJI) if "horizontal" in one.text and "vertical" in one.text)
    records = {fast.files[0]: variants(default=(1.0, 1.0, 1.0), **{"init=vertical": (0.8, 0.5, 1.0)})}
    assert fast.measure(records) == Figure(1.25, 1.0, 2.0)
    records = {fast.files[0]: variants(**{"init=vertical": (0.9, 0.8, 1.0), "init=random": (0.6, 0.5, 0.8)})}
    other = next(one for one in start_claims(EMOJI) if one.text.startswith("Starting from the upper"))
    assert other.measure(records) == Figure(0.9 / 0.6, 0.8 / 0.8, 1.0 / 0.5, both_ends=True)
    wide = forked_claims(EMOJI)[0]
    fixed = f"{TWO_WIDE} step_depth=0 step_width=0"
    records = {wide.files[0]: variants(**{f"{TWO_WIDE} step_depth=0": (1.2, 1.1, 1.3), fixed: (1.0, 0.9, 1.1)})}
    assert wide.judge(records).verdict is Verdict.UNTOLD
    records = {wide.files[0]: variants(**{f"{TWO_WIDE} step_depth=0": (1.5, 1.4, 1.6), fixed: (1.0, 0.9, 1.1)})}
    assert wide.judge(records).verdict is Verdict.HOLDS


def test_the_page_has_every_claim_and_the_command_of_every_record():
    page = pages.render_claims(RECORDS)
    for claim in CLAIMS:
        assert f"| {claim.text} |" in page
    for file, record in RECORDS.items():
        assert f"### {file}\n" in page
        assert record.get("command", "Command: not recorded") in page
    headings = {line.removeprefix("### ").replace(".", "") for line in page.splitlines() if line.startswith("### ")}
    assert set(re.findall(r"\]\(#([^)]*)\)", page)) == headings
    assert all(line.count(" | ") == 5 for line in page.splitlines() if line.startswith("| ") and "`" in line)


def test_records_of_models_that_ship_no_more_are_marked_as_such(monkeypatch):
    old = COMPARED[1]
    monkeypatch.setattr(pages, "ships", lambda record: record is not RECORDS[old])
    page = pages.render_claims(RECORDS)
    for file in RECORDS:
        cells = re.findall(rf"\[`{re.escape(file)}`\]\(#[^)]*\)(, {NO_MORE})?", page)
        assert {bool(cell) for cell in cells} == {file == old}
    assert page.count(NOTICE) == 1


def test_the_words_above_the_tables_are_of_the_records():
    changed = json.loads(json.dumps(RECORDS))
    pick(changed, "premises-128.json", figure="likeliest token, mean probability")["value"] = 0.123
    assert "0.12" in introduction(changed)
    assert introduction(RECORDS) != introduction(changed)
    judged = [claim.judge(RECORDS) for claim in CLAIMS]
    told = tallied(judged, "models")
    assert " rows on models " in told
    counts = [int(count) for count in re.findall(r"\d+", told)]
    assert counts[0] == len(CLAIMS) == sum(counts[1:])


def test_a_claim_without_a_record_says_so():
    claim = Claim("paper", "It is fast.", "1x", ("f",), figure("f", "speedup", method="a"))
    found = claim.judge({"f": {"rows": [{"method": "a", "speedup": None}]}})
    assert (found.figure, found.verdict) == ("", Verdict.UNTOLD)
    assert found.remark == "No `speedup` is recorded. Needed: that record."
