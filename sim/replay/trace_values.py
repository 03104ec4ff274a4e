"""Check the numbers of a trace: probabilities, token ids and entropies must be in their ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.tree import NO_TOKEN
from underpaint.artifacts.arrays import ArrayForm
from underpaint.artifacts.strict_json import Within

if TYPE_CHECKING:
    from underpaint.sim.replay.trace import Trace

_ROUNDING: Final = 1e-4
"""Tolerance for probabilities and their sums, which are stored in float32."""
_LARGEST: Final = float(np.finfo(np.float32).max)
_MOST_SIDE: Final = 1 << 12
"""Largest number of rows or columns of codes."""
_MOST_CODES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class RowsHead:
    """The entry in a trace's head for rows drafted in one way; see `RowTrace`."""

    settings: Mapping[str, Any]
    rows_per_cycle: Annotated[int, Within(1, _MOST_SIDE)]


_Call: TypeAlias = tuple[
    Literal["begin", "pass", "chain", "sampled", "ranked"],
    Annotated[int, Within(1, 1 << 20)],
    Annotated[int, Within(1, 1 << 20)],
]
"""The fields of a `PassKind`."""


@dataclass(frozen=True, slots=True)
class DrawnHead:
    """The entry in a trace's head for images drawn by a method; see `DrawnTrace`."""

    recipe: Mapping[str, Any]
    target_kinds: tuple[_Call, ...]
    drafter_kinds: tuple[_Call, ...]


@dataclass(frozen=True, slots=True)
class TraceHead:
    """The JSON head that is stored with the arrays of a trace; see `Trace`."""

    format: int
    about: Mapping[str, Any]
    grid: tuple[Annotated[int, Within(1, _MOST_SIDE)], Annotated[int, Within(1, _MOST_SIDE)]]
    vocab_size: Annotated[int, Within(1, _MOST_CODES)]
    rows: tuple[RowsHead, ...] = ()
    drawn: tuple[DrawnHead, ...] = ()

    def __post_init__(self) -> None:
        model = self.about.get("model", {})
        fits = isinstance(model, Mapping) and isinstance(model.get("sha256", {}), Mapping)
        prompts = self.about.get("prompts", [])
        fits = fits and isinstance(prompts, list) and all(isinstance(one, str) for one in prompts)
        fits = fits and isinstance(self.about.get("sampler", {}), Mapping)
        if not fits:
            raise ValueError("head: about: expected a model with its sha256, a list of prompts, and its sampler")


def array_forms(vocab_size: int) -> dict[str, ArrayForm]:
    """The form of every array in a trace with `vocab_size` codes; see `Trace`, `RowTrace` and `DrawnTrace`."""

    def tokens(dimensions: int, low: int = 0) -> ArrayForm:
        return ArrayForm("whole", dimensions, low, vocab_size - 1)

    def shares(dimensions: int) -> ArrayForm:
        return ArrayForm("real", dimensions, -_ROUNDING, 1.0 + _ROUNDING)

    def nats(dimensions: int) -> ArrayForm:
        return ArrayForm("real", dimensions, -_ROUNDING, math.log(vocab_size) + _ROUNDING)

    return {
        "tokens": tokens(2),
        "target_tokens": tokens(3),
        "target_probs": shares(3),
        "draft_tokens": tokens(4),
        "draft_probs": shares(4),
        "target_entropy": nats(2),
        "draft_entropy": nats(3),
        "neighbour_mass": shares(2),
        "acceptance": shares(3),
        "codebook": ArrayForm("real", 2, -_LARGEST, _LARGEST),
        "drafts": tokens(2, NO_TOKEN),
        "distribution_tokens": tokens(3),
        "distribution_probs": shares(3),
        "low_passes": ArrayForm("whole", 2, 0, 1 << 20),
        "cycles": ArrayForm("whole", 1, 0, 1 << 24),
        "levels": ArrayForm("whole", 1, 0, 1 << 30),
        "target": ArrayForm("whole", 2, 0, 1 << 24),
        "drafter": ArrayForm("whole", 2, 0, 1 << 24),
        "host": ArrayForm("real", 1, 0.0, 1e9),
    }


def check_values(trace: Trace) -> None:
    """Raise ValueError if the likeliest tokens of a trace do not form distributions."""
    pairs = [
        ("target", trace.target_tokens, trace.target_probs),
        ("draft", trace.draft_tokens, trace.draft_probs),
        *(("distribution", one.distribution_tokens, one.distribution_probs) for one in trace.rows),
    ]
    if 0 in trace.target_probs.shape:
        raise ValueError(f"expected at least one image, cell and token, got shape {trace.target_probs.shape}")
    for name, tokens, probs in pairs:
        _check_likeliest(name, tokens, probs, trace.vocab_size)


def _check_likeliest(name: str, tokens: IntArray, probs: FloatArray, vocab_size: int) -> None:
    sums = probs.sum(axis=-1)
    if sums.size and sums.max() > 1.0 + _ROUNDING:
        raise ValueError(f"{name}_probs: expected distributions that sum to at most 1, got {sums.max():.4g}")
    if np.any(np.diff(probs, axis=-1) > _ROUNDING):
        raise ValueError(f"{name}_probs: expected the likeliest tokens first")
    ended = probs[..., -1] <= 0.0 if tokens.shape[-1] < vocab_size else np.ones(sums.shape, np.bool_)
    if np.any(sums[ended] < 1.0 - _ROUNDING):
        raise ValueError(
            f"{name}_probs: expected distributions over all their tokens to sum to 1, got {sums.min():.4g}"
        )
    # Places beyond a distribution's support are filled with token 0 at probability 0, possibly several times.
    masked_tokens = np.where(probs > 0.0, tokens, -1 - np.arange(tokens.shape[-1]))
    ordered = np.sort(masked_tokens, axis=-1)
    if np.any(np.diff(ordered, axis=-1) == 0):
        raise ValueError(f"{name}_tokens: expected each token once in a distribution, got one twice")
