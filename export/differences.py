"""How far what a graph computes lies from what its module computes, and the passes that are compared."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

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


class Tree(NamedTuple):
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


def draft_tree() -> Tree:
    """The tree that is compared: forks, chains, and a child of a late node."""
    paths: list[tuple[int, ...]] = [(0,)]
    for node in range(1, len(_PARENTS)):
        paths.append((*paths[_PARENTS[node]], node))
    visible = np.zeros((len(paths), len(paths)), dtype=np.bool_)
    for node, path in enumerate(paths):
        visible[node, list(path)] = True
    return Tree(tuple(paths), visible)
