"""Compares a decoder's passes with passes of one token, and the differences with what rounding may cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray
from underpaint.artifacts.decoder_config import Precision

Arithmetic: TypeAlias = Precision | Literal["int8"]
"""A decoder's arithmetic. int8: float32 around 8-bit matrices, where a difference in the last bit becomes a step."""
ALLOWED: Final[Mapping[Arithmetic, float]] = {"fp32": 1e-4, "fp16": 0.05, "bf16": 0.2, "int8": 0.1}
"""Largest difference of logits that rounding may cause, divided by max(1, the largest logit)."""
Form: TypeAlias = Literal["chain", "beside"]
"""chain: the positions are one path, each seeing those before it. beside: a token among others that it cannot see."""


class ArgmaxFlip(NamedTuple):
    """A cell where another token became most likely.

    Attributes:
        cell: Index of the cell.
        margin: The most likely token's lead in a pass of 1, in logits.
    """

    cell: int
    margin: float


@dataclass(frozen=True, slots=True)
class PassComparison:
    """One kind of pass compared with passes of 1.

    Attributes:
        model: The decoder's name.
        precision: The decoder's arithmetic.
        form: How the positions of the pass see each other; see `Form`.
        rows: Number of rows in the pass.
        row: The row compared, from 0.
        count: Number of new positions in the pass.
        tokens: Number of tokens compared.
        logits: Largest absolute difference of logits.
        probs: Largest absolute difference of probabilities.
        relative: Largest difference of a token's logits over max(1, the largest logit).
        flips: Number of tokens where another code became the most likely.
        first_flip: The first of these; None if there is none.
        least_margin: Smallest lead of the most likely code over all tokens, in logits.
    """

    model: str
    precision: Arithmetic
    form: Form
    rows: int
    row: int
    count: int
    tokens: int
    logits: float
    probs: float
    relative: float
    flips: int
    first_flip: ArgmaxFlip | None
    least_margin: float

    @property
    def passed(self) -> bool:
        """Whether rounding may cause the difference."""
        return self.relative <= ALLOWED[self.precision]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as JSON, with numbers to four significant digits."""
        flip = None if self.first_flip is None else self.first_flip._asdict()
        plain = {**asdict(self), "first_flip": flip, "passed": self.passed}
        return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in plain.items()}


@dataclass(slots=True)
class RowDifferences:
    """Differences of one row of passes, collected over a sequence; NaN and infinity count as the largest float32."""

    tokens: int = 0
    logits: float = 0.0
    probs: float = 0.0
    relative: float = 0.0
    flips: int = 0
    first: ArgmaxFlip | None = None
    margin: float = float("inf")

    def add(self, cell: int, logits: NDArray[np.float32], alone: NDArray[np.float32]) -> None:
        """Add one token's logits [V] from the pass, and from a pass of 1."""
        apart = float(np.abs(np.nan_to_num(logits).astype(np.float64) - alone).max())
        if not np.isfinite(logits).all():
            apart, logits = float(np.finfo(np.float32).max), np.zeros_like(alone)
        second, best = np.partition(alone, -2)[-2:].tolist()
        self.tokens += 1
        self.logits = max(self.logits, apart)
        self.relative = max(self.relative, apart / max(1.0, float(np.abs(alone).max())))
        self.probs = max(self.probs, float(np.abs(softmax(logits) - softmax(alone)).max()))
        self.margin = min(self.margin, best - second)
        if int(logits.argmax()) != int(alone.argmax()):
            self.flips += 1
            self.first = self.first or ArgmaxFlip(cell, best - second)

    def result(self, model: str, arithmetic: Arithmetic, form: Form, rows: int, row: int, count: int) -> PassComparison:
        """The comparison of all tokens added so far."""
        return PassComparison(
            *(model, arithmetic, form, rows, row, count, self.tokens),
            *(self.logits, self.probs, self.relative, self.flips, self.first, self.margin),
        )


def softmax(logits: NDArray[np.float32]) -> FloatArray:
    """Probabilities [V] of logits [V], in float64."""
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    probs: FloatArray = weights / weights.sum()
    return probs


def summary(passes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The worst comparison of every model, form and count over all rows, for tables; `passes` are JSON values.

    One that failed is worse than any that passed, then one with more flips, then a larger difference.
    """
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for one in passes:
        groups.setdefault((one["model"], one["form"], one["count"]), []).append(one)
    return [max(group, key=lambda one: (not one["passed"], one["flips"], one["relative"])) for group in groups.values()]
