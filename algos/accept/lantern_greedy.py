"""Greedy LANTERN and LANTERN++ at temperature 0: keeps a token whose pool outweighs the likeliest token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from underpaint.algos.accept.lantern import check_settings, check_vocab, pool
from underpaint.algos.accept.spec import RULES, RuleSpec, every_combination
from underpaint.algos.accept.walk import Choice, kept_ends
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.longest import LongestPath, Outweighs
from underpaint.algos.batched.pooling import NeighbourPool, additive_limit, relative_limit
from underpaint.algos.batched.spec import BatchedRule
from underpaint.algos.chance import Chance
from underpaint.algos.registry import Codes, Factor, Share, Tune, check_bounds
from underpaint.algos.tree import DraftTree, Drawn, Verdict


def outweighs(distribution: FloatArray, top: int, token: int, pooled: float) -> bool:
    """Return whether `token` becomes the argmax instead of `top` when `pooled` is added (ties: the lower index)."""
    return (float(distribution[token]) + pooled, -token) > (float(distribution[top]), -top)


def greedy_verdict(
    tree: DraftTree,
    probs: FloatArray,
    neighbours: IntArray,
    limit: Callable[[float], float],
    choose: Choice,
) -> Verdict:
    """Keep x if p(x) + p(A(x)) makes it the argmax of p [V] (ties: the lower index), A(x) within limit(p(x)).

    The extra token is the argmax after the last kept node. Uses no randomness.
    """
    check_vocab(neighbours, probs)

    def passing(node: int, children: Sequence[int]) -> list[int]:
        distribution = probs[node]
        top = int(distribution.argmax())
        return [child for child in children if wins(distribution, top, int(tree.tokens[child]))]

    def wins(distribution: FloatArray, top: int, token: int) -> bool:
        if token == top:
            return True
        near = pool(distribution, neighbours[token], limit(float(distribution[token])))
        return outweighs(distribution, top, token, near.mass)

    end = kept_ends(tree, passing, choose)[0]
    return Verdict(tree.path_to(end), int(probs[end].argmax()))


@dataclass(frozen=True, slots=True, eq=False)
class LanternGreedy:
    """LANTERN at temperature 0 (arXiv 2410.03355, the released greedy branch).

    It needs the distributions at temperature 1. A likeliest token with probability above delta can never be pooled, so
    a token passes if its own mass plus its pool of less likely neighbours reaches that of the likeliest token.

    Attributes:
        neighbours: As in `Lantern`.
        k: As in `Lantern`.
        delta: As in `Lantern`.
        choose: Which of several passing siblings is kept (open in the paper; the released code takes the longest path).
    """

    neighbours: IntArray
    k: Codes = 0
    delta: Annotated[Share, Tune((0.1, 0.2, 0.4, 0.6, 0.8))] = 0.1
    choose: Choice = "longest"

    def __post_init__(self) -> None:
        if self.delta > 1.0:
            raise ValueError(
                f"lantern_greedy: delta must be in [0, 1], got {self.delta!r}; above 1 the released code means "
                "'lantern_pp_greedy' with factor = delta"
            )
        check_bounds("lantern_greedy", self)
        check_settings("lantern_greedy", self.neighbours, self.k)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        near = self.neighbours[:, : self.k or None]
        return greedy_verdict(tree, probs, near, lambda token_mass: self.delta, self.choose)


@dataclass(frozen=True, slots=True, eq=False)
class LanternPPGreedy:
    """LANTERN++ at temperature 0: like `LanternGreedy`, with x and its pool limited to `factor` * p(x)."""

    neighbours: IntArray
    k: Codes = 0
    factor: Annotated[Factor, Tune((2.0, 3.0, 5.0, 10.0))] = 5.0
    choose: Choice = "longest"

    def __post_init__(self) -> None:
        check_bounds("lantern_pp_greedy", self)
        check_settings("lantern_pp_greedy", self.neighbours, self.k)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        near = self.neighbours[:, : self.k or None]
        return greedy_verdict(tree, probs, near, lambda token_mass: (self.factor - 1.0) * token_mass, self.choose)


def _batched(rule: LanternGreedy | LanternPPGreedy, drawn: Drawn) -> BatchedRule:
    limit = additive_limit(rule.delta) if isinstance(rule, LanternGreedy) else relative_limit(rule.factor)
    pool = NeighbourPool(rule.neighbours, rule.k or rule.neighbours.shape[1], limit)
    return LongestPath(Outweighs(pool), first=rule.choose == "first", draw=False)


SPEC = RULES.register(
    RuleSpec(
        name="lantern_greedy",
        device="underpaint.runtime.device.kernels.walk_longest:lantern_greedy_walk",
        make=LanternGreedy,
        promise="bounded",
        drawn=frozenset({"top_k", "without_replacement", "iid"}),
        source="arXiv 2410.03355 (LANTERN), greedy decoding; released code: jadohu/LANTERN, evaluate_posterior",
        bound="kept x: p(x) >= max p - delta at temperature 1; the distribution at temperature 0 may move by 1",
        deviations="Only nodes whose parent was kept are looked at; the released code boosts every position first",
        greedy=True,
        codebook=True,
        batched=_batched,
        bound_at=lambda settings, node: float(settings["delta"]),
        lossless_when=lambda settings: settings["delta"] == 0.0,
        examples=every_combination(delta=(0.0, 0.0713, 0.2371, 0.5237, 0.93), choose=get_args(Choice)),
    )
)
SPEC_PP = RULES.register(
    RuleSpec(
        name="lantern_pp_greedy",
        device="underpaint.runtime.device.kernels.walk_longest:lantern_greedy_walk",
        make=LanternPPGreedy,
        promise="bounded",
        drawn=frozenset({"top_k", "without_replacement", "iid"}),
        source="arXiv 2502.06352 (LANTERN++); released code: jadohu/LANTERN, evaluate_posterior with a delta above 1",
        bound="kept x: p(x) >= max p / factor at temperature 1; the distribution at temperature 0 may move by 1",
        deviations="As lantern_greedy",
        greedy=True,
        codebook=True,
        batched=_batched,
        bound_at=lambda settings, node: float(node.target.max()) * (1.0 - 1.0 / settings["factor"]),
        lossless_when=lambda settings: settings["factor"] == 1.0,
        examples=every_combination(factor=(1.0, 1.713, 3.137, 9.7), choose=get_args(Choice)),
    )
)
