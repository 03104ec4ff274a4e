"""The Target and Drafter protocols, and the decoding loop that drives any of them."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.protocols import Budget, Expander, Grid, Policy, Rule
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict, are_distributions, emitted, root_only

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def run_to_end(
    steps: Callable[Parameters, Generator[Any, None, Result]],
) -> Callable[Parameters, Result]:
    """Turn a decoding loop that yields after every step into a function that runs it to the end.

    Args:
        steps: The loop, a generator function.

    Returns:
        A function with the same arguments that returns the loop's result.
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
    """The result of one target pass over a tree."""

    probs: FloatArray
    """[N, V]: row i is the distribution of the token after node i."""
    features: FloatArray | None = None
    """[B, N, F] target features for the drafter (B = 2 for a guidance pair); None if the drafter reads none."""


class Target(Protocol):
    """A target model whose condition is already set. It owns the KV cache of committed tokens."""

    @property
    def vocab_size(self) -> int:
        """The vocabulary size V."""
        ...

    @property
    def grid(self) -> Grid:
        """The size of the image to generate."""
        ...

    def begin(self) -> Scored:
        """Reset the image and run the prefill; N = 1, the distribution of the first image token."""
        ...

    def score(self, tree: DraftTree) -> Scored:
        """Run one target pass over `tree`, whose root is the last committed token (not in the KV cache yet)."""
        ...

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """Add the root and the accepted nodes of the last scored tree to the KV cache."""
        ...


class Drafter(Expander, Protocol):
    """A drafter. It owns its KV cache."""

    def begin(self, scored: Scored) -> None:
        """Reset the image; `scored` is the result of `Target.begin`."""
        ...

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        """Add the accepted tokens to the cache; read the extra token (the next root) and the target's features."""
        ...


class Cycle(NamedTuple):
    """One draft tree and the verdict on it.

    Attributes:
        number: The number of the cycle within the image; 0 is the one after the prefill.
        cell: Raster index of the first cell that the cycle decides.
        tree: The draft tree.
        verdict: The verdict on `tree`.
        verified: Whether the target scored the tree. If not, `verdict` holds the tokens that were committed without
            verification (see `algos.skipping`).
    """

    number: int
    cell: int
    tree: DraftTree
    verdict: Verdict
    verified: bool = True


class Decoded(NamedTuple):
    """One decoded image.

    Attributes:
        tokens: [cells] int64 in raster order.
        cycles: All cycles, with cycle 0 (after the prefill).
    """

    tokens: IntArray
    cycles: tuple[Cycle, ...]

    @classmethod
    def of(cls, cycles: Iterable[Cycle]) -> "Decoded":
        """Join the tokens of all cycles of an image, given in order."""
        done = tuple(cycles)
        tokens = [token for cycle in done for token in emitted(cycle.tree, cycle.verdict)]
        return cls(np.array(tokens, dtype=np.int64), done)


def check_probs(probs: FloatArray, tree: DraftTree, vocab_size: int) -> None:
    """Raise ValueError unless `probs` holds one distribution per node of `tree`, [N, V], with sums within 1e-4 of 1."""
    expected = (tree.size, vocab_size)
    if probs.shape != expected:
        raise ValueError(f"probs: expected {expected} (one distribution per node), got {probs.shape}")
    if not are_distributions(probs):
        raise ValueError(
            f"probs: expected rows of non-negative numbers that sum to 1, got sums {probs.sum(axis=-1).tolist()} and "
            f"minimum {float(probs.min())!r}; pass the target's logits through rows.sampling_probs"
        )


class Verification(Protocol):
    """The hook of the decoding loop that decides how each draft tree is verified."""

    @property
    def drafter(self) -> Expander | None:
        """The drafter that the policy uses; None for plain autoregression."""
        ...

    @property
    def reserved_nodes(self) -> int:
        """Number of nodes of the next target pass that are not available to the draft tree."""
        ...

    def begin(self, scored: Scored, verdict: Verdict) -> None:
        """Start an image, given the result of `Target.begin` and the verdict of cycle 0."""
        ...

    def decide(self, tree: DraftTree, number: int, chance: Chance) -> tuple[Verdict, bool]:
        """Commit and return the verdict on the tree of cycle `number`, and whether the target scored the tree."""
        ...


@dataclass(frozen=True, slots=True)
class EveryCycle:
    """The `Verification` of plain speculative decoding: one target pass per draft tree."""

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
    """Decode one image and yield its cycles (see `decode`).

    Args:
        target: As in `decode`.
        drafter: As in `decode`.
        policy: As in `decode`.
        rule: As in `decode`.
        chance: As in `decode`.
        max_nodes: As in `decode`.
        verification: How each draft tree is verified; None means `EveryCycle`.
    """
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

    Args:
        target: The target model. Its condition is already set.
        drafter: The drafter; None for plain autoregression (one token per cycle; the policy is not called).
        policy: Decides the shape of each draft tree.
        rule: Decides which draft tokens are accepted.
        chance: The randomness of the image.
        max_nodes: The largest tree that the target can score, including the root.
        verification: See `cycles`.

    Raises:
        ValueError: The policy, the rule or the target breaks its contract.
    """
    return Decoded.of(cycles(target, drafter, policy, rule, chance, max_nodes, verification))
