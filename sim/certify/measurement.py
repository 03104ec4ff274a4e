"""What is found about a verifier on one case."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from underpaint.sim.certify.case import Tokens
from underpaint.sim.certify.verifier import Fault

How: TypeAlias = Literal["quantiles", "decisions", "samples"]
"""How a distribution was found: from the uniforms' thresholds, from recorded decisions, or from samples."""


Kind: TypeAlias = Literal["faulty", "biased", "boundary", "lossless"]
"""What a case shows: a fault that no verifier may have; another distribution than the target's; the target's to
rounding, but for tokens of probability 0 at the ends of the uniforms' range; or the target's."""


@dataclass(frozen=True, slots=True)
class DistributionDifference:
    """Where the tokens that a verifier emits part from the target's distribution.

    total_variation: between the sequences emitted in a cycle (continued as the target does) and the target's.
    before: the tokens after which they first part; node: the tree's node there. wanted, found: [V] the distribution of
    the next token after them. lowest: with samples, what the total variation is at least; else itself.
    """

    total_variation: float
    lowest: float
    before: Tokens
    node: int
    wanted: tuple[float, ...]
    found: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A verifier on a case.

    how: see `How`. total_variation: between the sequences of tokens and the target's; 1 where a fault ended the work.
    decisions: for every draft (for the whole, of a session), the probability of every decision (of all emitted tokens);
    empty where a fault ended the work. unseen: how much probability the boxes may have wrong (quantiles), or how far a
    probability may be off unseen (samples); 0 for recorded decisions. asked: decisions asked for. fault: what no
    verifier may do; fault_tokens: the tree's tokens, fault_noise: the uniforms or the seed. difference: None where none
    was found.
    """

    how: How
    total_variation: float
    unseen: float
    asked: int
    decisions: tuple[Mapping[Hashable, float], ...] = ()
    difference: DistributionDifference | None = None
    fault: Fault | None = None
    fault_tokens: Tokens = ()
    fault_noise: tuple[float, ...] = ()

    @property
    def kind(self) -> Kind:
        """What the case shows, the worst first."""
        if self.fault is not None and self.fault.kind != "impossible token":
            return "faulty"
        if self.difference is not None:
            return "biased"
        return "lossless" if self.fault is None else "boundary"

    @property
    def failed(self) -> bool:
        """Whether the verifier is not lossless on this case."""
        return self.kind != "lossless"

    @property
    def stopped(self) -> bool:
        """Whether a fault ended the work, so that there is no distribution."""
        return not self.decisions

    @property
    def at_least(self) -> float:
        """What the total variation is at least: itself, or with samples its lower confidence limit."""
        return 0.0 if self.difference is None else self.difference.lowest


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work a case is worth.

    checks: fresh points behind a result by quantiles. margin: samples find a probability that is off by this much.
    most: decisions before quantiles give way to samples. bits: judge at this resolution, not at the verifier's own.
    cycles: cycles in a row, for sessions and rules.
    """

    checks: int = 2048
    margin: float = 0.03
    most: int = 100_000
    seed: int = 0
    bits: int | None = None
    cycles: int = 1
