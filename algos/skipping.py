"""Verification skipping (VVS): some cycles commit a drafted path without a target pass."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.draft.tree_builder import fuses_trees
from underpaint.algos.path_similarity import path_similarity
from underpaint.algos.protocols import Expander, FusedTreeLevel, FusedTreeSpec, Policy, Rule
from underpaint.algos.registry import Bounds, CellsOrNone, Nodes, PositiveShare, Tune, check_bounds
from underpaint.algos.step import Cycle, Drafter, Scored, Target, check_probs, cycles
from underpaint.algos.tree import DraftTree, Verdict

Schedule: TypeAlias = Literal["uniform", "similarity"]
"""Which cycles are skipped: every n-th cycle, or those whose drafted paths are similar."""
SkipWatch: TypeAlias = Callable[[DraftTree, FloatArray], None]
"""Callback after the target has scored the root of a skipped tree: the tree, and the target's distribution [V]."""


@dataclass(frozen=True, slots=True)
class Skipping:
    """When to skip verification (arXiv 2511.13587), and how many tokens to commit then. Two cycles in a row never skip.

    Attributes:
        every: For "uniform": 0 skips no cycle, else >= 2.
        longest: The largest number of tokens that a skipped cycle commits, >= 1. The mean acceptance per verified
            cycle, rounded down, is a second limit, so nothing is skipped before a draft token was accepted.
        schedule: "uniform" skips the cycles whose number is a multiple of `every`. "similarity" skips if
            `path_similarity` of the draft tree, with this `decay`, is at least `threshold`.
    """

    every: Annotated[CellsOrNone, Tune((2, 3, 4, 6))] = 4
    longest: Annotated[Nodes, Tune((2, 3, 4, 5))] = 4
    schedule: Schedule = "uniform"
    threshold: Annotated[float, Bounds(-1.0, 1.0)] = 0.7
    decay: PositiveShare = 0.9

    def __post_init__(self) -> None:
        check_bounds("skipping", self)
        if self.every == 1:
            raise ValueError(f"skipping: every must be 0 (never) or >= 2 (no two skips in a row), got {self.every}")

    @property
    def never(self) -> bool:
        """Whether all cycles are verified."""
        return self.schedule == "uniform" and self.every == 0


def skipped_distribution(tree: DraftTree, vocab_size: int) -> FloatArray:
    """Return the distribution [V] of the first token that a skipped cycle commits, given its tree: the root's child on
    the path to a leaf drawn uniformly. Raises ValueError for a tree without drafts."""
    if tree.size < 2:
        raise ValueError("skipping: a tree with no drafts is never skipped")
    distribution, leaves = np.zeros(vocab_size), tree.leaves
    for leaf in leaves:
        distribution[tree.tokens[tree.path_to(leaf)[0]]] += 1.0 / len(leaves)
    return distribution


