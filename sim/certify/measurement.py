"""The measurement of a verifier on one case."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from underpaint.sim.certify.case import Tokens
from underpaint.sim.certify.verifier import Fault

How: TypeAlias = Literal["quantiles", "decisions", "samples"]
"""How a distribution was measured: from thresholds of the uniforms, from recorded decisions, or from samples."""


Kind: TypeAlias = Literal["faulty", "biased", "boundary", "lossless"]
"""What a case shows. "faulty": an error no verifier may make. "biased": a distribution unlike the target's. "boundary":
the target's up to rounding, but with tokens of probability 0 at the ends of the uniforms' range. "lossless": else."""


@dataclass(frozen=True, slots=True)
class DistributionDifference:
    """The first place where a verifier's emitted tokens differ from the target's distribution.

    Attributes:
        total_variation: Between the emitted sequences, continued by the target, and the target's sequences.
        lowest, highest: Confidence limits of the total variation if measured by samples, else equal to it.
        before: The tokens before the first difference.
        node: The tree's node there.
        wanted: [V] the target's distribution of the next token.
        found: [V] the measured distribution of the next token.
    """

    total_variation: float
    lowest: float
    highest: float
    before: Tokens
    node: int
    wanted: tuple[float, ...]
    found: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The behaviour of a verifier on one case.

    Attributes:
        how: How the distributions were measured.
        total_variation: Between emitted sequences and the target's; 1 if a fault stopped the measurement.
        unseen: With quantiles, the probability mass that may be assigned wrongly; with samples, how far a probability
            may be off without being detected; 0 for recorded decisions.
        asked: Number of decisions requested.
        decisions: For each draft, the probability of each decision; for a session, one distribution of the emitted
            tokens. Empty if a fault stopped the measurement.
        difference: Where the distribution first differs from the target's; None if no difference was found.
        fault: An error that no verifier may make; None if there was none.
        fault_tokens: The tree's tokens at the fault.
        fault_noise: The uniforms or the seed at the fault.
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
        """What the case shows; of several kinds the worst."""
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
        """Whether a fault stopped the measurement, so that there is no distribution."""
        return not self.decisions

    @property
    def at_least(self) -> float:
        """Lower limit of the total variation: the measured value, or with samples its lower confidence limit."""
        return 0.0 if self.difference is None else self.difference.lowest


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work to spend on a case.

    Attributes:
        checks: New random points that check a result by quantiles.
        margin: Samples detect a probability that is off by this much.
        most: Number of decisions after which quantiles are replaced by samples.
        seed: Seed of the points and samples.
        bits: Resolution of the uniforms; None uses the verifier's own.
        cycles: Consecutive cycles, for sessions and rules.
    """

    checks: int = 2048
    margin: float = 0.03
    most: int = 100_000
    seed: int = 0
    bits: int | None = None
    cycles: int = 1
