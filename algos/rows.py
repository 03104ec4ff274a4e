"""Operations on rows of logits: guidance, temperature, top-k, top-p, softmax."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from underpaint.algos.arrays import FloatArray

LEAST_TEMPERATURE: Final = 1e-4
MOST_TEMPERATURE: Final = 1e4
MOST_GUIDANCE: Final = 1e4
"""Limits beyond which logits in float32 or float16 overflow or lose all precision."""
TOP_P_ROUNDING: Final = 1e-6
"""How far the mass kept by top-p may fall below it: several float32 rounding errors. Also the smallest top-p."""
_BELOW_ONE: Final = float(np.nextafter(np.float32(1), np.float32(0)))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How logits become a distribution. Lossless rules are exact only if target and drafter use the same parameters.

    Attributes:
        guidance: Classifier-free guidance scale s, logits = uncond + s (cond - uncond), from 0 to `MOST_GUIDANCE`; 1
            means no guidance.
        temperature: 0, or from `LEAST_TEMPERATURE` to `MOST_TEMPERATURE`. At 0 the distribution is one-hot at the
            (first) largest logit.
        top_k: Number of tokens kept by logit, plus ties with the last one; 0 keeps all.
        top_p: Keep the smallest set of likeliest tokens with this mass, ties by token id: tokens in order of falling
            probability, at least one, until their float64 sum reaches `kept_mass`. 1 keeps all. The minimum is
            `TOP_P_ROUNDING`: smaller values would keep only the likeliest token; use temperature 0 for that.
    """

    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        warm = self.temperature == 0 or LEAST_TEMPERATURE <= self.temperature <= MOST_TEMPERATURE
        for name, value, right, expected in (
            ("guidance", self.guidance, 0 <= self.guidance <= MOST_GUIDANCE, f">= 0 and at most {MOST_GUIDANCE:g}"),
            (
                *("temperature", self.temperature, warm),
                f">= 0 (0 takes the likeliest token; others lie from {LEAST_TEMPERATURE:g} to {MOST_TEMPERATURE:g})",
            ),
            ("top_k", self.top_k, self.top_k >= 0, ">= 0 (0 keeps all)"),
            (
                *("top_p", self.top_p, TOP_P_ROUNDING <= self.top_p <= 1),
                f"in [{TOP_P_ROUNDING:g}, 1]; for the likeliest token alone take temperature 0",
            ),
        ):
            if not right:
                raise ValueError(f"sampler: {name} must be {expected}, got {value!r}")

    @property
    def float32_top_p(self) -> float:
        """`top_p` rounded to float32 for exported graphs; values below 1 stay below 1, so that the filter stays on."""
        return 1.0 if self.top_p >= 1 else min(float(np.float32(self.top_p)), _BELOW_ONE)

    @property
    def kept_mass(self) -> float:
        """The mass that the tokens kept by top-p must reach: `float32_top_p` - `TOP_P_ROUNDING`, in float64."""
        return self.float32_top_p - TOP_P_ROUNDING


def sampling_probs(logits: FloatArray, sampler: SamplingParams) -> FloatArray:
    """Return the token distributions for raw logits.

    Args:
        logits: Floating [B, N, V]. B = 1, or B = 2 for a guidance pair (the conditional row first).
        sampler: Guidance, temperature, top-k and top-p.

    Returns:
        [N, V] with the dtype of `logits`; every row sums to 1.

    Raises:
        ValueError: If the shape is wrong or a logit is not finite.
    """
    if logits.ndim != 3 or logits.shape[0] not in (1, 2):
        raise ValueError(f"sampling_probs: expected logits [B, N, V] with B of 1 or 2, got shape {tuple(logits.shape)}")
    guided = logits.shape[0] == 2
    rows = logits[1] + sampler.guidance * (logits[0] - logits[1]) if guided else logits[0]
    # One NaN or infinity makes the sum non-finite; in float64, finite float32 logits (even mask values) never do.
    if not np.isfinite(np.sum(rows, dtype=np.float64)):
        raise ValueError("sampling_probs: expected finite logits, got NaN or infinity; check the engine's parity")
    if sampler.temperature == 0:
        return _one_hot(rows)
    cut = 0 < sampler.top_k < rows.shape[-1]
    if cut:
        last = rows.shape[-1] - sampler.top_k
        top_logits = np.partition(rows, last, axis=-1)[:, last:]
    lowered = rows - np.max(top_logits if cut else rows, axis=-1, keepdims=True)
    masses = np.exp(lowered if sampler.temperature == 1 else lowered / sampler.temperature)
    if cut:
        masses *= (rows >= top_logits[:, :1]).astype(masses.dtype)  # faster than np.where
    probs: FloatArray = masses / np.sum(masses, axis=-1, keepdims=True)
    return _nucleus(probs, sampler.kept_mass) if sampler.top_p < 1 else probs


def _one_hot(rows: FloatArray) -> FloatArray:
    best = np.argmax(rows, axis=-1)
    hot: FloatArray = (np.arange(rows.shape[-1])[None, :] == best[:, None]).astype(rows.dtype)
    return hot


def _nucleus(probs: FloatArray, mass: float) -> FloatArray:
    """Keep in rows [N, V] only the likeliest tokens that reach `mass` (ties: the smallest ids), and renormalise."""
    falling = np.flip(np.sort(probs, axis=-1), axis=-1)
    wide = falling.astype(np.float64)
    before = np.cumsum(wide, axis=-1) - wide
    kept_count = np.maximum(np.sum(before < mass, axis=-1, keepdims=True), 1)
    floor = np.take_along_axis(falling, kept_count - 1, axis=-1)
    above, level = probs > floor, probs == floor
    room = kept_count - np.sum(above, axis=-1, keepdims=True)
    first = np.cumsum(level, axis=-1) <= room
    masses = np.where(above | (level & first), probs, np.zeros_like(probs))
    nucleus: FloatArray = masses / np.sum(masses, axis=-1, keepdims=True)
    return nucleus
