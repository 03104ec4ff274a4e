"""One cycle of a rule and of its batched form, on the same trees and the same uniforms."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.spec import BatchedRule, TreeBatch, TreeLevel, assemble
from underpaint.algos.chance import At, FromUniforms, Role, sampling
from underpaint.algos.protocols import Budget, Grid, Policy, Rule
from underpaint.algos.tree import DraftTree
from underpaint.sim.batched.images import TableBatch, TableLookups
from underpaint.sim.synthetic.table_model import TableDrafter, TableModel, TableTarget
from underpaint.strategies import distributions

ROUNDING = 1e-12
UNIFORMS = st.sampled_from([0.0, *((49932 * turn + 1) / 1048573.0 for turn in range(21)), 1 - 2.0**-53])
"""Evenly spread; the denominator is prime, so that no probability ties with them."""
EXTRA = -1
"""The column of the extra token's uniform, behind those of the nodes."""


@st.composite
def table_models(draw: st.DrawFn, vocab_size: int = 3, cells: int = 7) -> TableModel:
    """Tables of one row of cells: ties, zeros and one-hot rows are common, and a drafter that is the target."""
    rows = 3 * vocab_size - 1  # a cell picks one of two blocks, and in it by the token before
    target = np.stack([draw(distributions(vocab_size)) for _ in range(rows)]).astype(np.float32)
    draft = np.stack([draw(distributions(vocab_size)) for _ in range(rows)]).astype(np.float32)
    starts = np.arange(cells)[None] % 2 * vocab_size
    classes = np.append(np.arange(vocab_size), 0)
    tables = np.stack([draw(st.sampled_from([draft, target])), draft])
    return TableModel("drawn", Grid(1, cells), target, tables, starts, classes, 1, np.zeros((vocab_size, 1)))


@dataclass(frozen=True, slots=True)
class Recorded(FromUniforms):
    """Uniforms by the depth of a node, EXTRA for draws; it keeps where each decision turns."""

    tree: DraftTree = field(kw_only=True)
    turns: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list), kw_only=True)

    def flip(self, chance_of: float, at: At, out_of: float = 1.0) -> bool:
        if 0.0 < chance_of < out_of:
            self.turns[len(self.tree.path_to(at.node))].append(chance_of / out_of)
        return FromUniforms.flip(self, chance_of, at, out_of)

    def draw(self, weights: FloatArray, at: At) -> int:
        steps = weights.astype(np.float64).cumsum()
        self.turns[EXTRA] += (steps / steps[-1])[:-1].tolist()
        return FromUniforms.draw(self, weights, at)


@dataclass(slots=True)
class Cycle:
    """Trees of one root in a model, the deepest first, and what decides them: uniforms [A, depth + 2]."""

    model: TableModel
    root: int
    trees: list[DraftTree]
    uniforms: FloatArray

    def target(self) -> TableTarget:
        target = TableTarget(self.model, 0)
        target.begin()
        return target

    def by_reference(self, rule: Rule, image: int) -> tuple[tuple[list[int], int], Recorded]:
        """Tokens kept and the extra one, and the decisions that made them."""
        tree = self.trees[image]

        def source(cycle: int, at: At) -> float:
            column = len(tree.path_to(at.node)) if at.role is Role.ACCEPT else EXTRA
            return float(self.uniforms[image, column])

        chance = Recorded(source, tree=tree)
        verdict = rule(tree, self.target().score(tree).probs, chance)
        return (tree.tokens[list(verdict.path)].tolist(), int(verdict.token)), chance

    def by_batch(self, rule: BatchedRule) -> list[tuple[list[int], int]]:
        """The same of all trees at once."""
        count = len(self.trees)
        draws: Any = GivenArrays(self.uniforms)
        batch = TableBatch(TableLookups(self.model, 2), 0, count, draws)
        batch.cell[:] = 1
        batch.canvas[:, 0] = self.root
        verdicts = rule(batch, tree_batch(batch, self.trees))
        rows = zip(verdicts.path.tolist(), verdicts.accepted.tolist(), verdicts.extra.tolist(), strict=True)
        return [(path[:accepted], extra) for path, accepted, extra in rows]


@dataclass(slots=True)
class GivenArrays:
    """The part of NumPy's generator that rules for chains draw from: one array, without the columns that are unused."""

    uniforms: FloatArray

    def random(self, size: tuple[int, int]) -> FloatArray:
        nodes: FloatArray = np.concatenate([self.uniforms[:, : size[1] - 1], self.uniforms[:, EXTRA:]], axis=1)
        return nodes


def tree_batch(batch: TableBatch, trees: Sequence[DraftTree]) -> TreeBatch:
    """Trees of one static shape, cut to falling depths, as a batched policy hands them over."""
    levels, passes = list[TreeLevel](), list[IntArray]()
    for depth in range(trees[0].depth):
        some = [tree for tree in trees if tree.depth > depth]
        whole = some[0].children()
        nodes = [node for node in range(some[0].size) if some[0].depths()[node] == depth]
        above = [node for node in range(some[0].size) if some[0].depths()[node] == depth - 1]
        flat = [child for node in above for child in whole[node]] or [0]
        tokens = np.array([[[tree.tokens[child] for child in whole[node]] for node in nodes] for tree in some])
        parents = np.array([tree.tokens[nodes] for tree in some])
        rows = batch.rows_after(np.arange(len(some)), depth, parents)
        place = np.array([[flat.index(node) for node in nodes]] * len(some))
        levels.append(TreeLevel(tokens, np.ones(tokens.shape, dtype=np.bool_), rows, place))
        passes.append(np.full(len(some), len(nodes)))
    return assemble(np.arange(len(trees)), levels, passes, np.zeros(len(trees), dtype=np.bool_))


@st.composite
def cycles(draw: st.DrawFn, policy: Policy) -> Cycle:
    """Up to three images, some of them near their end."""
    model = draw(table_models())
    root = draw(st.integers(0, model.vocab_size - 1))
    depths = sorted(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)), reverse=True)
    trees = []
    for depth in depths:
        drafter, target = TableDrafter(model, 0), TableTarget(model, 0)
        drafter.begin(target.begin())
        chance = sampling(draw(st.integers(0, 99)))
        trees.append(policy.grow(drafter, root, Budget(depth, 99), chance))
    uniforms = np.array([[draw(UNIFORMS) for _ in range(trees[0].depth + 2)] for _ in trees])
    return Cycle(model, root, trees, uniforms)


def check_same_decisions(data: st.DataObject, policy: Policy, rule: Rule, batched: BatchedRule) -> None:
    """The verdicts are the same, also where a uniform stands `ROUNDING` before or behind the point where one turns."""
    cycle = data.draw(cycles(policy))
    for image in range(len(cycle.trees)):
        _, chance = cycle.by_reference(rule, image)
        turns = [(column, turn) for column, column_turns in chance.turns.items() for turn in column_turns]
        if turns:
            column, turn = data.draw(st.sampled_from(turns))
            moved = turn + data.draw(st.sampled_from([-ROUNDING, ROUNDING]))
            cycle.uniforms[image, column] = min(max(moved, 0.0), 1.0 - 1e-9)
    expected = [cycle.by_reference(rule, image)[0] for image in range(len(cycle.trees))]
    assert cycle.by_batch(batched) == expected
