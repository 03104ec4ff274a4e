"""Where lossless methods part from plain decoding at temperature 0: how near the target's likeliest tokens lie there.

Run: python -m benchmarks.ties FOLDER [--figures FILE] [--engines DIR] [--out FILE]

FOLDER is what `underpaint compare --temperature 0 --out` wrote; its log holds the tokens of every picture. An engine
rounds a pass by how many positions it has. So a method with larger passes than plain decoding's can choose another
token where two tie, and all that follows is another picture. For each picture that parts, the target reads plain
decoding's tokens up to the first that differs, in passes of 1, 3 and 8, and tells by how much the log-probabilities of
the two tokens differ. A tie is a difference within what rounding may make of logits (`underpaint check --invariance`).
Pictures are those of the first seed. The last line is JSON; --out writes it to a file too.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.models import engines_option, open_models
from benchmarks.report import finish, options, parse, refusing
from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Target
from underpaint.runtime.evaluation.invariance import ALLOWED
from underpaint.runtime.evaluation.likelihood import tokens_log_likelihood, whole_distribution
from underpaint.runtime.page.document import ComparisonFolder

PASSES: Final = (1, 3, 8)
"""Positions of the passes in which the target reads."""


class Parting(NamedTuple):
    """cell: the first at which a picture's tokens are not plain decoding's. gaps: by how many nats plain decoding's
    token there leads, by the size of the passes."""

    cell: int
    gaps: tuple[float, ...]


def parting(target: Target, plain: IntArray, other: IntArray) -> Parting:
    """Where `other` [cells] parts from `plain` [cells], which differs, under a target that is set to their prompt."""
    cell = int(np.flatnonzero(plain != other)[0])
    line, instead = plain[: cell + 1], np.append(plain[:cell], other[cell])
    gaps = (tokens_log_likelihood(target, line, most) - tokens_log_likelihood(target, instead, most) for most in PASSES)
    return Parting(cell, tuple((cell + 1) * gap for gap in gaps))


def main(arguments: list[str] | None = None) -> None:
    parser = options("ties", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--figures", type=Path, help="the figures, where `compare --json` wrote them elsewhere")
    engines_option(parser)
    asked = parse(parser, arguments)
    with refusing(parser):
        found = ComparisonFolder.read(asked.folder, asked.figures)
        results, settings = found.results, found.results["settings"]
        if settings["temperature"] != 0:
            raise ValueError(f"expected a comparison at temperature 0, got one at {settings['temperature']:g}")
        models, name = open_models(asked, results["model"]["resolution"]), results["model"]["target"]
        sampling = whole_distribution(SamplingParams(guidance=settings["guidance"]))
        models.target(models.condition(settings["prompts"][0]), sampling)
        if models.hashes.get(name) != results["model"]["sha256"][name]:
            raise ValueError(f"{asked.folder} is of another {name} than {asked.engines} holds; name its by --engines")
    allowed = ALLOWED[results["model"]["precision"]]
    rows, partings = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in results["rows"]:
        if not row["lossless"] or row["method"] == "ar":
            continue
        pictures, apart = 0, list[float]()
        for (method, prompt), drawing in found.drawings.items():
            if method != row["method"]:
                continue
            pictures += 1
            plain, other = (np.asarray(one.tokens) for one in (found.drawings["ar", prompt], drawing))
            if not np.array_equal(plain, other):
                one = parting(models.target(models.condition(prompt), sampling).model, plain, other)
                apart.append(max(abs(gap) for gap in one.gaps))
                partings.append({"method": method, "prompt": prompt, **one._asdict()})
        beyond = sum(gap > allowed for gap in apart)
        rows.append({"method": row["method"], "pictures": pictures, "parted": len(apart), "beyond_ties": beyond})
        rows[-1]["largest_gap"] = max(apart, default=None)
        print(f"{row['method']:20s} {len(apart)} of {pictures} part, {beyond} of them where nothing ties")
    compared = {name: results[name] for name in ("command", "machine")}
    told = {"benchmark": "ties", "model": results["model"], "compared": compared, "allowed": allowed, "passes": PASSES}
    finish({**told, "rows": rows, "partings": partings}, asked.out)


if __name__ == "__main__":
    main()
