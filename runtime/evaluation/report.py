"""What a comparison found: one row per method, speed-ups with their intervals, and the maps behind the pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray
from underpaint.algos.draft import Grid
from underpaint.runtime.evaluation.compare import BASELINE, Plan
from underpaint.runtime.evaluation.paired import interval_ends, paired_difference, resampled
from underpaint.runtime.evaluation.quality import PAIR, Reading, frechet_distance, frechet_floor, read_right
from underpaint.runtime.evaluation.store import Cell, Store
from underpaint.runtime.studio import Built, Drawing, Picture, Studio
from underpaint.zoo.prompts import Prompt


class Speedup(NamedTuple):
    """How many times faster than the baseline, and the ends of its interval (None below two pairs)."""

    ratio: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """One method's figures: means over images. Units in the names; shares in 0..1; None where it does not apply.

    tokens_per_cycle, mean_depth: over cycles with a draft, so the first token (from the condition alone) is left out.
    kept_share: of all cells, those that hold a drafted token. rejected_share: of all cells, those whose drafted token
    the rule refused, where every cell is drafted.
    overhead_share: of the seconds, what was spent outside the models: neither in the target's and the drafter's forward
    passes nor between two resolutions.
    target_ms_per_cycle, drafter_ms_per_cycle, host_ms_per_cycle: the seconds within the target, within the drafter and
    outside the models, over target passes (the first pass, which has no draft, among them).
    accuracy_over_ar: prompt accuracy less the baseline's on the same prompts and seeds; the interval is over prompts.
    identical_to_ar: at temperature 0, whether every image's tokens are AR's; identical_share: of the images.
    frechet_pictures: pictures behind both Fréchet figures, equal pictures of one prompt counted once.
    """

    method: str
    lossless: bool
    target_nfe: float
    drafter_nfe: float
    tokens_per_cycle: float | None
    mean_depth: float | None
    kept_share: float | None
    rejected_share: float | None
    seconds_per_image: float
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    overhead_share: float
    target_share: float
    drafter_share: float
    resampler_share: float
    target_ms_per_cycle: float | None
    drafter_ms_per_cycle: float | None
    host_ms_per_cycle: float | None
    prompt_accuracy: float | None
    accuracy_over_ar: float
    accuracy_over_ar_low: float | None
    accuracy_over_ar_high: float | None
    attribute_accuracy: dict[str, float]
    frechet_distance: float | None
    frechet_floor: float | None
    frechet_pictures: int
    identical_to_ar: bool | None
    identical_share: float | None
    images: int


class Found(NamedTuple):
    """Everything that the pictures and the table show."""

    rows: tuple[Row, ...]
    gallery: dict[str, list[Picture]]
    """Per method, the pictures of each prompt under the first seed."""
    acceptance: dict[str, FloatArray]
    """Per method, [height, width]: the share of images in which this cell was an accepted draft."""


def speedup(baseline: Sequence[float], method: Sequence[float]) -> Speedup:
    """The ratio of summed seconds of paired images, with a bootstrap interval over the pairs (95 %, percentiles)."""
    base, own = np.asarray(baseline, dtype=np.float64), np.asarray(method, dtype=np.float64)
    ratio = float(base.sum() / own.sum())
    if base.size < 2:
        return Speedup(ratio, None, None)
    chosen = resampled(base.size)
    return Speedup(ratio, *interval_ends(base[chosen].sum(axis=1) / own[chosen].sum(axis=1)))


def accepted_cells(drawing: Drawing, grid: Grid) -> BoolArray:
    """[height, width] whether each cell's token was an accepted draft; nowhere by a method that drafts nothing."""
    cells = np.zeros(grid.cells, dtype=np.bool_)
    if drawing.kept is not None:
        cells[list(drawing.kept)] = True
    if drawing.accepted is None:
        return cells.reshape(grid)
    place = 1
    for kept in drawing.accepted:
        cells[place : place + kept] = True
        place += kept + 1
    if place != grid.cells:
        raise ValueError(f"drawing: its cycles cover {place} cells, the grid has {grid.cells}; draw it again")
    return cells.reshape(grid)


def find(studio: Studio, plan: Plan, store: Store) -> Found:
    """The findings of a finished comparison: pictures are painted and judged here."""
    drawings = {
        built.name: [store[Cell(built.name, prompt.caption(), seed)] for seed in plan.seeds for prompt in plan.prompts]
        for built in plan.methods
    }
    prompts = {prompt.caption(): prompt for prompt in plan.prompts}
    looks = _Looks(studio, prompts)
    greedy = plan.sampler.temperature == 0
    rows = [_row(studio, built, drawings[built.name], drawings[BASELINE], looks, greedy) for built in plan.methods]
    first = len(plan.prompts)
    return Found(
        tuple(rows),
        {name: [looks.picture(drawing) for drawing in drawn[:first]] for name, drawn in drawings.items()},
        {
            name: np.mean([accepted_cells(drawing, studio.grid) for drawing in drawn], axis=0)
            for name, drawn in drawings.items()
        },
    )


