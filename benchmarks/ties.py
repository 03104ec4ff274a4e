"""Where lossless methods part from plain decoding at temperature 0: how near the target's likeliest tokens lie there.

Run: python -m benchmarks.ties FOLDER [--figures FILE] [--models DIR] [--out FILE]

FOLDER is what `underpaint compare --temperature 0 --out` wrote; its log holds the tokens of every picture. An engine
rounds a pass by how many positions it has. So a method with larger passes than plain decoding's can choose another
token where two tie, and all that follows is another picture. For each picture that parts, the target reads plain
decoding's tokens up to the first that differs, in passes of 1, 3 and 8, and tells by how much the log-probabilities of
the two tokens differ. A tie is a difference that `underpaint check --invariance` allows, in each of these passes.
Pictures are those of the first seed. The last line is JSON; --out writes it to a file too.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.report import finish, models_option, options, parse, refusing
from underpaint.algos.arrays import IntArray
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Target
from underpaint.runtime.engines.context import CPU
from underpaint.runtime.evaluation.likelihood import tokens_log_likelihood, whole_distribution
from underpaint.runtime.evaluation.pass_comparison import ALLOWED
from underpaint.runtime.page.document import ComparisonFolder
from underpaint.runtime.pipeline import Pipeline

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


def read(folder: Path, figures: Path | None) -> ComparisonFolder:
    """A comparison whose partings can be told; ValueError otherwise."""
    found = ComparisonFolder.read(folder, figures)
    temperature, engine = found.results["settings"]["temperature"], found.results["model"]["engine"]
    if temperature != 0:
        raise ValueError(f"expected a comparison at temperature 0, got one at {temperature:g}; name another folder")
    if engine != CPU:
        raise ValueError(f"expected a comparison on the engine {CPU}, which reads here, got one on {engine}")
    if not found.drawings:
        raise ValueError(f"{folder} holds figures and no drawings.jsonl; name the folder of the comparison")
    return found


def partings(found: ComparisonFolder, models: Pipeline, sampling: SamplingParams, method: str) -> list[dict[str, Any]]:
    """Every picture of a method that is not plain decoding's, by its prompt."""
    told = []
    for (name, prompt), drawing in found.drawings.items():
        plain, other = (np.asarray(one.tokens) for one in (found.drawings["ar", prompt], drawing))
        if name == method and not np.array_equal(plain, other):
            one = parting(models.target(models.condition(prompt), sampling).model, plain, other)
            told.append({"method": method, "prompt": prompt, **one._asdict()})
    return told


def main(arguments: list[str] | None = None) -> None:
    parser = options("ties", __doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--figures", type=Path, help="the figures, where `compare --json` wrote them elsewhere")
    models_option(parser)
    asked = parse(parser, arguments)
    with refusing(parser):
        found = read(asked.folder, asked.figures)
        results, settings, model = found.results, found.results["settings"], found.results["model"]
        models, name = Pipeline.open(asked.models, resolution=model["resolution"]), model["target"]
        sampling = whole_distribution(SamplingParams(guidance=settings["guidance"]))
        models.target(models.condition(settings["prompts"][0]), sampling)
        if models.hashes.get(name) != model["sha256"][name]:
            raise ValueError(f"{asked.folder} is of another {name} than {asked.models} holds; name its by --models")
    allowed, rows, every = ALLOWED[model["precision"]], list[dict[str, Any]](), list[dict[str, Any]]()
    for row in results["rows"]:
        if not row["lossless"] or row["method"] == "ar":
            continue
        apart = partings(found, models, sampling, row["method"])
        gaps = [max(abs(gap) for gap in one["gaps"]) for one in apart]
        pictures = sum(method == row["method"] for method, _ in found.drawings)
        beyond = sum(gap > allowed for gap in gaps)
        told = {"method": row["method"], "pictures": pictures, "parted": len(gaps), "beyond_ties": beyond}
        rows.append(told | {"largest_gap": max(gaps, default=None)})
        every += apart
        print(f"{row['method']:20s} {len(gaps)} of {pictures} part, {beyond} of them where nothing ties")
    compared = {name: results[name] for name in ("command", "machine")}
    figures = {"benchmark": "ties", "model": model, "compared": compared, "allowed": allowed, "passes": PASSES}
    finish({**figures, "rows": rows, "partings": every}, asked.out)


if __name__ == "__main__":
    main()
