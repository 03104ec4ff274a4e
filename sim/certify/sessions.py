"""Test a drafter and a verifier together: a session drafts and verifies, and may keep state between cycles."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from underpaint.algos.arrays import FloatArray
from underpaint.sim.certify.case import Tokens, VerifierCase
from underpaint.sim.certify.noise import NoiseExhausted
from underpaint.sim.certify.verifier import Fault, Noise, Verifier, session_uniforms

Step: TypeAlias = Callable[[Tokens, FloatArray], Sequence[int]]
"""(committed tokens, uniforms [2 n + 1]) -> the 1 to n + 1 tokens that a cycle emits."""


@dataclass(frozen=True)
class SessionModels:
    """The target and the drafter of a session. `length` is n, the drafted tokens per cycle; `vocab_size` is V."""

    case: VerifierCase
    _rows: dict[tuple[str, Tokens], FloatArray] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return len(self.case.parents) - 1

    @property
    def vocab_size(self) -> int:
        return self.case.vocab_size

    def target(self, tokens: Sequence[int]) -> FloatArray:
        """[V] float64: the target's distribution of the token after `tokens`."""
        return self._row("target", tuple(tokens))

    def draft(self, tokens: Sequence[int]) -> FloatArray:
        """[V] float64: the drafter's distribution of the token after `tokens`."""
        return self._row("draft", tuple(tokens))

    def _row(self, name: str, tokens: Tokens) -> FloatArray:
        if (name, tokens) not in self._rows:
            row = self.case.target_row(tokens) if name == "target" else self.case.draft_row(tokens)
            self._rows[name, tokens] = row
        return self._rows[name, tokens].copy()


@dataclass(frozen=True, slots=True)
class SessionVerifier(Verifier):
    """A function that opens a session: `open(models)` returns a `Step`, which is called once per cycle."""

    open: Callable[[SessionModels], Any]
    noise: Noise = field(default="session", init=False)
    bits: int = 53

    def run(self, case: VerifierCase, cycles: int, noise: FloatArray) -> list[Tokens | Fault]:
        models = SessionModels(case)
        return [self._one(models, cycles, row) for row in noise]

    def _one(self, models: SessionModels, cycles: int, noise: FloatArray) -> Tokens | Fault:
        count = session_uniforms(models.case)
        tokens: Tokens = ()
        try:
            step = self.open(models)
            for cycle in range(cycles):
                reply = step(tokens, noise[cycle * count : (cycle + 1) * count].copy())
                more = tuple(operator.index(token) for token in reply)
                if not 1 <= len(more) <= models.length + 1:
                    return Fault("bad reply", f"expected 1 to {models.length + 1} tokens a cycle, got {list(more)}")
                if not all(0 <= token < models.vocab_size for token in more):
                    return Fault(
                        "bad token", f"tokens {list(more)}: one is outside the vocabulary of {models.vocab_size}"
                    )
                tokens += more
        except NoiseExhausted as error:
            return Fault("noise", str(error))
        except (Exception, KeyboardInterrupt) as error:  # whatever a session raises is a finding
            return Fault("crash", ": ".join(filter(None, (type(error).__name__, str(error)))))
        return tokens
