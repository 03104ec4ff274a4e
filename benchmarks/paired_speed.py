"""One method beside every other of a comparison, picture by picture: how many times faster, and how much deeper.

Run: python -m benchmarks.paired_speed FOLDER [--method jacobi-lookup] [--figures FILE] [--out FILE]

FOLDER is what `underpaint compare --out` wrote; its log holds what every picture took. A comparison tells each method
beside plain AR; two methods are told apart more surely beside each other, on the same pictures. Depths are of a
cycle's draft, in levels, averaged over the cycles of a picture. Pictures are those of the first seed. Intervals: 95
%, bootstrap over pictures. The last line is JSON; --out writes it to a file too.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.report import finish, options, parse, refusing
from underpaint.algos.registry import suggest
from underpaint.runtime.drawing import Drawing
from underpaint.runtime.evaluation.paired import FigureInterval, paired_difference, speedup
from underpaint.runtime.page.document import ComparisonFolder


def deeper(theirs: Sequence[Drawing], own: Sequence[Drawing]) -> FigureInterval | None:
    """Return by how many levels the drafts of `own` are deeper, by picture; None if a picture of either has none."""
    if not all(one.depths and any(one.depths) for one in (*theirs, *own)):
        return None
    first, second = (np.array([[np.mean(one.depths or ()) for one in some]]) for some in (theirs, own))
    return paired_difference(first, second)


def main(arguments: list[str] | None = None) -> None:
    parser = options("paired_speed", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--method", default="jacobi-lookup")
    parser.add_argument("--figures", type=Path, help="the figures, where `compare --json` wrote them elsewhere")
    args = parse(parser, arguments)
    with refusing(parser):
        comparison = ComparisonFolder.read(args.folder, args.figures)
        names = tuple(row["method"] for row in comparison.results["rows"])
        if args.method not in names:
            raise ValueError(f"{args.folder} holds no method '{args.method}'; {suggest(args.method, names)}")
        if not comparison.drawings:
            raise ValueError(f"{args.folder} holds figures and no drawings.jsonl; name the folder of the comparison")
    rows = []
    for row in comparison.results["rows"]:
        if row["method"] == args.method:
            continue
        prompts = [prompt for method, prompt in comparison.drawings if method == row["method"]]
        theirs, own = (
            [comparison.drawings[method, prompt] for prompt in prompts] for method in (row["method"], args.method)
        )
        faster = speedup([one.seconds for one in theirs], [one.seconds for one in own])
        levels = deeper(theirs, own)
        rows.append(
            {
                "method": row["method"],
                "lossless": row["lossless"],
                "pictures": len(prompts),
                "faster": faster.value,
                "faster_low": faster.low,
                "faster_high": faster.high,
                "deeper": levels and levels.value,
                "deeper_low": levels and levels.low,
                "deeper_high": levels and levels.high,
            }
        )
        print(f"{row['method']:20s} {faster.value:.3f} ({faster.low} to {faster.high})")
    results = comparison.results
    compared = {name: results[name] for name in ("command", "machine")}
    finish({"of": args.method, "model": results["model"], "compared": compared, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
