"""The interface of verifiers under test, and the faults that they can show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.case import DraftRequest, Tokens, VerifierCase

Noise: TypeAlias = Literal["uniforms", "decisions", "seeds", "session"]
"""The source of a verifier's randomness: given uniforms, recorded decisions (`chance.flip` and `chance.draw`), or a
seed for its own generator. A session also drafts, and gets the uniforms of whole cycles."""

FaultKind: TypeAlias = Literal["crash", "hang", "noise", "bad reply", "bad token", "bad path", "impossible token"]


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that no verifier may make.

    Attributes:
        kind: The kind of error.
        detail: What happened, in words.
        node: The tree's node where it occurs; None if there is none.
    """

    kind: FaultKind
    detail: str
    node: int | None = None


class VerifierStopped(Exception):
    """The verifier crashed or hung, so the request has no answer."""

    def __init__(self, fault: Fault, item: int | None = None) -> None:
        """Store the fault and the draft at which the verifier stopped.

        Args:
            fault: The fault that stopped it.
            item: The index of that draft within the request; None if it is not known.
        """
        super().__init__(fault, item)
        self.fault = fault
        self.item = item


class Verifier:
    """Base class of verifiers under test. A subclass overrides the methods for its kind of `noise`.

    Attributes:
        noise: The source of its randomness; see `Noise`.
        bits: Its uniforms are integer multiples of 2 ** -bits: 53 in float64, 24 in float32, 11 in float16, 8 in
            bfloat16.
    """

    noise: Noise = "uniforms"
    bits: int = 53

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        """Decide each draft with its own noise ("uniforms" and "seeds").

        Args:
            drafts: M drafts.
            noise: [M, N + 1] float64 in [0, 1): column i is the uniform of node i's accept test (column 0, the root's,
                is used by layouts with one uniform per parent); the last column is for the final draw. With "seeds":
                integers [M, 1].

        Returns:
            One decision per draft.

        Raises:
            VerifierStopped: The verifier crashed or hung as a whole.
        """
        raise ValueError(f"this verifier draws by {self.noise}, it decides no draft by uniforms")

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        """Compute the exact distribution of its decisions on one draft ("decisions")."""
        raise ValueError(f"this verifier draws by {self.noise}, it records no decisions")

    def enumerate_run(self, case: VerifierCase, cycles: int) -> dict[Tokens, float] | Fault:
        """Compute the exact distribution of the tokens of consecutive cycles, including drafting ("decisions")."""
        raise ValueError(f"this verifier draws by {self.noise}, it records no decisions")

    def run(self, case: VerifierCase, cycles: int, noise: FloatArray) -> list[Tokens | Fault]:
        """Let the verifier draft and verify consecutive cycles, and return the emitted tokens ("session").

        Args:
            case: The target and the drafter, as tables.
            cycles: Number of consecutive cycles, at least 1.
            noise: [M, cycles * K] float64 in [0, 1), see `session_uniforms` for K.

        Returns:
            The emitted tokens of each of the M runs.
        """
        raise ValueError(f"this verifier draws by {self.noise}, it drafts nothing")


def session_uniforms(case: VerifierCase) -> int:
    """Number of uniforms of a session's cycle: one per drafted token, one per accept test, one for the last draw."""
    return 2 * (len(case.parents) - 1) + 1


def find_fault(draft: DraftRequest, verdict: Verdict) -> Fault | None:
    """Check a decision: a fault if its path is not in the tree or its token is outside the vocabulary, else None."""
    tree, vocab_size = draft.tree, draft.target_probs.shape[1]
    node = 0
    for child in verdict.path:
        if not 0 < child < tree.size:
            return Fault("bad path", f"path {verdict.path}: there is no node {child} below the root", node)
        if int(tree.parents[child]) != node:
            return Fault("bad path", f"path {verdict.path}: node {child} is no child of node {node}", node)
        node = child
    if not 0 <= verdict.token < vocab_size:
        return Fault("bad token", f"token {verdict.token} is outside the vocabulary of {vocab_size}", node)
    return None


def find_impossible_token(case: VerifierCase, tokens: Tokens) -> Fault | None:
    """Find the first token of a run with target probability 0, given the tokens before it; None if there is none."""
    for place, token in enumerate(tokens):
        if case.target_row(tokens[:place])[token] <= 0.0:
            return Fault(
                "impossible token",
                f"token {token} is emitted after {list(tokens[:place])}, its target probability is 0",
                0,
            )
    return None


def find_impossible(draft: DraftRequest, verdict: Verdict) -> Fault | None:
    """Find the first emitted token whose target probability is 0; None if there is none."""
    node = 0
    for child in verdict.path:
        token = int(draft.tree.tokens[child])
        if draft.target_probs[node, token] <= 0.0:
            return Fault("impossible token", f"token {token} is accepted, its target probability is 0", node)
        node = child
    if draft.target_probs[node, verdict.token] <= 0.0:
        return Fault("impossible token", f"extra token {verdict.token} is drawn, its target probability is 0", node)
    return None
