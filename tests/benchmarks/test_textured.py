"""The page of TexturedScenes: made of its records alone, each bar met or not by what they say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import pages, textured_training
from benchmarks.textured_bars import BARS, COMPARED, DAMAGE, ISLANDS, MORE, PREMISES, QUALITY, TRAINED, bar_cells, met
from benchmarks.textured_progress import how_far
from benchmarks.verdicts import Figure, Sense, pooled
from underpaint.artifacts.results import with_envelope
from underpaint.runtime.evaluation.machine import describe_machine
from underpaint.zoo.load import FOLDER

LIKELIEST, NEAR = "likeliest token, mean probability", "nearest codes over random ones"
PASSES = "a target pass over {} nodes in a cycle, plain passes"


def premises(guidance: float, **values: float | tuple[float, float, float]) -> dict[str, Any]:
    names = {"top": LIKELIEST, "near": NEAR, "eight": PASSES.format(8), "sixteen": PASSES.format(16)}
    rows = []
    for key, found in values.items():
        value, low, high = found if isinstance(found, tuple) else (found, None, None)
        rows.append({"figure": names[key], "value": value, "low": low, "high": high, "published": None})
    settings = {"temperature": 1.0, "guidance": guidance, "top_k": 0, "top_p": 1.0, "prompts": ["a"], "seeds": [0]}
    model = {"target": "target64", "engine": "cpu", "sha256": {}}
    held = {"model": model, "settings": settings | {"nearest": 10, "depths": 4}, "rows": rows}
    values = {**held, "by_cell": {"top_probability": [], "entropy": []}, "passes": []}
    return with_envelope("premises", describe_machine(), "underpaint premises", values)


def compared(accuracy: float, prompts: int = 100, first: int = 0) -> dict[str, Any]:
    rows: list[dict[str, Any]] = [{"method": "ar", "prompt_accuracy": accuracy, "images": prompts}]
    quality = {"accuracy_over_ar": -0.01, "accuracy_over_ar_low": -0.05, "accuracy_over_ar_high": 0.03}
    likely = "attribute_log_probability_over_ar"
    quality |= {likely: 0.0, f"{likely}_low": -0.015, f"{likely}_high": 0.015}
    quality |= {"speedup": 1.6, "speedup_low": 1.55, "speedup_high": 1.7}
    rows.append({"method": "adt+lantern", "images": prompts, "tokens_per_cycle": 3.2, **quality})
    shares = {"tokens_per_cycle": None, "target_share": 0.5, "target_nfe": 20.0}
    rows.append({"method": "mulo-islands", "images": prompts, **quality, "speedup": 2.7, **shares})
    shown = {"prompts": [f"prompt {first + place}" for place in range(prompts)], "seeds": [0], "guidance": 1.0}
    shown["methods"] = {row["method"]: {"k": 250} for row in rows}
    model = {"judge_accuracy": {"things_and_finishes": 0.9}, "sha256": {"target128": "a", "drafter128": "d"}}
    settings = {"resolution": 128, **shown}
    return {"model": model, "machine": {"processor": "one"}, "settings": settings, "rows": rows}


def trained() -> dict[str, Any]:
    reached = {"validation_ce_128": 6.5, "validation_ce_64": 6.0}
    return {"vocab_size": 4096, "rows": [{"model": "target128", "seconds": 5400.0, "reached": reached}]}


@pytest.mark.parametrize(
    ("low", "high", "above", "below"),
    [
        (3.1, 3.4, "**met**", "**not met**"),
        (2.9, 3.4, "cannot be told", "cannot be told"),
        (2.0, 2.9, "**not met**", "**met**"),
        (None, None, "**met**", "**not met**"),
        (3.1, math.inf, "**met**", "**not met**"),
    ],
)
def test_a_bar_is_met_by_the_whole_interval(low: float | None, high: float | None, above: str, below: str) -> None:
    found = Figure(3.2, low, high)
    assert met(found, Sense.ABOVE, 3.0) == above
    assert met(found, Sense.BELOW, 3.0) == below
    assert met(Figure(3.0, None, None), Sense.ABOVE, 3.0) == met(Figure(3.0, None, None), Sense.BELOW, 3.0) == "**met**"


def test_bars_are_judged_by_their_own_records() -> None:
    records = {
        PREMISES[64]: premises(1.0, top=(0.3, 0.28, 0.33), near=(2.9, 2.5, 3.2), eight=1.62, sixteen=1.9),
        PREMISES[128]: premises(2.0, near=(2.9, 2.5, 3.2), eight=1.2),
        QUALITY[1]: compared(0.4),
    }
    cells = {(row[0], row[4]): row[1:3] for row in bar_cells(records)}
    assert len(cells) == len(BARS)

    def of(beginning: str) -> tuple[str, str]:
        (found,) = [told for (asked, _), told in cells.items() if asked.startswith(beginning)]
        return found

    assert of("64 px: the likeliest token has") == ("0.300 (0.280 to 0.330)", "**met**")
    assert of("64 px: the 10 nearest")[1] == "cannot be told"
    assert of("64 px: the likeliest token's share")[1].startswith(
        "not measured: `textured-premises-64.json` has no row"
    )
    assert of("64 px: a pass over 8") == ("1.62", "**not met**")
    assert of("64 px: a pass over 16") == ("1.90", "**met**")
    assert "two rows a pass; the bar is for one" in of("128 px: a pass over 8")[1]
    assert of("128 px: the likeliest token has")[1].startswith("not measured: `textured-premises-128.json` has no row")
    assert of("`adt+lantern` at least 1.8")[1] == "not measured: There is no `textured-quality-128-t0.json`"
    assert of("prompt accuracy") == ("0.400 (0.309 to 0.498)", "**not met**")
    assert [told for (asked, _), told in cells.items() if "temperature 1" in asked] == [
        ("1.60 (1.55 to 1.70)", "**met**"),
        ("-0.010 (-0.050 to +0.030)", "cannot be told"),
        ("", f"not measured: There is no `{DAMAGE}`"),
    ]


def test_the_accuracy_of_plain_decoding_is_of_records_that_share_no_prompt() -> None:
    def of(records: dict[str, Any]) -> tuple[str, ...]:
        (found,) = [row[1:3] for row in bar_cells(records) if row[0].startswith("prompt accuracy")]
        return found

    assert of({QUALITY[1]: compared(0.8)}) == ("0.800 (0.711 to 0.867)", "cannot be told")
    told = of({QUALITY[1]: compared(0.8), COMPARED[1]: compared(0.85, 300, first=100)})
    assert told == ("0.838 (0.798 to 0.870)", "**met**")
    both = of({QUALITY[1]: compared(0.8), COMPARED[1]: compared(0.85, first=50)})
    assert both[1] == f"not measured: {QUALITY[1]} and {COMPARED[1]} share prompts"
    for part, changed, says in (
        ("settings", {"seeds": [0, 1]}, "several seeds"),
        ("settings", {"guidance": 2.0}, "different guidance"),
        ("model", {"sha256": {"target128": "a", "drafter128": "e"}}, "different models"),
    ):
        other = compared(0.85, first=100)
        other[part] |= changed
        assert f"are of {says}" in of({QUALITY[1]: compared(0.8), COMPARED[1]: other})[1]


def test_bars_of_methods_are_of_the_pictures_of_all_records() -> None:
    """Their mean, and half the interval of two independent halves: of as many pictures, 1 / sqrt(2) of either's."""
    other = compared(0.8, first=100)
    row = other["rows"][1]
    row |= {"accuracy_over_ar": 0.03, "accuracy_over_ar_low": -0.01, "accuracy_over_ar_high": 0.07}
    row |= {"speedup": 2.5, "speedup_low": 2.5 * 1.55 / 1.6, "speedup_high": 2.5 * 1.7 / 1.6, "tokens_per_cycle": 4.8}
    cells = {cell[0]: cell[1:4] for cell in bar_cells({QUALITY[1]: compared(0.8), COMPARED[1]: other})}
    where = ", 128 px, temperature 1"
    kept = cells[f"`adt+lantern` loses at most 0.02 of AR's prompt accuracy{where}"]
    assert kept[:2] == ("+0.010 (-0.018 to +0.038)", "**met**"), "either of the two alone cannot be told"
    fast = cells[f"`adt+lantern` at least 1.5 times as fast as AR{where}"]
    low, high = (2.0 * (end / 1.6) ** 0.5**0.5 for end in (1.55, 1.7))
    assert fast[:2] == (f"2.00 ({low:.2f} to {high:.2f})", "**met**")
    assert fast[2] == "3.00 tokens a cycle at what one costs here; it draws 4.00"