@dataclass(slots=True)
class _UncommittedDrafter:
    """A `TreeExpander` that drafts below tokens not committed to the drafter yet, from the drafter's own features."""

    drafter: Expander
    vocab_size: int = field(init=False)
    _above: int = -1
    _here: list[int] = field(default_factory=list)
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    _distributions: list[FloatArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.vocab_size = self.drafter.vocab_size

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        if parents[0] == -1:
            root = self._reach(self._above, int(tokens[0]))
            self._here = [root]
            return self._distributions[root][None, :]
        above = [self._here[parent] for parent in parents.tolist()]
        for node in self._add(tokens, above):
            self._here.append(node)
        return np.stack(self._distributions[-tokens.size :])

    @property
    def fuses_trees(self) -> bool:
        """Only if nothing was expanded since the last commit: a drafter grows trees from its committed tokens."""
        return fuses_trees(self.drafter) and not self._distributions

    def expand_tree(self, root: int, growth: FusedTreeSpec) -> list[FusedTreeLevel]:
        assert fuses_trees(self.drafter)
        levels = self.drafter.expand_tree(root, growth)
        self._nodes[self._above, root] = 0
        self._here = [0]
        self._distributions.append(levels[0].distributions[0].copy())
        return levels

    def descend(self, tokens: Sequence[int]) -> None:
        """Set the next root below `tokens`, which begin with the current root."""
        for token in tokens:
            self._above = self._reach(self._above, token)

    def committed(self) -> None:
        """Restart the node ids, because the drafter has committed all tokens."""
        self._above = -1
        self._nodes.clear()
        self._distributions.clear()

    def _reach(self, above: int, token: int) -> int:
        if (above, token) not in self._nodes:
            self._add(np.array([token], dtype=np.int64), [above])
        return self._nodes[above, token]

    def _add(self, tokens: IntArray, above: list[int]) -> range:
        first = len(self._distributions)
        self._distributions.extend(self.drafter.expand(tokens, np.array(above, dtype=np.int64)))
        for node, edge in enumerate(zip(above, tokens.tolist(), strict=True), start=first):
            self._nodes.setdefault(edge, node)
        return range(first, len(self._distributions))


def _joined(pending: tuple[int, ...], tree: DraftTree) -> DraftTree:
    """Return `tree` with the tokens `pending` as a chain above its root."""
    count = len(pending)
    return DraftTree(
        tokens=np.concatenate([np.array(pending, dtype=np.int64), tree.tokens]),
        parents=np.concatenate([np.arange(-1, count - 1, dtype=np.int64), tree.parents + count]),
        drawn=tree.drawn,
        draft_probs=tree.draft_probs,
        draft_rows=np.concatenate([np.full(count, -1, dtype=np.int64), tree.draft_rows]),
    )


@dataclass(slots=True)
class _SkippedCycles:
    """The `Verification` of one image, with the tokens that were committed but not scored yet."""

    target: Target
    rule: Rule
    skipping: Skipping
    committed_to: Drafter
    codebook: FloatArray | None = None
    watch: SkipWatch | None = None
    skipped: DraftTree | None = None
    drafter: _UncommittedDrafter = field(init=False)
    pending: tuple[int, ...] = ()
    accepted: int = 0
    verified: int = 0

    def __post_init__(self) -> None:
        self.drafter = _UncommittedDrafter(self.committed_to)

    @property
    def reserved_nodes(self) -> int:
        return len(self.pending)

    def begin(self, scored: Scored, verdict: Verdict) -> None:
        self.committed_to.begin(scored)

    def decide(self, tree: DraftTree, number: int, chance: Chance) -> tuple[Verdict, bool]:
        may_skip = tree.size > 1 and not self.pending and self.accepted >= self.verified > 0
        if may_skip and self._is_due(tree, number):
            return self._skip(tree, chance), False
        return self._verify(tree, chance), True

    def _is_due(self, tree: DraftTree, number: int) -> bool:
        settings = self.skipping
        if settings.schedule == "uniform":
            return settings.every > 0 and number % settings.every == 0
        assert self.codebook is not None
        return path_similarity(tree, self.codebook, settings.decay) >= settings.threshold

    def _verify(self, tree: DraftTree, chance: Chance) -> Verdict:
        """Run one pass over the pending tokens and `tree`: keep the former, and let the rule decide the latter."""
        joined, count = _joined(self.pending, tree), len(self.pending)
        scored = self.target.score(joined)
        check_probs(scored.probs, joined, self.target.vocab_size)
        verdict = self.rule(tree, scored.probs[count:], chance)
        whole = Verdict((*range(1, count + 1), *(node + count for node in verdict.path)), verdict.token)
        self.target.commit(joined, whole)
        self.committed_to.commit(joined, whole, scored)
        self.drafter.committed()
        if self.watch is not None and self.skipped is not None:
            self.watch(self.skipped, scored.probs[0])
        self.pending, self.skipped = (), None
        self.verified += 1
        self.accepted += len(verdict.path)
        return verdict

    def _skip(self, tree: DraftTree, chance: Chance) -> Verdict:
        """Commit, without a target pass, a path to a uniformly drawn leaf of `tree`, cut to the allowed length."""
        is_leaf = np.zeros(tree.size)
        is_leaf[tree.leaves] = 1.0
        most = min(self.skipping.longest, self.accepted // self.verified)
        path = tree.path_to(chance.draw(is_leaf, At(Role.PATH, 0)))[:most]
        self.pending = tuple(int(tree.tokens[node]) for node in (0, *path[:-1]))
        self.drafter.descend(self.pending)
        self.skipped = tree
        return Verdict(path[:-1], int(tree.tokens[path[-1]]))


def skipping_cycles(
    target: Target,
    drafter: Drafter,
    policy: Policy,
    rule: Rule,
    chance: Chance,
    skipping: Skipping,
    max_nodes: int = 64,
    codebook: FloatArray | None = None,
    watch: SkipWatch | None = None,
) -> Iterator[Cycle]:
    """Decode one image without verifying some of its cycles.

    With the uniform schedule and `skipping.every` 0 it decodes as `algos.step.cycles` does.

    A skipped cycle makes no target pass. The next pass scores its tokens as a chain above the new tree. These tokens
    are kept whatever the target's distribution, and then enter the KV caches of target and drafter.

    Args:
        target: The target model. Its condition is already set.
        drafter: The drafter.
        policy: Decides the shape of each draft tree.
        rule: Decides which draft tokens are accepted in verified cycles.
        chance: The randomness of the image.
        skipping: Which cycles are skipped, and how many tokens they commit.
        max_nodes: The most nodes that the target can score in a pass, including the root and the pending tokens.
        codebook: [V, E], for schedule "similarity".
        watch: Called for each skipped tree that the next pass covers.

    Raises:
        ValueError: `max_nodes` leaves no room for the pending tokens, the codebook is missing, or the policy exceeds
            its budget.
    """
    if max_nodes <= skipping.longest:
        raise ValueError(f"skipping: expected max_nodes > longest = {skipping.longest}, got {max_nodes}")
    if skipping.schedule == "similarity" and codebook is None:
        raise ValueError("skipping: schedule 'similarity' compares codes; give the codebook")
    verification = _SkippedCycles(target, rule, skipping, drafter, codebook, watch)
    yield from cycles(target, drafter, policy, rule, chance, max_nodes, verification)
