"""What README and docs/ state of measurements is what the committed figures say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
RESULTS_PAGE = "docs/explanation/what-the-results-say.md"
MACHINES = {"shipped, CPU": "costs128", "A100": "a100/llamagen-xl", "H100": "h100/llamagen-xl"}
SHOWN = {
    "plain AR": "ar",
    "ZipAR, window 2, adaptive": "ZipAR, window 2, adaptive",
    "LANTERN (EAGLE-2's tree)": "LANTERN",
    "MuLo-SD, serial": "pooled",
    "serial, bicubic sampler": "sampler bicubic",
    "serial, row fronts in repair": "serial, row fronts",
    "islands": "islands",
    "islands, row fronts": "islands, row fronts",
    "islands, row fronts, in drafting too": "row fronts in drafting too",
    "the same, radius 0": "everywhere, radius 0",
    "the same, no repair at all": "row fronts in drafting, no repair",
}


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def table(page: str, after: str) -> list[list[str]]:
    """The cells of the first table behind some words of a page, without its head."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.search(r"(^\|.*\n)+", text[text.index(after) :], re.MULTILINE)
    assert lines is not None, f"{page}: no table after {after!r}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.group().splitlines()[2:]]


@pytest.mark.parametrize("name", ["compare-128-t0.json", "compare-128-t1.json"])
def test_the_readmes_comparisons(name: str) -> None:
    rows = result(name)["rows"]
    assert table("README.md", f"(`{name}`;") == [
        [
            *(row["method"], "yes" if row["lossless"] else "no"),
            f"{row['speedup']:.2f} ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})",
            *(f"{row['target_nfe']:.0f}", f"{row['drafter_nfe']:.0f}"),
            *(f"{row['tokens_per_cycle']:.2f}", f"{row['mean_depth']:.2f}", f"{100 * row['overhead_share']:.0f} %"),
            f"{row['prompt_accuracy']:.2f}",
            "" if row["identical_share"] is None else f"{100 * row['identical_share']:.0f} %",
        ]
        for row in rows
    ]


def test_the_gains_of_better_verification() -> None:
    for cells, row in zip(
        table(RESULTS_PAGE, "`verification-128.json`"),
        result("verification-128.json")["rows"],
        strict=True,
    ):
        plain, better = (f"{tokens:.2f}" for tokens in row["tokens_per_cycle"])
        assert cells[1:4] == [row["rules"][0], plain, f"{better} ({row['rules'][1]})"]
        gains = [f"{100 * row[name]:.1f}" for name in ("gain", "gain_low", "gain_high")]
        assert cells[4].startswith(f"{gains[0]} %")
        assert "(" not in cells[4] or cells[4].endswith(f"({gains[1]}-{gains[2]})")


def test_the_page_on_mulo() -> None:
    rows = {row["method"]: row for row in result("mulo-ablation.json")["rows"]}
    shown = table("docs/explanation/mulo-sd.md", "## What it adds here")
    for label, *cells in shown:
        if label == "ZipAR, window 2 / 4 / 8":
            here = [rows[f"ZipAR, window {window}"] for window in (2, 4, 8)]
        else:
            here = [rows[SHOWN[label]]]
        drafted = f"{here[0]['drafter_nfe']:.0f}"
        assert cells == [
            " / ".join(f"{row['speedup']:.2f}" for row in here),
            " / ".join(f"{row['target_nfe']:.0f}" for row in here),
            drafted,
            " / ".join(f"{row['prompt_accuracy']:.2f}" for row in here),
        ]
    assert len(shown) == len(SHOWN) + 1


def test_the_page_on_roofline() -> None:
    rows = {(row["world"], row["machine"]): row for row in result("roofline-study.json")["rows"]}
    shown = table("docs/explanation/roofline.md", "## Does it beat ADT-Tree?")
    assert len(shown) == len(rows)
    for world, machine, *cells in shown:
        row = rows[world, MACHINES[machine]]
        names = ("chain", "static tree", "eagle2", "adt", "adt, equal nodes", "roofline")
        mean, low, high = row["roofline_over"]["adt"]
        speeds = [f"{row['methods'][name]['speedup'][0]:.2f}" for name in (*names, "sampled")]
        assert [cell.strip("*") for cell in cells] == [
            *speeds[:-1],
            f"{mean:.2f}x ({low:.2f} to {high:.2f})",
            speeds[-1],
        ]


def test_chains_in_one_call_on_the_page_on_roofline() -> None:
    shown = []
    for row in result("chain-study-traces.json")["rows"]:
        speeds = [f"{row['methods'][name]['speedup'][0]:.2f}" for name in ("chain", "adt", "without calls", "roofline")]
        mean, low, high = row["roofline_over"]["adt"]
        shown.append([row["place"].removeprefix("t"), *speeds, f"{mean:.2f}x ({low:.2f} to {high:.2f})"])
    page = table("docs/explanation/roofline.md", "## On the shipped models")
    assert [[cell.strip("*") for cell in cells] for cells in page] == shown


@pytest.mark.parametrize(
    ("name", "words"), [("128", "**The shipped models.**"), ("mulo", "**MuLo-SD and ZipAR.**")], ids=["trees", "mulo"]
)
def test_the_page_on_the_simulator(name: str, words: str) -> None:
    rows = json.loads((RESULTS / f"predict-{name}-t1.json").read_text(encoding="utf-8"))
    assert table("docs/explanation/simulator.md", words) == [
        [
            *(row["method"], f"{tokens:.3f}", f"{row['tokens_per_cycle'][0]:.3f}"),
            *(f"{100 * (row['tokens_per_cycle'][0] / tokens - 1):+.1f} %", f"{100 * row['tokens_chance']:.1f} %"),
            *(f"{speedup:.3f}", f"{row['speedup'][0]:.3f}", f"{100 * (row['speedup'][0] / speedup - 1):+.1f} %"),
        ]
        for row in rows
        for tokens, speedup in [(row["measured_tokens_per_cycle"], row["measured_speedup"])]
    ]


def test_every_benchmark_and_result_is_listed() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    scripts = [path for path in RESULTS.parent.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert len(scripts) > 10
    assert [path.stem for path in scripts if f"`python -m benchmarks.{path.stem}" not in page] == []
    assert [path.name for path in RESULTS.iterdir() if f"`{path.name}`" not in page] == []
