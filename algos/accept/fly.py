"""FLy: defers a rejection at an uncertain position, and forgives it if the drafts after it are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import e, inf, log
from typing import Annotated

import numpy as np

from underpaint.algos.accept.spec import RULES, RuleSpec, Settings, every_combination, require_chain, require_drawn
from underpaint.algos.accept.walk import excess, normalised, proposal_distributions
from underpaint.algos.arrays import FloatArray
from underpaint.algos.batched.chains import BatchedChain, DeferredJudge, GreedyDeferred
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.registry import Bounds, Nodes, Tune, check_bounds
from underpaint.algos.tree import DRAWN, DraftTree, Drawn, Verdict

KINDS: tuple[Drawn, ...] = ("iid", "top_k")


def top_entropy(distribution: FloatArray, top: int) -> float:
    """Return -sum p ln p over the `top` largest probabilities of `distribution` [V], in nats."""
    likely = np.sort(distribution.astype(np.float64))[-top:]
    probs = likely[likely > 0.0]
    return float(-(probs @ np.log(probs)))


@dataclass(frozen=True, slots=True)
class DeferredWindow:
    """Decides when a rejected draft is kept after all: at an uncertain position, if the next drafts are kept.

    Attributes:
        threshold: Smallest entropy of the `top` likeliest tokens, in nats.
        window: The number of next drafts in the chain that must all pass their own tests.
        top: The number of tokens in the entropy.
    """

    threshold: float
    window: int
    top: int

    def forgives(self, node: int, tree: DraftTree, row: FloatArray, last: int, is_kept: Callable[[int], bool]) -> bool:
        """Return whether `node`, rejected under the target's row [V] before it, is kept; `last` ends the chain."""
        return (
            node + self.window <= last
            and float(row[tree.tokens[node]]) > 0.0
            and top_entropy(row, self.top) >= self.threshold
            and all(is_kept(later) for later in range(node + 1, node + self.window + 1))
        )


@dataclass(frozen=True, slots=True)
class DeferredVerification:
    """Speculative sampling on a chain that forgives a rejection at entropy >= `threshold` (arXiv 2511.22972).

    A rejected x is kept if p(x) > 0, the entropy of the `top` likeliest tokens reaches `threshold`, and each of the
    next `window` drafts passes its own test. Otherwise the token is drawn from norm([p - q]_+) and the chain ends. The
    decisions and the defaults are those of vLLM's `rejection_sample_method=fly`.

    Attributes:
        threshold: In nats, >= 0; above ln(top), or top / e for a top below 3, nothing is forgiven.
        window: Drafts, >= 1.
        top: Tokens in the entropy.
    """

    threshold: Annotated[float, Bounds(0.0, inf), Tune((0.3, 0.6, 0.9))] = 0.3
    window: Annotated[Nodes, Tune((1, 2, 3, 6))] = 6
    top: Nodes = 3

    def __post_init__(self) -> None:
        check_bounds("fly", self)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, *KINDS)
        require_chain(tree)
        last = tree.size - 1
        targets = [normalised(probs[node]) for node in range(last)]
        drafts = [next(proposal_distributions(tree, node, [node + 1])).copy() for node in range(last)]

        @cache
        def is_kept(node: int) -> bool:
            token = int(tree.tokens[node])
            target_prob, drafted = float(targets[node - 1][token]), float(drafts[node - 1][token])
            return chance.flip(target_prob, At(Role.ACCEPT, node), out_of=drafted)

        deferred = DeferredWindow(self.threshold, self.window, self.top)
        for node in range(1, last + 1):
            above = node - 1
            if not is_kept(node) and not deferred.forgives(node, tree, targets[above], last, is_kept):
                rest = excess(targets[above], drafts[above])
                residual = rest if rest.any() else targets[above]
                return Verdict(tuple(range(1, node)), chance.draw(residual, At(Role.RESIDUAL, above)))
        return Verdict(tuple(range(1, last + 1)), chance.draw(probs[last], At(Role.BONUS, last)))


@dataclass(frozen=True, slots=True)
class DeferredMatch:
    """FLy at temperature 0: keeps a draft that is not argmax p under the same conditions, with p at temperature 1.

    arXiv 2511.22972. The settings are those of `DeferredVerification`. Uses no randomness.
    """

    threshold: Annotated[float, Bounds(0.0, inf), Tune((0.3, 0.6, 0.9))] = 0.3
    window: Annotated[Nodes, Tune((1, 2, 3, 6))] = 6
    top: Nodes = 3

    def __post_init__(self) -> None:
        check_bounds("fly_greedy", self)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_chain(tree)
        last = tree.size - 1

        def is_kept(node: int) -> bool:
            return int(tree.tokens[node]) == int(np.argmax(probs[node - 1]))

        deferred = DeferredWindow(self.threshold, self.window, self.top)
        for node in range(1, last + 1):
            row = normalised(probs[node - 1])
            if not is_kept(node) and not deferred.forgives(node, tree, row, last, is_kept):
                return Verdict(tuple(range(1, node)), int(np.argmax(probs[node - 1])))
        return Verdict(tuple(range(1, last + 1)), int(np.argmax(probs[last])))


def _forgives_nothing(settings: Settings) -> bool:
    top = settings["top"]
    return bool(settings["threshold"] > (log(top) if top > 2 else top / e))  # the largest entropy of the top codes


def _judge(rule: DeferredVerification | DeferredMatch, points: bool) -> DeferredJudge:
    return DeferredJudge(rule.threshold, rule.window, rule.top, points)


_EXAMPLES = (*every_combination(threshold=(0.0, 0.3), window=(1, 2)), {"threshold": 5.0})
_SOURCE = "arXiv 2511.22972 (FLy); released code: AMD-AGI/FLy, and vLLM's `rejection_sample_method=fly`"
_BOUND = "none: a kept x misses p by 1 - p(x). Only rejections with `window` kept drafts behind them are forgiven"
SPEC = RULES.register(
    RuleSpec(
        name="fly",
        device="underpaint.runtime.device.kernels.walk_runs:deferred_walk",
        make=DeferredVerification,
        promise="unbounded",
        drawn=frozenset(KINDS),
        source=_SOURCE,
        bound=_BOUND,
        deviations=(
            "As in vLLM. The authors' code counts the rejection itself into the window, and forgives none in the last "
            "`window` places; above temperature 0 it keeps a draft that either of two draws from p equals, which is "
            "biased with nothing forgiven"
        ),
        needs_chain=True,
        looks_ahead=True,
        lossless_when=_forgives_nothing,
        greedy_variant="fly_greedy",
        examples=_EXAMPLES,
        batched=lambda rule, drawn: BatchedChain(_judge(rule, points=drawn == "top_k")),
    )
)
GREEDY = RULES.register(
    RuleSpec(
        name="fly_greedy",
        device="underpaint.runtime.device.kernels.walk_runs:deferred_walk",
        make=DeferredMatch,
        promise="unbounded",
        drawn=frozenset(DRAWN),
        source=_SOURCE,
        bound=_BOUND,
        greedy=True,
        needs_chain=True,
        looks_ahead=True,
        lossless_when=_forgives_nothing,
        examples=_EXAMPLES,
        batched=lambda rule, drawn: GreedyDeferred(_judge(rule, points=True)),
    )
)
