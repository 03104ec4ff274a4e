"""Fit an image field to what was recorded: five knobs, five statistics."""

import dataclasses
from typing import Any, Final, NamedTuple

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import FloatArray
from underpaint.algos.transport import overlap
from underpaint.algos.tree import NO_TOKEN
from underpaint.sim.batched.decoding import make_scheme, run_lockstep
from underpaint.sim.replay.trace import MOST_CODES_NEAR, Statistics, entropy
from underpaint.sim.synthetic.field import FieldSettings, field_model
from underpaint.sim.synthetic.table_model import TableModel

_IMAGES: Final = 128
"""Images drawn for the statistics of a field: with a few, the fit follows the noise of the draws."""
_STEPS: Final = 30
_NUDGE: Final = 0.05
_RANGES: Final = {
    "sharpness": (0.05, 60.0),
    "contrast": (1.0, 400.0),
    "spread": (0.005, 3.0),
    "noise": (0.02, 8.0),
    "drift": (0.001, 3.0),
}
"""The knobs, and how far each may be turned."""


def model_statistics(model: TableModel, images: int = _IMAGES, seed: int = 0) -> Statistics:
    """The statistics of a table model, at the contexts that plain decoding visits."""
    done = run_lockstep(model, make_scheme(model, "chain", "chain", {"length": 1}), images, seed)
    cells = np.arange(model.grid.cells)
    above = cells - model.grid.width
    upper = np.where(above >= 0, done.canvas[:, np.maximum(above, 0)], NO_TOKEN)
    before = np.where(cells > 0, done.canvas[:, np.maximum(cells - 1, 0)], NO_TOKEN)
    rows = model.rows(done.images[:, None], cells[None], before, upper)
    near = nearest_codes(model.codebook, min(MOST_CODES_NEAR, model.vocab_size - 1))
    drawn = done.canvas
    assert isinstance(model.target, np.ndarray)
    assert isinstance(model.draft, np.ndarray)
    kept = overlap(model.target, model.draft)[:, rows[:, 1:]].reshape(model.draft.shape[0], -1).mean(axis=1)
    held = model.target[rows, drawn] + model.target[rows[..., None], near[drawn]].sum(axis=-1)
    return Statistics(
        top_probability=float(model.target.max(axis=1)[rows].mean()),
        contrast=float(entropy(model.target)[rows].std()),
        neighbour_mass=float(held.mean()),
        acceptance=float(kept[0]),
        acceptance_later=float(kept[1:].mean() if kept.size > 1 else kept[0]),
    )


class Fitted(NamedTuple):
    """A field fitted to statistics, and the statistics that it reached."""

    settings: FieldSettings
    wanted: Statistics
    reached: Statistics


def fit_field(wanted: Statistics, start: FieldSettings) -> Fitted:
    """Turn sharpness, contrast, spread, noise and drift of `start` until the field's statistics are `wanted`.

    `start.depth_known` says over how many tokens past the root the drafter's acceptance is compared. Damped least
    squares (Levenberg's) on the logarithms of both. What a field cannot be is approached: compare `reached` with
    `wanted`. Raises ValueError on statistics that are not positive.
    """
    goal = np.array(wanted)
    if not (goal > 0.0).all():
        raise ValueError(f"fit: expected positive statistics, got {wanted}")
    low, high = np.log(np.array(list(_RANGES.values()))).T
    knobs = np.clip(np.log([getattr(start, name) or 0.1 for name in _RANGES]), low, high)

    def misses(at: FloatArray) -> FloatArray:
        found: FloatArray = np.log(np.array(model_statistics(field_model(_turned(start, at))))) - np.log(goal)
        return found

    missed, damping = misses(knobs), 0.1
    for _ in range(_STEPS):
        slopes = np.stack([(misses(knobs + nudge) - missed) / _NUDGE for nudge in _NUDGE * np.eye(knobs.size)], axis=1)
        square = slopes.T @ slopes
        step = np.linalg.solve(square + damping * np.eye(knobs.size), -slopes.T @ missed)
        tried = np.clip(knobs + np.clip(step, -1.0, 1.0), low, high)
        after = misses(tried)
        if after @ after < missed @ missed:
            knobs, missed, damping = tried, after, damping / 3.0
        else:
            damping *= 4.0
    settings = _turned(start, knobs)
    return Fitted(settings, wanted, model_statistics(field_model(settings)))


def _turned(start: FieldSettings, knobs: FloatArray) -> FieldSettings:
    changed: dict[str, Any] = {name: float(np.exp(value)) for name, value in zip(_RANGES, knobs, strict=True)}
    return dataclasses.replace(start, **changed)
