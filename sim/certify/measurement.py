"""What is found about a verifier on one case."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from underpaint.algos.tree import Verdict
from underpaint.sim.certify.case import Tokens
from underpaint.sim.certify.verifier import Fault

How: TypeAlias = Literal["quantiles", "decisions", "samples"]
"""How a distribution was found: from the uniforms' thresholds, from recorded decisions, or from samples."""


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

    how: see `How`. decisions: by draft, the probability of every decision (empty where a fault ended the work).
    unseen: how much probability the boxes may have wrong (quantiles), or how far a probability may be off unseen
    (samples); 0 for recorded decisions. asked: decisions asked for. fault: what no verifier may do; fault_tokens: the
    tree's tokens, fault_noise: the uniforms or the seed. difference: None where none was found.
    """

    how: How
    total_variation: float
    unseen: float
    asked: int
    decisions: tuple[Mapping[Verdict, float], ...] = ()
    difference: DistributionDifference | None = None
    fault: Fault | None = None
    fault_tokens: Tokens = ()
    fault_noise: tuple[float, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the verifier is not lossless on this case."""
        return self.fault is not None or self.difference is not None

    @property
    def stopped(self) -> bool:
        """Whether a fault ended the work, so that there is no distribution."""
        return not self.decisions


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work a case is worth.

    checks: fresh points behind a result by quantiles. margin: samples find a probability that is off by this much.
    most: decisions before quantiles give way to samples.
    """

    checks: int = 2048
    margin: float = 0.03
    most: int = 100_000
    seed: int = 0
