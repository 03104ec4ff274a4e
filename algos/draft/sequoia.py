"""Sequoia: the best static tree for a measured acceptance by rank and an engine's cost curve."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.draft.costs import MEASURED_DRAFT_MS, MEASURED_VERIFY_MS, Between, CostCurve, cost_curve
from underpaint.algos.draft.shape import fill_sampled, fill_top_k
from underpaint.algos.draft.spec import POLICIES, PolicySpec
from underpaint.algos.protocols import Budget, Expander, Grid
from underpaint.algos.registry import MOST_MS, Bounds, Milliseconds, Nodes, Share, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Shape, Verdict


class StaticTree(NamedTuple):
    """A static tree with its expected tokens and its cost."""

    shape: Shape
    tokens: float
    """Expected tokens per cycle, including the extra token."""
    cost_ms: float
    """Cost of one drafter pass per level, of the drafting call itself if it has a cost, and of one target pass."""

    @property
    def rate(self) -> float:
        """Expected tokens per ms of a cycle."""
        return self.tokens / self.cost_ms


@dataclass(slots=True)
class Sequoia:
    """Sequoia's tree (arXiv 2402.12374, section 3): dynamic programming over size and depth, chosen by cost.

    Attributes:
        acceptance: [ranks], the probability that the child of this rank is kept when a node's children are tried.
            Measure it with `acceptance_by_rank`; the default halves from 0.5 and is an example, not a measurement.
        verify_ms: The target passes of the engine's cost curve, see `CostCurve`.
        draft_ms: The drafter pass of this curve, see `CostCurve`.
        call_ms: If the drafter drafts a whole tree in one call, the cost of the call in addition to its levels
            (`draft_ms` each); >= 0.
        between: The cost of a size between two measured sizes, see `CostCurve`.
        max_depth: The most levels, >= 1.
    """

    name: ClassVar[str] = "sequoia"
    acceptance: tuple[Share, ...] = (0.5, 0.25, 0.125, 0.0625)
    verify_ms: Annotated[tuple[tuple[int, float], ...], Bounds(0.0, MOST_MS, above=True)] = MEASURED_VERIFY_MS
    draft_ms: Milliseconds = MEASURED_DRAFT_MS
    call_ms: Milliseconds = 0.0
    between: Between = "line"
    max_depth: Annotated[Nodes, Tune((4, 6, 8, 10))] = 8
    _costs: CostCurve = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.acceptance = tuple(self.acceptance)
        if not self.acceptance:
            raise ValueError(f"policy '{self.name}': acceptance must be probabilities by rank, got {self.acceptance}")
        check_bounds(f"policy '{self.name}'", self)
        self._costs = cost_curve(self.verify_ms, self.draft_ms, self.between)

    def begin(self, grid: Grid) -> None: ...

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree. Node i is drawn at `At(Role.DRAFT, i)`; near the end of the image the tree is replanned."""
        return fill_sampled(self.shape_within(budget), drafter, root, chance)

    def observe(self, tree: DraftTree, verdict: Verdict, cell: int) -> None: ...

    def shape_within(self, budget: Budget) -> Shape:
        """Return the shape planned for a cycle within `budget`, before drafting."""
        depth = max(0, min(self.max_depth, budget.max_depth))
        return best_static_tree(self.acceptance, self._costs, depth, max(1, budget.max_nodes), self.call_ms).shape


@dataclass(slots=True)
class SequoiaTopK(Sequoia):
    """The same tree with the likeliest tokens, for decoding at temperature 0, where nothing is drawn.

    acceptance: [ranks], as in `Sequoia`, but of the likeliest tokens.
    """

    name: ClassVar[str] = "sequoia_top_k"

    def grow(self, drafter: Expander, root: int, budget: Budget, chance: Chance) -> DraftTree:
        """Grow the tree, without any random draw."""
        return fill_top_k(self.shape_within(budget), drafter, root)


@lru_cache(maxsize=256)
def best_static_tree(
    acceptance: tuple[float, ...], costs: CostCurve, max_depth: int, max_nodes: int, call_ms: float = 0.0
) -> StaticTree:
    """Return the shape with the most expected tokens per ms, with at most `max_depth` levels and `max_nodes` nodes.

    The expected tokens of a tree are the sum over its nodes of the product of acceptance[rank] along the path (the
    root's product, 1, is the extra token). The plain step, only a root, is one of the shapes.

    Args:
        acceptance: [ranks], the probability that the child of this rank is kept, see `Sequoia`.
        costs: The engine's cost curve; the tree is no larger than its largest size.
        max_depth: The most levels.
        max_nodes: The most nodes, including the root.
        call_ms: Cost of a drafting call, in addition to its levels.
    """
    largest = min(max_nodes, costs.max_nodes)
    verify = costs.table()
    tables = [_Table(_leaf(largest), ())]
    best, best_rate = StaticTree((-1,), 1.0, float(verify[0])), 1.0 / float(verify[0])
    for depth in range(1, min(max_depth, largest - 1) + 1):
        tables.append(_deeper(acceptance, tables[-1].value))
        spent = call_ms + depth * costs.draft_ms + verify[:largest]
        rates = tables[-1].value[1:] / spent
        nodes = int(rates.argmax())
        if rates[nodes] > best_rate:
            best_rate = float(rates[nodes])
            shape = _shape(tables, depth, nodes + 1)
            best = StaticTree(shape, float(tables[-1].value[nodes + 1]), float(spent[nodes]))
    return best


