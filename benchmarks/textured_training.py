"""What was trained of a folder of models, for how long, and what it reached: from the manifests in it.

Run: python -m benchmarks.textured_training [--models runs/textured] [--out FILE]

Manifests tell the steps and the seconds of training that made a model, what it began from, its last validation, and
that of what it began from ("reached_before").
Seconds are those of the machines that trained, which manifests do not name. The last line is JSON; --out holds it too.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import options, parse, refusing
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.model_index import read_index
from underpaint.artifacts.results import results_text
from underpaint.runtime.evaluation.machine import typed_command
from underpaint.zoo.load import manifest, names

WORTH_TELLING = (
    "validation_ce",
    "validation_kl",
    "psnr",
    "accuracy",
    "top1",
    "codes_used",
    "things_and_finishes",
    "ce",
)
"""Beginnings and ends of validation figures that a table has room for."""


def began(story: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A model's training, and the trainings that it began from, the last first."""
    yield story
    runs = story.get("runs") or ()
    before = runs[0].get("began_from") if runs else None
    if before is not None:
        yield from began(before)


def trained(name: str, folder: Path) -> dict[str, Any] | None:
    """The row of one model; None where its manifest tells no training."""
    held = manifest(name, folder)
    if not held.training:
        return None
    stories = list(began(held.training))
    last = stories[0]
    runs = last.get("runs") or ()
    reached, before = (
        {
            figure: value
            for figure, value in (story.get("validation") or {}).items()
            if math.isfinite(value) and figure.startswith(WORTH_TELLING) | figure.endswith(WORTH_TELLING)
        }
        for story in (stories[0], stories[1] if len(stories) > 1 else {})
    )
    return {
        "model": name,
        "steps": last["step"],
        "steps_before": sum(one["step"] for one in stories[1:]),
        "seconds": sum(one.get("elapsed_seconds", 0.0) for one in stories),
        "batch": runs[-1]["how"].get("settings", {}).get("batch") if runs else None,
        "reached": reached,
        "reached_before": before,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = options("textured_training", __doc__)
    parser.add_argument("--models", type=Path, default=Path("runs/textured"), help="folder of models")
    asked = parse(parser, arguments)
    with refusing(parser):
        index = read_index(asked.models)
        rows = [row for name in sorted(names(asked.models)) if (row := trained(name, asked.models)) is not None]
        if not rows:
            raise ValueError(f"{asked.models}: no manifest tells how its model was trained; export them again")
    for row in rows:
        reached = ", ".join(f"{name} {value:.4g}" for name, value in row["reached"].items())
        print(f"{row['model']:16s} {row['steps']:7d} steps {row['seconds'] / 60:8.1f} min  {reached}")
    hashes = index.hashes([row["model"] for row in rows])
    target = manifest(index.resolutions[-1].target, asked.models) if index.resolutions else None
    codes = None if target is None else target.settings["vocab_size"]
    found = {"family": index.family, "vocab_size": codes, "model": {"sha256": hashes}, "rows": rows}
    told = {**found, "command": typed_command()}
    if asked.out is not None:
        write_beside(asked.out, results_text(told).encode())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
