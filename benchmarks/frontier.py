"""What a unit of bias buys, by method: speed-up against total variation a token, and against quality.

Run: python -m benchmarks.frontier FOLDER [--json FIGURES] [--picture FILE] [--out FILE]

FOLDER is what `underpaint compare --out FOLDER --save-replay N` wrote, with the methods to be compared;
--json names its figures where they lie elsewhere. The bias of a method is the mean over its recorded replays; lossless
methods have none. A method is dominated where another is faster and no worse, and *clearly* so where that is beyond
the noise: the interval of how many times faster it is, picture by picture, lies above 1, and the two intervals of the
other measure do not overlap. A log-likelihood or an accuracy above plain autoregression's counts as its own: pictures
that the target holds likelier than its own are not better, only sharper. Intervals: 95 %, bootstrap over pictures.
--picture draws all three measures side by side. The last line is JSON; --out writes it to a file too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.frontier_plot import MEASURES, draw_frontier
from benchmarks.report import finish, options, parse, refusing
from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.evaluation.replay import mean_token_bias
from underpaint.runtime.evaluation.report import speedup
from underpaint.runtime.files import check_file_writable
from underpaint.runtime.page.document import ComparisonFolder

BASELINE: Final = "ar"
UNIT: Final = 0.1
"""Of total variation: what `bought` is told for."""
_QUALITY: Final = ("log_likelihood_over_ar", "accuracy_over_ar")


class Measured(NamedTuple):
    """A figure and the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


def main(arguments: list[str] | None = None) -> None:
    parser = options("frontier", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="the comparison's figures, where they lie elsewhere")
    parser.add_argument("--picture", type=Path, help="write the picture here (PNG)")
    asked = parse(parser, arguments)
    with refusing(parser):
        if asked.picture is not None:
            check_file_writable(asked.picture)
        found = ComparisonFolder.read(asked.folder, asked.json)
        check(asked.folder, found)
    rows = frontier(found)
    show(rows)
    results = found.results
    told = {name: results["settings"][name] for name in ("temperature", "guidance", "preset")}
    sampler = {name: results["settings"][name] for name in ("top_k", "top_p")}
    compared = {name: results[name] for name in ("command", "machine")}
    if asked.picture is not None:
        write_beside(asked.picture, draw_frontier(rows))
    told["pictures"] = max(row["images"] for row in rows)
    told["replays"] = len({(one.prompt, one.seed) for one in found.replays})
    finish({**told, "sampler": sampler, "model": results["model"], "compared": compared, "rows": rows}, asked.out)


def check(folder: Path, found: ComparisonFolder) -> None:
    """ValueError unless the comparison holds what the frontier is drawn from."""
    if not found.drawings:
        raise ValueError(f"{folder} holds figures and no drawings.jsonl; name the folder of the comparison")
    if BASELINE not in {row["method"] for row in found.results["rows"]}:
        raise ValueError(f"{folder}: expected plain autoregression among the methods; compare with --methods ar,...")
    if found.results["settings"]["temperature"] == 0:
        raise ValueError(f"{folder}: at temperature 0 there is no distribution to be biased; compare at temperature 1")
    relaxed = {row["method"] for row in found.results["rows"] if not row["lossless"]}
    if not relaxed:
        raise ValueError(f"{folder}: every method is lossless, so none buys speed with bias; compare relaxed ones too")
    if not relaxed & {one.method for one in found.replays if one.token_bias is not None}:
        raise ValueError(f"{folder} holds no replay that tells a bias; repeat its command with --save-replay 16")


