"""Measures how closely a graph matches its torch module: errors and reports."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.artifacts.decoder_config import Precision
from underpaint.models.decoder import Conditioner
from underpaint.runtime.engines.context import EngineContext, open_session

MOST: Final[Mapping[Precision, float]] = {"fp32": 1e-4, "fp16": 0.05, "bf16": 0.1}
"""Largest accepted difference from torch in float32, with equal rounded weights, over max(1, largest expected)."""


class Errors(NamedTuple):
    """Largest and mean absolute difference, over max(1, largest expected)."""

    largest: float
    mean: float


class ErrorSum:
    """Accumulates the errors of one output part by part, so that only one part is in memory at a time."""

    def __init__(self) -> None:
        self._largest, self._total, self._count, self._scale = 0.0, 0.0, 0, 1.0

    def add(self, actual: NDArray[Any] | Tensor, expected: Tensor) -> None:
        """Add a part, as an array or a tensor on any device; infinite if shapes differ or a value is not finite."""
        expected_values = expected.detach().float().numpy()
        values = actual.float().cpu().numpy() if isinstance(actual, Tensor) else actual.astype(np.float32)
        if values.shape != expected_values.shape or not np.isfinite(values).all():
            self._largest = self._total = float("inf")
            return
        apart = np.abs(values - expected_values)
        self._largest = max(self._largest, float(apart.max(initial=0.0)))
        self._total += float(apart.sum(dtype=np.float64))
        self._count += apart.size
        self._scale = max(self._scale, float(np.abs(expected_values).max(initial=0.0)))

    def errors(self) -> Errors:
        """Return the errors over all parts."""
        return Errors(self._largest / self._scale, self._total / self._scale / max(1, self._count))


def errors(actual: NDArray[Any], expected: Tensor) -> Errors:
    """Errors of one output; infinite if shapes differ or a value is not finite."""
    error_sum = ErrorSum()
    error_sum.add(actual, expected)
    return error_sum.errors()


class Parting(NamedTuple):
    """The first cell where greedy decoding differs from torch, and the gap of torch's best two logits there."""

    cell: int
    margin: float


class Report(NamedTuple):
    """Errors by case and output; `parting` is None if greedy decoding draws the same picture."""

    cases: Mapping[str, Mapping[str, Errors]]
    parting: Parting | None = None

    def worst(self) -> dict[str, float]:
        """Return the largest error of every case."""
        return {case: max(errors.largest for errors in outputs.values()) for case, outputs in self.cases.items()}


@torch.no_grad()
def compare_module(
    module: nn.Module, feed: str, cases: Mapping[str, Tensor], path: Path, context: EngineContext | None = None
) -> Report:
    """Compare the graph at `path`, whose input is `feed`, to its module in float32, output by output."""
    session, case_errors = open_session(path, context or EngineContext()), {}
    names = [each.name for each in session.get_outputs()]
    for case, input_tensor in cases.items():
        expected = module(input_tensor)
        results = zip(
            names, session.run(None, {feed: input_tensor.numpy()}),
            expected if isinstance(expected, tuple) else (expected,), strict=True,
        )  # fmt: skip
        case_errors[case] = {name: errors(result, tensor) for name, result, tensor in results}
    return Report(case_errors)


def compare_conditioner(
    conditioner: Conditioner, path: Path, seed: int = 0, context: EngineContext | None = None
) -> Report:
    """Compare the graph at `path` that embeds a condition: on random, absent and large features."""
    random = torch.randn(*conditioner.absent.shape, generator=torch.Generator().manual_seed(seed))
    cases = {"random": random, "absent": torch.zeros_like(random), "large": 3 * random}
    return compare_module(conditioner, "features", cases, path, context)