def test_a_record_of_other_settings_of_a_method_is_left_out() -> None:
    other, third = compared(0.9, first=100), compared(0.7, 300, first=200)
    other["settings"]["methods"] = {"ar": {"k": 1}}
    records = {QUALITY[1]: compared(0.8), COMPARED[1]: other, MORE[1]: third}
    (found,) = [row for row in bar_cells(records) if row[0].startswith("prompt accuracy")]
    assert found[1].startswith("0.725"), "0.8 of 100 and 0.7 of 300"
    assert found[4] == f"`{QUALITY[1]}`, `{MORE[1]}`"


def test_times_are_of_one_processor_and_pictures_of_any() -> None:
    other = compared(0.8, first=100)
    other["machine"] |= {"processor": "other"}
    other["rows"][1] |= {"accuracy_over_ar": 0.03, "accuracy_over_ar_low": -0.01, "accuracy_over_ar_high": 0.07}
    other["rows"][1] |= {"speedup": 2.5, "speedup_low": 2.4, "speedup_high": 2.6}
    rows = {row[0]: row for row in bar_cells({QUALITY[1]: compared(0.8), COMPARED[1]: other})}
    where = ", 128 px, temperature 1"
    fast = rows[f"`adt+lantern` at least 1.5 times as fast as AR{where}"]
    assert (fast[1], fast[4]) == ("1.60 (1.55 to 1.70)", f"`{QUALITY[1]}`")
    kept = rows[f"`adt+lantern` loses at most 0.02 of AR's prompt accuracy{where}"]
    assert (kept[1], kept[4]) == ("+0.010 (-0.018 to +0.038)", f"`{QUALITY[1]}`, `{COMPARED[1]}`")


