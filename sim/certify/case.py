"""Test cases for verifiers: a target and a drafter as tables of distributions, and the shape of a draft tree."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from math import fsum
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray
from underpaint.algos.tree import DRAWN, DraftTree, Drawn
from underpaint.artifacts.strict_json import build_typed

Tokens: TypeAlias = tuple[int, ...]
SequenceDistribution: TypeAlias = dict[Tokens, float]
"""Maps each token sequence to its probability; all sequences have one length."""

ROOT_TOKEN = 0
MOST_TREES = 4096
"""Largest number of different draft trees of one case; every one of them is tested."""


class DraftRequest(NamedTuple):
    """The input of a verifier: one draft tree with N nodes over a vocabulary of V tokens.

    Attributes:
        tree: Tokens, parents, and the distributions [N, V] from which the children of each node were drawn.
        target_probs: [N, V] float64; row i is the target's distribution of the token after node i.
        raw_probs: [N, V] float64; `target_probs` before the request's logit processors (here: banned tokens).
        allowed: [V] bool; False for the banned tokens.
    """

    tree: DraftTree
    target_probs: FloatArray
    raw_probs: FloatArray
    allowed: BoolArray


class WeightedDraft(NamedTuple):
    """A draft and the probability that the drafter draws it."""

    weight: float
    draft: DraftRequest


@dataclass(frozen=True)
class VerifierCase:
    """A target and a drafter as tables of integer weights, and the shape of the draft tree.

    The distribution after the tokens c is row r(c) of a table of R rows, r(c) = sum over i of (i + 1) (c_i + 1), mod R.

    Attributes:
        vocab_size: V, from 2 to 64.
        parents: Parent of each node; -1 for the root. Parents come before their children.
        drawn: How siblings are drawn (see `DraftTree`).
        target: Rows of V weights each; a row divided by its sum is a distribution.
        draft: The drafter's rows, in the same form.
        banned: Tokens that the request's logit processors remove from the target; its rows are then renormalised.

    Raises:
        ValueError: The tables or the shape are invalid; the message names the field.
    """

    vocab_size: int
    parents: tuple[int, ...]
    drawn: Drawn
    target: tuple[tuple[int, ...], ...]
    draft: tuple[tuple[int, ...], ...]
    banned: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        size = self.vocab_size
        if not 2 <= size <= 64:
            raise ValueError(f"case.vocab_size: expected 2 to 64, got {size!r}")
        if self.drawn not in DRAWN:
            raise ValueError(f"case.drawn: expected one of {', '.join(DRAWN)}, got {self.drawn!r}")
        if self.parents[:1] != (-1,) or any(not 0 <= above < node + 1 for node, above in enumerate(self.parents[1:])):
            raise ValueError(
                f"case.parents: expected -1 and then 0 <= parents[i] < i (parents before children), got {self.parents}"
            )
        if any(not 0 <= token < size for token in self.banned):
            raise ValueError(f"case.banned: expected tokens below {size}, got {self.banned}")
        for name, rows, banned in (("target", self.target, self.banned), ("draft", self.draft, ())):
            if not rows or any(len(row) != size or min(row) < 0 for row in rows):
                raise ValueError(f"case.{name}: expected rows of {size} whole numbers >= 0, got {rows}")
            if any(not any(weight for token, weight in enumerate(row) if token not in banned) for row in rows):
                raise ValueError(f"case.{name}: expected a positive weight on a token that is not banned, got {rows}")
        most = max(self.parents.count(node) for node in range(len(self.parents)))
        support = min(sum(weight > 0 for weight in row) for row in self.draft)
        if (self.drawn == "without_replacement" and most > support) or (self.drawn == "top_k" and most > size):
            raise ValueError(
                f"case: {most} siblings cannot be drawn as '{self.drawn}' from {support} of {size} tokens; take fewer"
            )
        if self.drawn != "top_k" and size ** (len(self.parents) - 1) > MOST_TREES:
            raise ValueError(
                f"case: {len(self.parents) - 1} drawn nodes of {size} tokens are more than {MOST_TREES} trees"
            )

    @cached_property
    def length(self) -> int:
        """Largest number of tokens that a cycle can emit: the depth of the tree plus one."""
        deepest = [0]
        for above in self.parents[1:]:
            deepest.append(deepest[above] + 1)
        return max(deepest) + 1

    def target_row(self, before: Tokens) -> FloatArray:
        """[V] the target's distribution after the tokens `before`, with logit processors applied."""
        row = self.raw_row(before)
        if self.banned:
            row[list(self.banned)] = 0.0
        row /= row.sum()
        return row

    def raw_row(self, before: Tokens) -> FloatArray:
        """[V] the target's distribution before logit processors."""
        return _row(self.target, before)

    def draft_row(self, before: Tokens) -> FloatArray:
        """[V] the drafter's distribution after the tokens `before`."""
        return _row(self.draft, before)

    @cached_property
    def drafts(self) -> tuple[WeightedDraft, ...]:
        """All draft trees that the drafter can draw, with their probabilities."""
        grown: list[tuple[float, Tokens]] = [(1.0, (ROOT_TOKEN,))]
        for node in range(1, len(self.parents)):
            longer: list[tuple[float, Tokens]] = []
            for weight, tokens in grown:
                probs = self.offered(node, tokens)
                longer += [(weight * float(probs[token]), (*tokens, token)) for token in np.flatnonzero(probs).tolist()]
            grown = longer
        return tuple(WeightedDraft(weight, self.draft_of(tokens)) for weight, tokens in grown)

    def offered(self, node: int, tokens: Tokens, before: Tokens = ()) -> FloatArray:
        """[V] the distribution of the token of `node`, given the earlier nodes' `tokens` and the committed `before`."""
        above = self.parents[node]
        tried = [tokens[other] for other in range(1, node) if self.parents[other] == above]
        row = self.draft_row((*before, *self.context(above, tokens)))
        if self.drawn == "top_k":
            chosen = np.argsort(-row, kind="stable")[len(tried)]
            point: FloatArray = np.eye(self.vocab_size)[chosen]
            return point
        if self.drawn == "without_replacement":
            row[tried] = 0.0
        row /= row.sum()
        return row

    def context(self, node: int, tokens: Tokens) -> Tokens:
        """The drafted tokens from the root's child down to `node`; empty for the root."""
        spelled: list[int] = []
        while node > 0:
            spelled.append(tokens[node])
            node = self.parents[node]
        return tuple(reversed(spelled))

    def draft_of(self, tokens: Tokens, before: Tokens = ()) -> DraftRequest:
        """The draft tree with the given `tokens` at its nodes, after the committed tokens `before`."""
        contexts = [(*before, *self.context(node, tokens)) for node in range(len(tokens))]
        tree = DraftTree(
            np.array(tokens, dtype=np.int64),
            np.array(self.parents, dtype=np.int64),
            self.drawn,
            np.stack([self.draft_row(one) for one in contexts]),
            np.arange(len(tokens)),
        )
        allowed = np.ones(self.vocab_size, dtype=np.bool_)
        allowed[list(self.banned)] = False
        return DraftRequest(
            tree,
            np.stack([self.target_row(one) for one in contexts]),
            np.stack([self.raw_row(one) for one in contexts]),
            allowed,
        )

    def continued(self, emitted: Tokens, length: int) -> SequenceDistribution:
        """The distribution of sequences of `length` tokens: `emitted`, then tokens drawn from the target."""
        distribution = {emitted: 1.0}
        for _ in range(length - len(emitted)):
            distribution = {
                (*before, token): weight * float(share)
                for before, weight in distribution.items()
                for token, share in enumerate(self.target_row(before))
                if share > 0.0
            }
        return distribution

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)


def case_from_dict(values: Mapping[str, Any]) -> VerifierCase:
    """Read a case from JSON values. Raises ValueError on an unknown or missing field, or a value of the wrong type."""
    return build_typed(VerifierCase, values, "case")


def prefix_masses(distribution: SequenceDistribution) -> dict[Tokens, float]:
    """The probability of every prefix of the sequences, including the empty one."""
    parts: dict[Tokens, list[float]] = {}
    for sequence, weight in distribution.items():
        for length in range(len(sequence) + 1):
            parts.setdefault(sequence[:length], []).append(weight)
    return {prefix: fsum(weights) for prefix, weights in parts.items()}


def contexts(vocab_size: int, length: int) -> list[Tokens]:
    """All sequences of fewer than `length` tokens, the shortest first."""
    return [one for size in range(length) for one in product(range(vocab_size), repeat=size)]


def _row(rows: tuple[tuple[int, ...], ...], before: Tokens) -> FloatArray:
    place = sum((turn + 1) * (token + 1) for turn, token in enumerate(before)) % len(rows)
    weights = np.array(rows[place], dtype=np.float64)
    weights /= weights.sum()
    return weights
