"""Figures and pictures of a comparison on an exported model, which no judge reads."""

import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from underpaint.artifacts.manifest import write_beside
from underpaint.runtime.evaluation.compare import BASELINE, Plan
from underpaint.runtime.evaluation.report import speedup
from underpaint.runtime.evaluation.store import Cell, Store
from underpaint.runtime.exported_studio import ExportedStudio


class EngineRow(NamedTuple):
    """One method's means over images; `identical_share` only at temperature 0."""

    method: str
    lossless: bool
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    seconds_per_image: float
    target_nfe: float
    drafter_nfe: float
    tokens_per_cycle: float | None
    identical_share: float | None


def figures(plan: Plan, store: Store) -> tuple[EngineRow, ...]:
    """A row a method."""
    places = [(prompt.caption(), seed) for prompt in plan.prompts for seed in plan.seeds]
    base = [store[Cell(BASELINE, *place)] for place in places]
    rows = []
    for built in plan.methods:
        drawn = [store[Cell(built.name, *place)] for place in places]
        gain = speedup([one.seconds for one in base], [one.seconds for one in drawn])
        accepted = [kept for one in drawn for kept in one.accepted or ()]
        same = [one.tokens == other.tokens for one, other in zip(drawn, base, strict=True)]
        rows.append(
            EngineRow(
                built.name,
                built.lossless,
                gain.ratio,
                gain.low,
                gain.high,
                float(np.mean([one.seconds for one in drawn])),
                float(np.mean([one.target_nfe for one in drawn])),
                float(np.mean([one.drafter_nfe for one in drawn])),
                float(np.mean(accepted)) + 1.0 if accepted else None,
                sum(same) / len(same) if plan.sampler.temperature == 0 else None,
            )
        )
    return tuple(rows)


def write_pictures(studio: ExportedStudio, plan: Plan, store: Store, out: Path) -> list[Path]:
    """One PNG a method: its pictures under the first seed, side by side; none without a picture decoder."""
    written: list[Path] = []
    if studio.decoder is None:
        return written
    for built in plan.methods:
        drawn = [store[Cell(built.name, prompt.caption(), plan.seeds[0])] for prompt in plan.prompts]
        row = np.concatenate([studio.picture(one.tokens_array()) for one in drawn], axis=1)
        stream = io.BytesIO()
        Image.fromarray(row).save(stream, "PNG")
        path = out / f"{built.name.replace('+', '_')}.png"
        write_beside(path, stream.getvalue())
        written.append(path)
    return written