class _Looks:
    """Pictures and the judge's readings of them, each made once."""

    def __init__(self, studio: Studio, prompts: dict[str, Prompt]) -> None:
        self._studio = studio
        self._prompts = prompts
        self._seen: dict[tuple[int, ...], tuple[Picture, Reading]] = {}

    def _look(self, drawing: Drawing) -> tuple[Picture, Reading]:
        if drawing.tokens not in self._seen:
            picture = self._studio.picture(drawing.tokens_array())
            self._seen[drawing.tokens] = picture, self._studio.read(picture)
        return self._seen[drawing.tokens]

    def picture(self, drawing: Drawing) -> Picture:
        return self._look(drawing)[0]

    def reading(self, drawing: Drawing) -> Reading:
        return self._look(drawing)[1]

    def read_right(self, drawn: Sequence[Drawing]) -> dict[str, BoolArray]:
        return read_right([self.reading(one) for one in drawn], [self._prompts[one.prompt] for one in drawn])


def _row(
    studio: Studio, built: Built, drawn: list[Drawing], baseline: list[Drawing], looks: _Looks, greedy: bool
) -> Row:
    seconds = sum(one.seconds for one in drawn)
    cells = len(drawn) * studio.grid.cells
    kept = sum(int(accepted_cells(one, studio.grid).sum()) for one in drawn) / cells if built.drafts else None
    refused = [one.rejected for one in drawn if one.rejected is not None]
    lengths, depths = _per_cycle(drawn)
    gain = speedup([one.seconds for one in baseline], [one.seconds for one in drawn])
    target_share = sum(one.target_seconds for one in drawn) / seconds
    drafter_share = sum(one.drafter_seconds for one in drawn) / seconds
    resampler_share = sum(one.resampler_seconds for one in drawn) / seconds
    right, base_right = looks.read_right(drawn), looks.read_right(baseline)[PAIR]
    seeds = len({one.seed for one in drawn})
    apart = paired_difference(base_right.reshape(seeds, -1), right[PAIR].reshape(seeds, -1))
    per_cycle = None if lengths is None else 1e3 * seconds / sum(one.target_nfe for one in drawn)
    host_share = 1.0 - target_share - drafter_share - resampler_share
    distinct = {(one.prompt, one.tokens): one for one in drawn}
    features = np.stack([looks.reading(one).features for one in distinct.values()])
    same = [one.tokens == other.tokens for one, other in zip(drawn, baseline, strict=True)]
    return Row(
        method=drawn[0].method,
        lossless=built.lossless,
        target_nfe=_mean([one.target_nfe for one in drawn]),
        drafter_nfe=_mean([one.drafter_nfe for one in drawn]),
        tokens_per_cycle=lengths,
        mean_depth=depths,
        kept_share=kept,
        rejected_share=sum(refused) / cells if refused else None,
        seconds_per_image=seconds / len(drawn),
        speedup=gain.ratio,
        speedup_low=gain.low,
        speedup_high=gain.high,
        overhead_share=host_share,
        target_share=target_share,
        drafter_share=drafter_share,
        resampler_share=resampler_share,
        target_ms_per_cycle=None if per_cycle is None else target_share * per_cycle,
        drafter_ms_per_cycle=None if per_cycle is None else drafter_share * per_cycle,
        host_ms_per_cycle=None if per_cycle is None else host_share * per_cycle,
        prompt_accuracy=float(right[PAIR].mean()),
        accuracy_over_ar=apart.mean,
        accuracy_over_ar_low=apart.low,
        accuracy_over_ar_high=apart.high,
        attribute_accuracy={slot: float(hits.mean()) for slot, hits in right.items() if slot != PAIR},
        frechet_distance=frechet_distance(features, studio.reference.features_a) if len(features) > 1 else None,
        frechet_floor=frechet_floor(studio.reference, len(features)),
        frechet_pictures=len(features),
        identical_to_ar=all(same) if greedy else None,
        identical_share=sum(same) / len(same) if greedy else None,
        images=len(drawn),
    )


def _per_cycle(drawn: Sequence[Drawing]) -> tuple[float | None, float | None]:
    """Tokens and levels per cycle with a draft; None without such cycles."""
    accepted = [kept for one in drawn for kept in one.accepted or ()]
    depths = [depth for one in drawn for depth in one.depths or ()]
    return (float(np.mean(accepted)) + 1.0, float(np.mean(depths))) if accepted else (None, None)


def _mean(values: Sequence[int]) -> float:
    return float(np.mean(values))


def to_dict(found: Found, settings: dict[str, Any], model: dict[str, Any], machine: dict[str, Any]) -> dict[str, Any]:
    """The findings as the JSON file holds them."""
    return {
        "machine": machine,
        "model": model,
        "settings": settings,
        "rows": [dataclasses.asdict(row) for row in found.rows],
        "acceptance_per_cell": {name: np.round(cells, 4).tolist() for name, cells in found.acceptance.items()},
    }
