"""The Target and Drafter protocols, and the decoding loop that drives any of them."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from underpaint.algos.accept.spec import Rule
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.draft.spec import Budget, Expander, Grid, Policy
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict, are_distributions, emitted, root_only

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def run_to_end(
    steps: Callable[Parameters, Generator[Any, None, Result]],
) -> Callable[Parameters, Result]:
    """A decoding loop that yields after every step and returns its result, as a function that runs all of it.

    Args:
        steps: The loop, a generator function.

    Returns:
        A function of the same arguments that returns what the loop returns.
    """

    @wraps(steps)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        loop = steps(*args, **kwargs)
        while True:
            try:
                next(loop)
            except StopIteration as stop:
                result: Result = stop.value
                return result

    return run


class Scored(NamedTuple):
    """One target pass over a tree."""

    probs: FloatArray
    """[N, V]: row i is the distribution of the token after node i."""
    features: FloatArray | None = None
    """[B, N, F] target features that a drafter reads (B = 2 for a guidance pair); None where it reads none."""


class Target(Protocol):
    """A target model, conditioned already; it owns the cache of committed tokens."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def grid(self) -> Grid:
        """The image to draw."""
        ...

    def begin(self) -> Scored:
        """Forget the image, take in the condition; N = 1, the distribution of the first image token."""
        ...

    def score(self, tree: DraftTree) -> Scored:
        """One pass over `tree`, whose root is the last committed token (not in the cache yet)."""
        ...

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """Take the root and the accepted nodes of the last scored tree into the cache."""
        ...


class Drafter(Expander, Protocol):
    """A drafter; it owns its own cache."""

    def begin(self, scored: Scored) -> None:
        """Forget the image; `scored` is what `Target.begin` returned."""
        ...

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        """Take in a verdict: the accepted tokens, the extra token (the next root) and the target's features."""
        ...


class Cycle(NamedTuple):
    """One draft and one decision.

    cell: raster index of the first cell it decides. verified: whether the target scored the tree; where it did not,
    `verdict` says what was committed all the same (see `algos.skipping`).
    """

    number: int
    cell: int
    tree: DraftTree
    verdict: Verdict
    verified: bool = True


class Decoded(NamedTuple):
    """One image. tokens: [cells] int64 in raster order; cycle 0 (the condition alone) included in `cycles`."""

    tokens: IntArray
    cycles: tuple[Cycle, ...]

    @classmethod
    def of(cls, cycles: Iterable[Cycle]) -> "Decoded":
        """The image that all its cycles, in order, decided."""
        done = tuple(cycles)
        tokens = [token for cycle in done for token in emitted(cycle.tree, cycle.verdict)]
        return cls(np.array(tokens, dtype=np.int64), done)


def check_probs(probs: FloatArray, tree: DraftTree, vocab_size: int) -> None:
    """Raise ValueError unless `probs` are distributions [N, V] for `tree`, to 1e-4 per row."""
    expected = (tree.size, vocab_size)
    if probs.shape != expected:
        raise ValueError(f"probs: expected {expected} (one distribution per node), got {probs.shape}")
    if not are_distributions(probs):
        raise ValueError(
            f"probs: expected rows of non-negative numbers that sum to 1, got sums {probs.sum(axis=-1).tolist()} and "
            f"minimum {float(probs.min())!r}; pass them through rows.distributions"
        )


class Verification(Protocol):
    """What happens to each draft tree: the hook of the decoding loop."""

    @property
    def drafter(self) -> Expander | None:
        """What the policy drafts with; None where nothing is drafted."""
        ...

    @property
    def reserved_nodes(self) -> int:
        """Nodes of the next target pass that the draft tree cannot have."""
        ...

    def begin(self, scored: Scored, verdict: Verdict) -> None:
        """Start an image: what `Target.begin` returned, and what cycle 0 decided."""
        ...

    def decide(self, tree: DraftTree, number: int, chance: Chance) -> tuple[Verdict, bool]:
        """The verdict on the tree of cycle `number`, and whether the target scored it. Commits what it decides."""
        ...


@dataclass(frozen=True, slots=True)
class EveryCycle:
    """The `Verification` of plain speculative decoding: one target pass over every tree."""

    target: Target
    drafter: Drafter | None
    rule: Rule
    reserved_nodes: int = 0

    def begin(self, scored: Scored, verdict: Verdict) -> None:
        if self.drafter is not None:
            self.drafter.begin(scored)

    def decide(self, tree: DraftTree, number: int, chance: Chance) -> tuple[Verdict, bool]:
        scored = self.target.score(tree)
        check_probs(scored.probs, tree, self.target.vocab_size)
        verdict = self.rule(tree, scored.probs, chance)
        self.target.commit(tree, verdict)
        if self.drafter is not None:
            self.drafter.commit(tree, verdict, scored)
        return verdict, True


def cycles(
    target: Target,
    drafter: Drafter | None,
    policy: Policy,
    rule: Rule,
    chance: Chance,
    max_nodes: int,
    verification: Verification | None = None,
) -> Iterator[Cycle]:
    """Decode one image, cycle by cycle (see `decode`). verification: None for `EveryCycle`."""
    verification = verification or EveryCycle(target, drafter, rule)
    grid, vocab_size = target.grid, target.vocab_size
    scored = target.begin()
    tree = root_only(NO_TOKEN, vocab_size)
    check_probs(scored.probs, tree, vocab_size)
    verdict = rule(tree, scored.probs, chance.cycle(0))
    policy.begin(grid)
    verification.begin(scored, verdict)
    yield Cycle(0, 0, tree, verdict)
    cell, number = 1, 1
    while cell < grid.cells:
        here = chance.cycle(number)
        budget = Budget(grid.cells - cell - 1, max_nodes - verification.reserved_nodes)
        tree = _grow(verification.drafter, policy, verdict.token, budget, here, vocab_size)
        tree.check(vocab_size)
        verdict, verified = verification.decide(tree, number, here)
        if verified:
            policy.observe(tree, verdict, cell)
        yield Cycle(number, cell, tree, verdict, verified)
        cell += len(verdict.path) + 1
        number += 1


def _grow(
    drafter: Expander | None, policy: Policy, root: int, budget: Budget, chance: Chance, vocab_size: int
) -> DraftTree:
    if drafter is None or budget.max_depth == 0:
        return root_only(root, vocab_size)
    tree = policy.grow(drafter, root, budget, chance)
    if tree.depth > budget.max_depth or tree.size > budget.max_nodes:
        raise ValueError(
            f"policy: expected at most depth {budget.max_depth} and {budget.max_nodes} nodes, got depth {tree.depth} "
            f"and {tree.size} nodes; respect the budget"
        )
    return tree


def decode(
    target: Target,
    drafter: Drafter | None,
    policy: Policy,
    rule: Rule,
    chance: Chance,
    max_nodes: int = 64,
    verification: Verification | None = None,
) -> Decoded:
    """Decode one image.

    drafter: None for plain autoregression (one token a cycle, no policy asked). verification: see `cycles`.
    max_nodes: the largest tree that the target can score, its root included.
    Raises ValueError where the policy, the rule or the target break the contract.
    """
    return Decoded.of(cycles(target, drafter, policy, rule, chance, max_nodes, verification))
