"""How far what a graph computes lies from what its module computes: errors, reports, and passes that are compared."""

from collections.abc import Iterator, Mapping
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
"""The largest difference from torch in float32, on the same rounded weights, over max(1, largest expected)."""
_CHUNKS: Final = (1, 2, 1, 8, 5, 16, 1)
"""New positions a pass, in turn: one token, small trees, large trees."""
_PARENTS: Final = (-1, 0, 0, 1, 1, 2, 3, 5, 0, 8, 4)


class Errors(NamedTuple):
    """Largest and mean absolute difference, over max(1, largest expected)."""

    largest: float
    mean: float


def errors(found: NDArray[Any], expected: torch.Tensor) -> Errors:
    """Errors of one output; infinite where shapes or finiteness differ."""
    wanted, given = expected.detach().float().numpy(), found.astype(np.float32)
    if given.shape != wanted.shape or not np.isfinite(given).all():
        return Errors(float("inf"), float("inf"))
    apart = np.abs(given - wanted) / max(1.0, float(np.abs(wanted).max()))
    return Errors(float(apart.max()), float(apart.mean()))


def chunks(length: int) -> Iterator[slice]:
    """Passes of several sizes over `length` positions."""
    start = turn = 0
    while start < length:
        stop = min(length, start + _CHUNKS[turn % len(_CHUNKS)])
        yield slice(start, stop)
        start, turn = stop, turn + 1


class ComparedTree(NamedTuple):
    """A draft tree: the nodes on the way to each node, itself last; `visible` [N, N], whether a row sees a column."""

    paths: tuple[tuple[int, ...], ...]
    visible: NDArray[np.bool_]

    @property
    def depths(self) -> NDArray[np.int64]:
        """Nodes above each, int64 [N]."""
        return np.array([len(path) - 1 for path in self.paths])

    def leaves(self) -> list[int]:
        """The nodes without children."""
        return sorted(set(range(len(self.paths))) - set(_PARENTS))


def draft_tree() -> ComparedTree:
    """The tree that is compared: forks, chains, and a child of a late node."""
    paths: list[tuple[int, ...]] = [(0,)]
    for node in range(1, len(_PARENTS)):
        paths.append((*paths[_PARENTS[node]], node))
    visible = np.zeros((len(paths), len(paths)), dtype=np.bool_)
    for node, path in enumerate(paths):
        visible[node, list(path)] = True
    return ComparedTree(tuple(paths), visible)


class Parting(NamedTuple):
    """Where greedy decoding first parts from torch: the cell, and how far torch's best two logits lie apart there."""

    cell: int
    margin: float


class Report(NamedTuple):
    """Errors by case and output; `parting` is None where greedy decoding draws the same picture."""

    cases: Mapping[str, Mapping[str, Errors]]
    parting: Parting | None

    def worst(self) -> dict[str, float]:
        """The largest error of every case."""
        return {case: max(errors.largest for errors in found.values()) for case, found in self.cases.items()}


@torch.no_grad()
def compare_module(module: nn.Module, feed: str, result: str, cases: Mapping[str, Tensor], path: Path) -> Report:
    """The graph at `path`, of one input and one output, against its module in float32."""
    session = open_session(path, EngineContext())
    found = {
        case: {result: errors(session.run(None, {feed: given.numpy()})[0], module(given))}
        for case, given in cases.items()
    }
    return Report(found, None)


def compare_conditioner(conditioner: Conditioner, path: Path, seed: int = 0) -> Report:
    """A report on the graph at `path` that embeds a condition: random, absent and large features."""
    random = torch.randn(*conditioner.absent.shape, generator=torch.Generator().manual_seed(seed))
    cases = {"random": random, "absent": torch.zeros_like(random), "large": 3 * random}
    return compare_module(conditioner, "features", "rows", cases, path)