def test_bars_of_islands_are_of_the_setting_that_ships() -> None:
    own, before, same = compared(0.8), compared(0.9, first=100), compared(0.7, first=200)
    before["settings"]["methods"]["mulo-islands"] = {"k": 1}
    before["rows"][-1]["speedup"] = 9.0
    records = {QUALITY[1]: before, COMPARED[1]: same, ISLANDS: own}
    rows = {row[0]: row for row in bar_cells(records)}
    fast = rows["`mulo-islands` at least 3 times as fast as AR, 128 px"]
    assert fast[1].startswith("2.70")
    assert fast[4] == f"`{ISLANDS}`, `{COMPARED[1]}`"
    own["rows"] = [row for row in own["rows"] if row["method"] != "mulo-islands"]
    without = {row[0]: row for row in bar_cells(records)}
    assert without["`mulo-islands` at least 3 times as fast as AR, 128 px"][1].startswith("9.00"), (
        "the next that has it"
    )


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0, 0.5), st.floats(0, 5), st.integers(1, 500)), min_size=1))
def test_several_sets_are_one_between_the_least_and_the_largest(sets: list[tuple[float, float, float, int]]) -> None:
    found = [(Figure(value, value * (1 - below), value + above), count) for value, below, above, count in sets]
    for logarithms in (False, True):
        one = pooled(found, logarithms)
        assert one.low is not None
        assert one.high is not None
        assert min(each.value for each, _ in found) <= one.value * (1 + 1e-9)
        assert one.value <= max(each.value for each, _ in found) * (1 + 1e-9)
        assert one.low <= one.value * (1 + 1e-9)
        assert one.value <= one.high * (1 + 1e-9)
        assert pooled(found[:1], logarithms) == pytest.approx(found[0][0])
    assert pooled([*found, (Figure(1.0, None, None), 1)]).low is None


def test_a_bar_of_speed_says_what_would_just_do() -> None:
    """3.2 tokens a cycle make 1.6x, so 3.0 make 1.5x; a picture in half of whose time 20 passes repair it must lose a
    tenth of that time, so a fifth of those passes."""
    takes = {row[0]: row[3] for row in bar_cells({QUALITY[1]: compared(0.8), ISLANDS: compared(0.8, first=100)})}
    shown = takes["`adt+lantern` at least 1.5 times as fast as AR, 128 px, temperature 1"]
    assert shown == "3.00 tokens a cycle at what one costs here; it draws 3.20"
    shown = takes["`mulo-islands` at least 3 times as fast as AR, 128 px"]
    assert shown == "16.0 target passes at what one costs here; it takes 20.0"
    assert not any(told for asked, told in takes.items() if "fast" not in asked)
    slow = compared(0.8)
    slow["rows"][-1]["speedup"] = 1.4  # half of a picture's time is not in passes, and 1.5x is asked
    takes = {row[0]: row[3] for row in bar_cells({ISLANDS: slow})}
    assert takes["`mulo-islands` at least 3 times as fast as AR, 128 px"].startswith("not by fewer target passes")


