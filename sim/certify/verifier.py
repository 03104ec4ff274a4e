"""What is judged: a verifier written by somebody else, and the faults that it can show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from underpaint.algos.arrays import FloatArray
from underpaint.algos.tree import Verdict
from underpaint.sim.certify.case import DraftRequest, Tokens, VerifierCase

Noise: TypeAlias = Literal["uniforms", "decisions", "seeds", "session"]
"""Where a verifier's randomness comes from: uniforms handed in, decisions that are recorded (`chance.flip` and
`chance.draw`), or a seed for a generator of its own. A session takes the uniforms of whole cycles and drafts too."""

FaultKind: TypeAlias = Literal["crash", "hang", "noise", "bad reply", "bad token", "bad path", "impossible token"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that no verifier may do. node: where in the tree it shows; None where it shows nowhere."""

    kind: FaultKind
    detail: str
    node: int | None = None


class VerifierStopped(Exception):
    """The verifier crashed or hung, and what it was asked has no answer."""

    def __init__(self, fault: Fault, item: int | None = None) -> None:
        """item: the place, among those asked together, of the draft that it stopped at."""
        super().__init__(fault, item)
        self.fault = fault
        self.item = item


class Verifier:
    """What is judged. A kind of verifier overrides the one method that its `noise` names.

    noise: what it draws with; see `Noise`.
    bits: its uniforms are whole multiples of 2 ** -bits: 53 in float64, 24 in float32, 11 in float16, 8 in bfloat16.
    """

    noise: Noise = "uniforms"
    bits: int = 53

    def decide(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> list[Verdict | Fault]:
        """Decide each draft with its own noise ("uniforms" and "seeds").

        Args:
            drafts: M drafts.
            noise: [M, N + 1] float64 in [0, 1): column i is node i's accept uniform (column 0: the root's, which
                layouts with one uniform per parent use), the last is for the final draw. With "seeds": whole numbers
                [M, 1].

        Returns:
            One decision a draft.

        Raises:
            VerifierStopped: It crashed or hung as a whole.
        """
        raise ValueError(f"this verifier draws by {self.noise}, it decides no draft by uniforms")

    def enumerate(self, draft: DraftRequest) -> dict[Verdict, float] | Fault:
        """The exact distribution of its decisions on one draft ("decisions")."""
        raise ValueError(f"this verifier draws by {self.noise}, it records no decisions")

    def enumerate_run(self, case: VerifierCase, cycles: int) -> dict[Tokens, float] | Fault:
        """The exact distribution of the tokens of `cycles` cycles in a row, draft included ("decisions")."""
        raise ValueError(f"this verifier draws by {self.noise}, it records no decisions")

    def run(self, case: VerifierCase, cycles: int, noise: FloatArray) -> list[Tokens | Fault]:
        """The tokens of `cycles` cycles in a row, drafted and verified by the verifier ("session").

        Args:
            case: The target and the drafter, as tables.
            cycles: Cycles in a row, at least 1.
            noise: [M, cycles * K] float64 in [0, 1), see `session_uniforms` for K.

        Returns:
            The emitted tokens of each of the M runs.
        """
        raise ValueError(f"this verifier draws by {self.noise}, it drafts nothing")


def session_uniforms(case: VerifierCase) -> int:
    """How many uniforms a session takes in a cycle: one a drafted token, one an accept test, one for the last draw."""
    return 2 * (len(case.parents) - 1) + 1


def find_fault(draft: DraftRequest, verdict: Verdict) -> Fault | None:
    """Why a decision is none: a path that the tree does not have, a token outside the vocabulary; None if it is one."""
    tree, vocab_size = draft.tree, draft.target_probs.shape[1]
    node = 0
    for kept in verdict.path:
        if not 0 < kept < tree.size:
            return Fault("bad path", f"path {verdict.path}: there is no node {kept} below the root", node)
        if int(tree.parents[kept]) != node:
            return Fault("bad path", f"path {verdict.path}: node {kept} is no child of node {node}", node)
        node = kept
    if not 0 <= verdict.token < vocab_size:
        return Fault("bad token", f"token {verdict.token} is outside the vocabulary of {vocab_size}", node)
    return None


def find_impossible_token(case: VerifierCase, tokens: Tokens) -> Fault | None:
    """Which token of a run has target probability 0 after those before it; None if none has."""
    for place, token in enumerate(tokens):
        if case.target_row(tokens[:place])[token] <= 0.0:
            return Fault(
                "impossible token",
                f"token {token} is emitted after {list(tokens[:place])}, its target probability is 0",
                0,
            )
    return None


def find_impossible(draft: DraftRequest, verdict: Verdict) -> Fault | None:
    """Which emitted token has target probability 0; None if none has."""
    node = 0
    for kept in verdict.path:
        token = int(draft.tree.tokens[kept])
        if draft.target_probs[node, token] <= 0.0:
            return Fault("impossible token", f"token {token} is accepted, its target probability is 0", node)
        node = kept
    if draft.target_probs[node, verdict.token] <= 0.0:
        return Fault("impossible token", f"extra token {verdict.token} is drawn, its target probability is 0", node)
    return None