def frontier(found: ComparisonFolder) -> list[dict[str, Any]]:
    """A row for each method but the baseline, the fastest first: its figures, and who dominates it by each measure."""
    figures = {row["method"]: row for row in found.results["rows"] if row["method"] != BASELINE}
    measured = {name: _measures(row, found) for name, row in figures.items()}
    exact = max((row["speedup"] for row in found.results["rows"] if row["lossless"]), default=1.0)
    rows = []
    for name, row in sorted(figures.items(), key=lambda pair: -pair[1]["speedup"]):
        bias = measured[name]["token_bias"]
        told: dict[str, Any] = {"method": name, "lossless": row["lossless"], "images": row["images"]}
        for measure, one in {"speedup": _interval(row, "speedup"), **measured[name]}.items():
            told |= (
                {measure: None, f"{measure}_low": None, f"{measure}_high": None}
                if one is None
                else {
                    measure: one.mean,
                    f"{measure}_low": one.low,
                    f"{measure}_high": one.high,
                }
            )
        told["bought"] = (row["speedup"] - exact) / bias.mean * UNIT if bias is not None and bias.mean else None
        for measure in MEASURES:
            told[f"{measure}_dominated"] = dominated(name, measure, measured, figures, found)
        rows.append(told)
    return rows


def dominated(
    name: str,
    measure: str,
    measured: Mapping[str, Mapping[str, Measured | None]],
    figures: Mapping[str, Mapping[str, Any]],
    found: ComparisonFolder,
) -> dict[str, list[str]]:
    """Which methods are faster and no worse by a measure ("by"), and which of them beyond the noise ("clearly")."""
    own = measured[name][measure]
    if own is None:
        return {"by": [], "clearly": []}
    loss = MEASURES[measure].loss
    by, clearly = [], []
    for other, figure in figures.items():
        theirs = measured[other][measure]
        if other == name or theirs is None or figure["speedup"] <= figures[name]["speedup"]:
            continue
        if loss(theirs.mean) > loss(own.mean):
            continue
        by.append(other)
        worst, best = max(loss(theirs.low), loss(theirs.high)), min(loss(own.low), loss(own.high))
        if worst <= best and _times_faster(other, name, found).low > 1.0:
            clearly.append(other)
    return {"by": by, "clearly": clearly}


def _measures(row: Mapping[str, Any], found: ComparisonFolder) -> dict[str, Measured | None]:
    return {"token_bias": _bias(row, found), **{name: _interval(row, name) for name in _QUALITY}}


def _interval(row: Mapping[str, Any], name: str) -> Measured | None:
    """A figure of a row; an interval that a single picture does not have is the figure itself."""
    mean = row.get(name)
    return None if mean is None else _measured(mean, row.get(f"{name}_low"), row.get(f"{name}_high"))


def _bias(row: Mapping[str, Any], found: ComparisonFolder) -> Measured | None:
    told = mean_token_bias(row["method"], row["lossless"], found.replays)
    return None if told is None else _measured(*told)


def _measured(mean: float, low: float | None, high: float | None) -> Measured:
    return Measured(mean, mean if low is None else low, mean if high is None else high)


def _times_faster(method: str, than: str, found: ComparisonFolder) -> Measured:
    """How many times faster a method is than another, on the same pictures."""
    prompts = [prompt for name, prompt in found.drawings if name == method]
    seconds = ([found.drawings[name, prompt].seconds for prompt in prompts] for name in (than, method))
    gain = speedup(*seconds)
    return Measured(gain.ratio, gain.low or gain.ratio, gain.high or gain.ratio)


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'method':22s} speed-up  bias   bought/{UNIT:g}  log-likelihood  accuracy  dominated (by bias) by")
    for row in rows:
        shown = [
            "-".rjust(width) if row[name] is None else format(row[name], f"{width}.{digits}f")
            for name, width, digits in (
                ("speedup", 8, 2),
                ("token_bias", 6, 3),
                ("bought", 11, 2),
                ("log_likelihood_over_ar", 15, 3),
                ("accuracy_over_ar", 9, 3),
            )
        ]
        print(f"{row['method']:22s} " + " ".join(shown) + "  " + ", ".join(row["token_bias_dominated"]["by"]))


if __name__ == "__main__":
    main()
