"""Verification skipping (VVS): now and then a drafted path is committed without a target pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from underpaint.algos.accept.spec import Rule
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.draft.spec import Expander, Policy
from underpaint.algos.step import Cycle, Drafter, Target, check_probs, cycles
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(frozen=True, slots=True)
class Skipping:
    """When to skip (arXiv 2511.13587, uniform policy), and how much to commit then.

    every: cycles numbered by its multiples are skipped; 0 skips none, else >= 2, as two skips never follow each other.
    longest: the most tokens committed in a skipped cycle, >= 1. The mean number accepted per verified cycle, rounded
    down, is another bound, so nothing is skipped before something was accepted.
    """

    every: int = 4
    longest: int = 4

    def __post_init__(self) -> None:
        if self.every < 0 or self.every == 1:
            raise ValueError(f"skipping: every must be 0 (never) or >= 2 (no two skips in a row), got {self.every}")
        if self.longest < 1:
            raise ValueError(f"skipping: longest must be >= 1, got {self.longest}")


@dataclass(slots=True)
class _UncommittedDrafter:
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
class _SkippedCycles:
    """The `Verification` of one image, and the tokens that were committed but not scored."""

    target: Target
    rule: Rule
    skipping: Skipping
    committed_to: Drafter
    drafter: _UncommittedDrafter = field(init=False)
    pending: tuple[int, ...] = ()
    accepted: int = 0
    verified: int = 0

    def __post_init__(self) -> None:
        self.drafter = _UncommittedDrafter(self.committed_to)

    @property
    def reserved_nodes(self) -> int:
        return len(self.pending)

    def decide(self, tree: DraftTree, number: int, chance: Chance) -> tuple[Verdict, bool]:
        every = self.skipping.every
        may_skip = every > 0 and number % every == 0 and tree.size > 1 and not self.pending
        if may_skip and self.accepted >= self.verified > 0:
            return self._skip(tree, chance), False
        return self._verify(tree, chance), True

    def _verify(self, tree: DraftTree, chance: Chance) -> Verdict:
        """One pass over the pending tokens and `tree`: the former stay, the rule decides the latter."""
        joined, count = _joined(self.pending, tree), len(self.pending)
        scored = self.target.score(joined)
        check_probs(scored.probs, joined, self.target.vocab_size)
        verdict = self.rule(tree, scored.probs[count:], chance)
        whole = Verdict((*range(1, count + 1), *(node + count for node in verdict.path)), verdict.token)
        self.target.commit(joined, whole)
        self.committed_to.commit(joined, whole, scored)
        self.drafter.committed()
        self.pending = ()
        self.verified += 1
        self.accepted += len(verdict.path)
        return verdict

    def _skip(self, tree: DraftTree, chance: Chance) -> Verdict:
        """Commit a path to a leaf of `tree`, uniform over the leaves, cut to length, without a target pass."""
        is_leaf = np.ones(tree.size)
        is_leaf[tree.parents[1:]] = 0.0
        most = min(self.skipping.longest, self.accepted // self.verified)
        path = tree.path_to(chance.draw(is_leaf, At(Role.PATH, 0)))[:most]
        self.pending = tuple(int(tree.tokens[node]) for node in (0, *path[:-1]))
        self.drafter.descend(self.pending)
        return Verdict(path[:-1], int(tree.tokens[path[-1]]))


def skipping_cycles(
    target: Target,
    drafter: Drafter,
    policy: Policy,
    rule: Rule,
    chance: Chance,
    skipping: Skipping,
    max_nodes: int = 64,
) -> Iterator[Cycle]:
    """Decode one image with some cycles not verified; with `skipping.every` 0, as `algos.step.cycles`.

    A skipped cycle makes no target pass. The next pass scores what it committed as a chain above the new tree; those
    tokens stay whatever the target says of them, and enter its cache and the drafter's then.
    Raises ValueError where `max_nodes` leaves no room for the pending tokens, or the policy breaks its budget.
    """
    if max_nodes <= skipping.longest:
        raise ValueError(f"skipping: expected max_nodes > longest = {skipping.longest}, got {max_nodes}")
    verification = _SkippedCycles(target, rule, skipping, drafter)
    yield from cycles(target, drafter, policy, rule, chance, max_nodes, verification)