@pytest.mark.parametrize(
    ("nats", "low", "high", "told"),
    [
        (0.02, 0.016, 0.03, "**met**"),
        (0.02, 0.012, 0.03, "cannot be told"),
        (0.005, 0.002, 0.01, "cannot be told"),
        (-0.02, -0.03, -0.016, "**not met**"),
    ],
)
def test_a_bar_that_is_a_figure_is_met_by_both_of_its_ends(nats: float, low: float, high: float, told: str) -> None:
    worth = {"points": 0.02, "nats": nats, "nats_low": low, "nats_high": high}
    records = {QUALITY[1]: compared(0.8), DAMAGE: {"worth": worth}}
    found = {row[0]: row[1:3] for row in bar_cells(records)}
    shown = f"+0.000 (-0.015 to +0.015); the bar is {-nats:+.3f} ({-high:+.3f} to {-low:+.3f})"
    asked = (
        "`adt+lantern` loses at most the judge's log-probability that 0.02 of accuracy is worth, 128 px, temperature 1"
    )
    assert found[asked] == (shown, told)
    records[DAMAGE] = {"worth": None}
    assert "does not say what a loss" in {row[0]: row[1:3] for row in bar_cells(records)}[asked][1]


def test_undertrained_models_are_called_so_by_their_own_figures() -> None:
    told = how_far({TRAINED: trained(), QUALITY[1]: compared(0.4)})
    assert "1.5 hours in all" in told
    assert "6.00 at 64 px, 6.50 at 128 px; knowing nothing is 8.32" in told
    assert "0.400 right" in told
    assert "undertrained" in told
    assert "undertrained" not in how_far({TRAINED: trained(), QUALITY[1]: compared(0.8)})
    assert how_far({}) == ""


def test_a_guided_target_tells_how_well_the_one_before_it_learnt() -> None:
    found = trained()
    for row in found["rows"]:
        row["reached_before"] = row["reached"]
        row["reached"] = {"validation_kl_64": 0.1, "validation_kl_128": 0.2}
    told = how_far({TRAINED: found})
    assert "cross-entropy before guidance was baked in, in nats a token, is 6.00 at 64 px, 6.50 at 128 px" in told


def test_the_page_is_made_of_records_alone_and_changes_no_other_but_the_claims(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rendered(folder: Path) -> dict[str, str]:
        monkeypatch.setattr(pages, "RESULTS", folder)
        return pages.render_pages()

    folder = tmp_path / "results"
    folder.mkdir()
    for path in pages.RESULTS.glob("*.json"):
        if not path.name.startswith("textured-"):
            (folder / path.name).symlink_to(path)
    before = rendered(folder)
    assert "textured.md" not in before
    (folder / PREMISES[128]).write_text(json.dumps(premises(1.0, top=(0.3, 0.28, 0.33), eight=1.2)))
    after = rendered(folder)
    assert (
        f"| 128 px: the likeliest token has at most 0.35 | 0.300 (0.280 to 0.330) | **met** |  | `{PREMISES[128]}` |"
        in (after["textured.md"])
    )
    assert "## What the papers take for granted, 128 px" in after["textured.md"]
    assert QUALITY[1] in after["textured.md"]
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"textured.md", "index.md", "claims.md"}


def test_what_was_trained_is_read_from_manifests(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    textured_training.main(["--engines", str(FOLDER), "--out", str(out)])
    found = json.loads(out.read_text())
    rows = {row["model"]: row for row in found["rows"]}
    assert {"target64", "target128", "drafter128"} <= set(rows)
    assert (found["vocab_size"], found["family"]) == (4096, "textured-scenes")
    drafter = rows["drafter128"]
    assert drafter["steps"] > 0
    assert drafter["steps_before"] > 0  # it was trained in several runs, one on another's weights
    assert drafter["seconds"] > 1200
    assert set(drafter["reached"]) == {f"top1_{depth}_{side}" for depth in (1, 2, 3, 4) for side in (64, 128)}
    assert set(drafter["reached_before"]) == set(drafter["reached"])
    assert any(row["reached_before"] == {} for row in rows.values())
    assert "machine" not in found
