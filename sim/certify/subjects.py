"""Two ways to query a verifier on a case: for decisions on every draft, or for the tokens of whole cycles."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.tree import emitted
from underpaint.sim.certify.case import DraftRequest, Tokens, VerifierCase, WeightedDraft
from underpaint.sim.certify.verifier import (
    Fault,
    Verifier,
    VerifierStopped,
    find_fault,
    find_impossible,
    find_impossible_token,
    session_uniforms,
)


class FaultError(Exception):
    """A verifier made an error that none may make. item: the draft's number. noise: its uniforms or seed."""

    def __init__(self, fault: Fault, item: int, noise: tuple[float, ...] = ()) -> None:
        super().__init__(fault.detail)
        self.fault, self.item, self.noise = fault, item, noise


@dataclass(frozen=True)
class Decisions:
    """Query a verifier for its decisions on every draft of a case, for one cycle.

    `weights` are the drafts' probabilities, `dims` is the number of uniforms per decision, and `length` the number of
    compared tokens. `ask` returns one outcome per draft, or raises `FaultError` at the first invalid one. `exact`
    returns the distribution of decisions on each draft.
    """

    case: VerifierCase
    verifier: Verifier
    drafts: tuple[WeightedDraft, ...]

    @property
    def weights(self) -> list[float]:
        return [one.weight for one in self.drafts]

    @property
    def dims(self) -> int:
        return len(self.case.parents) + 1

    @property
    def length(self) -> int:
        return self.case.length

    def ask(self, items: IntArray, noise: FloatArray) -> Sequence[Hashable]:
        drafts = [self.drafts[item].draft for item in items.tolist()]
        try:
            replies = self.verifier.decide(drafts, noise)
        except VerifierStopped as stopped:
            at = self._find_stop(drafts, noise) if stopped.item is None else stopped.item
            raise FaultError(stopped.fault, int(items[at]), tuple(noise[at].tolist())) from stopped
        if len(replies) != len(drafts):
            fault = Fault("bad reply", f"{len(drafts)} drafts got {len(replies)} decisions; each needs one")
            raise FaultError(fault, int(items[0]), tuple(noise[0].tolist()))
        for place, (draft, reply) in enumerate(zip(drafts, replies, strict=True)):
            wrong = reply if isinstance(reply, Fault) else find_fault(draft, reply)
            if wrong is not None:
                raise FaultError(wrong, int(items[place]), tuple(noise[place].tolist()))
        return replies

    def _find_stop(self, drafts: Sequence[DraftRequest], noise: FloatArray) -> int:
        """The first draft at which a verifier stops that decides many at once, by calls with half of those left."""
        low, high = 0, len(drafts)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                self.verifier.decide(drafts[low:middle], noise[low:middle])
            except VerifierStopped:
                high = middle
            else:
                low = middle
        return low

    def exact(self) -> list[Mapping[Any, float]]:
        distributions: list[Mapping[Any, float]] = []
        for item, (_, draft) in enumerate(self.drafts):
            try:
                shares = self.verifier.enumerate(draft)
            except VerifierStopped as stopped:
                shares = stopped.fault
            if isinstance(shares, Fault):
                raise FaultError(shares, item)
            for verdict in shares:
                if (fault := find_fault(draft, verdict)) is not None:
                    raise FaultError(fault, item)
            distributions.append(shares)
        return distributions

    def emitted(self, item: int, outcome: Any) -> Tokens:
        return emitted(self.drafts[item].draft.tree, outcome)

    def impossible(self, item: int, outcome: Any) -> Fault | None:
        return find_impossible(self.case.drafts[item].draft, outcome)

    def tree_tokens(self, item: int) -> Tokens:
        return tuple(self.drafts[item].draft.tree.tokens.tolist())


@dataclass(frozen=True)
class Cycles:
    """Query a verifier for the tokens of consecutive cycles, including the drafter's draws. See `Decisions`."""

    case: VerifierCase
    verifier: Verifier
    cycles: int

    @property
    def weights(self) -> list[float]:
        return [1.0]

    @property
    def dims(self) -> int:
        return self.cycles * session_uniforms(self.case)

    @property
    def length(self) -> int:
        return self.cycles * self.case.length

    def ask(self, items: IntArray, noise: FloatArray) -> Sequence[Hashable]:
        try:
            replies = self.verifier.run(self.case, self.cycles, noise)
        except VerifierStopped as stopped:
            at = stopped.item or 0
            raise FaultError(stopped.fault, 0, tuple(noise[at].tolist())) from stopped
        for place, reply in enumerate(replies):
            if isinstance(reply, Fault):
                raise FaultError(reply, 0, tuple(noise[place].tolist()))
        return replies

    def exact(self) -> list[Mapping[Any, float]]:
        try:
            shares = self.verifier.enumerate_run(self.case, self.cycles)
        except VerifierStopped as stopped:
            shares = stopped.fault
        if isinstance(shares, Fault):
            raise FaultError(shares, 0)
        return [shares]

    def emitted(self, item: int, outcome: Any) -> Tokens:
        tokens: Tokens = outcome
        return tokens

    def impossible(self, item: int, outcome: Any) -> Fault | None:
        return find_impossible_token(self.case, outcome)

    def tree_tokens(self, item: int) -> Tokens:
        return ()


Subject: TypeAlias = Decisions | Cycles


def round_to_bits(values: FloatArray, bits: int) -> FloatArray:
    """Round `values` (float64) to float32 (24 bits), float16 (11) or bfloat16 (8); 53 bits leave them unchanged."""
    if bits == 53:
        return values
    if bits == 8:
        whole = values.astype(np.float32).view(np.uint32)
        whole = (whole + 0x7FFF + ((whole >> 16) & 1)) & np.uint32(0xFFFF0000)
        return whole.view(np.float32).astype(np.float64)
    return values.astype(np.float32 if bits == 24 else np.float16).astype(np.float64)


def round_draft(draft: DraftRequest, bits: int) -> DraftRequest:
    """Round the probabilities of a draft; see `round_to_bits`."""
    tree = replace(draft.tree, draft_probs=round_to_bits(draft.tree.draft_probs, bits))
    target, raw = (round_to_bits(rows, bits) for rows in (draft.target_probs, draft.raw_probs))
    return DraftRequest(tree, target, raw, draft.allowed)


def rounded_drafts(case: VerifierCase, bits: int) -> tuple[WeightedDraft, ...]:
    """The drafts of a case, rounded to the resolution of a verifier."""
    if bits == 53:
        return case.drafts
    return tuple(WeightedDraft(weight, round_draft(draft, bits)) for weight, draft in case.drafts)