class _Table(NamedTuple):
    """The best trees of at most one depth, by size."""

    value: FloatArray
    """[nodes + 1]: expected tokens of the best tree with exactly this many nodes, -inf if there is none."""
    last: tuple[IntArray, ...]
    """[rank][nodes + 1]: for the best tree whose root has children of ranks 0..rank, the size of the last subtree."""
    ranks: IntArray | None = None
    """[nodes + 1]: the number of children of the root in the best tree."""


def _leaf(largest: int) -> FloatArray:
    value = np.full(largest + 1, -np.inf)
    value[1] = 1.0
    return value


def _deeper(acceptance: tuple[float, ...], below: FloatArray) -> _Table:
    """Return trees one level deeper than those with values `below`, adding the root's children one rank at a time."""
    sizes = below.size
    with_ranks = [_leaf(sizes - 1)]
    last = []
    for chance_of in acceptance:
        worth = np.full(sizes, -np.inf)
        worth[below > 0.0] = chance_of * below[below > 0.0]
        before, after, split = with_ranks[-1], np.full(sizes, -np.inf), np.zeros(sizes, dtype=np.int64)
        for nodes in range(2, sizes):
            totals = before[nodes - 1 : 0 : -1] + worth[1:nodes]  # the last child gets 1..nodes-1
            split[nodes] = int(totals.argmax()) + 1
            after[nodes] = totals[split[nodes] - 1]
        with_ranks.append(after)
        last.append(split)
    values = np.stack(with_ranks)
    return _Table(values.max(axis=0), tuple(last), values.argmax(axis=0))


def _shape(tables: list[_Table], depth: int, nodes: int) -> Shape:
    """Return the best tree with this number of nodes, level by level."""
    parents = [-1]
    level = [(0, nodes)]
    for depth_left in range(depth, 0, -1):
        table, deeper = tables[depth_left], []
        for node, size in level:
            children = []
            ranks = 0 if table.ranks is None else int(table.ranks[size])
            for rank in range(ranks - 1, -1, -1):
                children.append(int(table.last[rank][size]))
                size -= children[-1]
            for child in reversed(children):
                deeper.append((len(parents), child))
                parents.append(node)
        level = deeper
    return tuple(parents)


def acceptance_by_rank(verified: Iterable[tuple[DraftTree, Verdict]], ranks: int) -> tuple[float, ...]:
    """Return how often the child of each rank was kept, relative to how often its node was reached.

    Only nodes with a child of that rank count.

    Args:
        verified: Trees with enough children at each node, and the verdicts on them.
        ranks: The number of ranks, >= 1.

    Raises:
        ValueError: A rank was never tried.
    """
    tried, accepted = [0] * ranks, [0] * ranks
    for tree, verdict in verified:
        below = tree.children()
        for node, chosen in zip((0, *verdict.path), (*verdict.path, -1), strict=True):
            for rank, child in enumerate(below[node][:ranks]):
                tried[rank] += 1
                accepted[rank] += child == chosen
    if min(tried) == 0:
        raise ValueError(f"acceptance_by_rank: rank {tried.index(0)} was never tried; decode with wider trees")
    return tuple(hits / trials for hits, trials in zip(accepted, tried, strict=True))


_EXAMPLE: Final[Mapping[str, Any]] = {
    "acceptance": (0.6, 0.2),
    "max_depth": 2,
    "verify_ms": ((1, 1.0), (5, 1.2)),
}
SPEC = POLICIES.register(
    PolicySpec(
        name="sequoia",
        greedy_variant="sequoia_top_k",
        device="underpaint.runtime.device.static_growth:sequoia_plan",
        make=Sequoia,
        drawn="without_replacement",
        source="arXiv 2402.12374, section 3",
        deviations="size and depth are chosen within the measured cost curve only",
        cost_aware=True,
        examples=(_EXAMPLE,),
    )
)
LIKELIEST = POLICIES.register(
    PolicySpec(
        name="sequoia_top_k",
        device="underpaint.runtime.device.static_growth:sequoia_plan",
        make=SequoiaTopK,
        drawn="top_k",
        source="arXiv 2402.12374, section 3: the same trees at temperature 0",
        deviations="size and depth are chosen within the measured cost curve only",
        cost_aware=True,
        examples=(_EXAMPLE,),
    )
)
