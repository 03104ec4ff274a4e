"""Verification skipping (VVS): now and then a drafted path is committed unseen, and the next pass takes it in."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from underpaint.algos.accept.spec import Rule
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.draft.spec import Budget, Expander, Policy
from underpaint.algos.step import Cycle, Drafter, Target, check_probs
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict, root_only


@dataclass(frozen=True, slots=True)
class Skipping:
    """When to skip (arXiv 2511.13587, uniform policy), and how much to commit then.

    every: cycles numbered by its multiples are skipped; 0 skips none, else >= 2, as two skips never follow each other.
    longest: the most tokens committed unseen, >= 1; the mean number accepted per verified cycle, rounded down, is
    another bound, so nothing is skipped before something was accepted.
    """

    every: int = 4
    longest: int = 4

    def __post_init__(self) -> None:
        if self.every < 0 or self.every == 1:
            raise ValueError(f"skipping: every must be 0 (never) or >= 2 (no two skips in a row), got {self.every}")
        if self.longest < 1:
            raise ValueError(f"skipping: longest must be >= 1, got {self.longest}")


class SkippingCycle(NamedTuple):
    """A cycle, and whether the target looked at it; if not, `cycle.verdict` spells what was committed unseen."""

    cycle: Cycle
    verified: bool


@dataclass(slots=True)
class _Onward:
    """An `Expander` that goes on below tokens which the drafter has not committed yet, from its own features."""

    drafter: Expander
    vocab_size: int = field(init=False)
    _above: int = -1
    _here: list[int] = field(default_factory=list)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)
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

    def descend(self, tokens: Sequence[int]) -> None:
        """The next root will stand below `tokens`, which begin with the present one."""
        for token in tokens:
            self._above = self._reach(self._above, token)

    def committed(self) -> None:
        """The drafter has taken everything in: ids start anew."""
        self._above = -1
        self._known.clear()
        self._distributions.clear()

    def _reach(self, above: int, token: int) -> int:
        if (above, token) not in self._known:
            self._add(np.array([token], dtype=np.int64), [above])
        return self._known[above, token]

    def _add(self, tokens: IntArray, above: list[int]) -> range:
        first = len(self._distributions)
        self._distributions.extend(self.drafter.expand(tokens, np.array(above, dtype=np.int64)))
        for node, edge in enumerate(zip(above, tokens.tolist(), strict=True), start=first):
            self._known.setdefault(edge, node)
        return range(first, len(self._distributions))


def _joined(pending: tuple[int, ...], tree: DraftTree) -> DraftTree:
    """`tree` with `pending` as a chain above its root."""
    count = len(pending)
    return DraftTree(
        tokens=np.concatenate([np.array(pending, dtype=np.int64), tree.tokens]),
        parents=np.concatenate([np.arange(-1, count - 1, dtype=np.int64), tree.parents + count]),
        drawn=tree.drawn,
        draft_probs=tree.draft_probs,
        draft_rows=np.concatenate([np.full(count, -1, dtype=np.int64), tree.draft_rows]),
    )


@dataclass(slots=True)
class _Verifier:
    """One image: the models, and what was committed but not seen by them."""

    target: Target
    drafter: Drafter
    rule: Rule
    onward: _Onward
    pending: tuple[int, ...] = ()
    accepted: int = 0
    verified: int = 0

    def verify(self, tree: DraftTree, chance: Chance) -> Verdict:
        """One pass over the pending tokens and `tree`: the former stay, the rule decides the latter."""
        joined, count = _joined(self.pending, tree), len(self.pending)
        scored = self.target.score(joined)
        check_probs(scored.probs, joined, self.target.vocab_size)
        verdict = self.rule(tree, scored.probs[count:], chance)
        whole = Verdict((*range(1, count + 1), *(node + count for node in verdict.path)), verdict.token)
        self.target.commit(joined, whole)
        self.drafter.commit(joined, whole, scored)
        self.onward.committed()
        self.pending = ()
        self.verified += 1
        self.accepted += len(verdict.path)
        return verdict

    def skip(self, tree: DraftTree, longest: int, chance: Chance) -> Verdict:
        """Commit a path to a leaf of `tree`, uniform over the leaves, cut to length, unseen."""
        is_leaf = np.ones(tree.size)
        is_leaf[tree.parents[1:]] = 0.0
        path = tree.path_to(chance.draw(is_leaf, At(Role.PATH, 0)))[: min(longest, self.accepted // self.verified)]
        self.pending = tuple(int(tree.tokens[node]) for node in (0, *path[:-1]))
        self.onward.descend(self.pending)
        return Verdict(path[:-1], int(tree.tokens[path[-1]]))


def skipping_cycles(
    target: Target,
    drafter: Drafter,
    policy: Policy,
    rule: Rule,
    chance: Chance,
    skipping: Skipping,
    max_nodes: int = 64,
) -> Iterator[SkippingCycle]:
    """Decode one image with some cycles unverified; with `skipping.every` 0, as `algos.step.cycles`.

    A skipped cycle makes no target pass. The next pass scores what it committed as a chain above the new tree; those
    tokens stay whatever the target says of them, and enter its cache and the drafter's then.
    Raises ValueError where `max_nodes` leaves no room for the unseen tokens, or the policy breaks its budget.
    """
    if max_nodes <= skipping.longest:
        raise ValueError(f"skipping: expected max_nodes > longest = {skipping.longest}, got {max_nodes}")
    grid, vocab_size = target.grid, target.vocab_size
    tree, scored = root_only(NO_TOKEN, vocab_size), target.begin()
    check_probs(scored.probs, tree, vocab_size)
    verdict = rule(tree, scored.probs, chance.cycle(0))
    policy.begin(grid)
    drafter.begin(scored)
    yield SkippingCycle(Cycle(0, 0, tree, verdict), verified=True)
    verifier = _Verifier(target, drafter, rule, _Onward(drafter))
    cell, index = 1, 1
    while cell < grid.cells:
        here = chance.cycle(index)
        room = Budget(grid.cells - cell - 1, max_nodes - len(verifier.pending))
        tree = root_only(verdict.token, vocab_size)
        if room.max_depth:
            tree = policy.grow(verifier.onward, verdict.token, room, here)
        tree.check(vocab_size)
        if tree.depth > room.max_depth or tree.size > room.max_nodes:
            raise ValueError(f"policy: expected a tree within {room}, got depth {tree.depth} and {tree.size} nodes")
        may = skipping.every > 0 and index % skipping.every == 0 and tree.size > 1 and not verifier.pending
        skips = may and verifier.accepted >= verifier.verified > 0
        verdict = verifier.skip(tree, skipping.longest, here) if skips else verifier.verify(tree, here)
        if not skips:
            policy.observe(tree, verdict, cell)
        yield SkippingCycle(Cycle(index, cell, tree, verdict), verified=not skips)
        cell += len(verdict.path) + 1
        index += 1
