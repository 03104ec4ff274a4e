"""A small world on which a verifier is judged: two tables of distributions and the shape of a draft tree."""

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
"""The probability of every sequence of a case's length."""

ROOT_TOKEN = 0
MOST_TREES = 4096
"""A case whose draft can be drawn in more ways is refused: each way is judged."""


class DraftRequest(NamedTuple):
    """One draft tree as a verifier gets it. N nodes, V tokens.

    tree: the tokens, the parents, and the distributions [N, V] that each node's children were drawn from.
    target_probs: [N, V] float64; row i is the target's distribution of the token after node i.
    raw_probs: [N, V] float64; the same before the request's logit processors (here: a ban on some tokens).
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
    """Target and drafter as tables of whole-number weights, and the shape of the tree.

    The distribution after the tokens c is row r(c) of a table of R rows, r(c) = sum over i of (i + 1) (c_i + 1), mod R.

    vocab_size: V. parents: of every node, the root's is -1 and parents come before children. drawn: how siblings are
    drawn (see `DraftTree`). target, draft: rows of V weights each, divided by their sum. banned: tokens that the
    request's logit processors take out of the target, whose rows are then renormalised.
    Raises ValueError, naming the field, where the tables or the shape are none.
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
        for name, rows, held in (("target", self.target, self.banned), ("draft", self.draft, ())):
            if not rows or any(len(row) != size or min(row) < 0 for row in rows):
                raise ValueError(f"case.{name}: expected rows of {size} whole numbers >= 0, got {rows}")
            if any(not any(weight for token, weight in enumerate(row) if token not in held) for row in rows):
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
        """Tokens that a cycle can emit at most: the depth of the tree and one more."""
        deepest = [0]
        for above in self.parents[1:]:
            deepest.append(deepest[above] + 1)
        return max(deepest) + 1

    def target_row(self, before: Tokens) -> FloatArray:
        """[V] the target's distribution after the tokens `before`, logit processors applied."""
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
        """Every tree that the drafter can draw, with its probability."""
        grown: list[tuple[float, Tokens]] = [(1.0, (ROOT_TOKEN,))]
        for node in range(1, len(self.parents)):
            longer: list[tuple[float, Tokens]] = []
            for weight, tokens in grown:
                left = self.offered(node, tokens)
                longer += [(weight * float(left[token]), (*tokens, token)) for token in np.flatnonzero(left).tolist()]
            grown = longer
        return tuple(WeightedDraft(weight, self.draft_of(tokens)) for weight, tokens in grown)

    def offered(self, node: int, tokens: Tokens, before: Tokens = ()) -> FloatArray:
        """[V] what node's token is drawn from, given the tokens of the nodes before it and those committed `before`."""
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
        """The draft whose nodes hold `tokens`, after the committed tokens `before`."""
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
        """The distribution of `length` tokens that begin with `emitted` and go on as the target does."""
        found = {emitted: 1.0}
        for _ in range(length - len(emitted)):
            found = {
                (*before, token): weight * float(share)
                for before, weight in found.items()
                for token, share in enumerate(self.target_row(before))
                if share > 0.0
            }
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return asdict(self)


def case_from_dict(values: Mapping[str, Any]) -> VerifierCase:
    """A case out of JSON's values. Raises ValueError: an unknown or missing field, a value of another kind."""
    return build_typed(VerifierCase, values, "case")


def prefix_masses(distribution: SequenceDistribution) -> dict[Tokens, float]:
    """The probability of every beginning of the sequences, the empty one included."""
    parts: dict[Tokens, list[float]] = {}
    for sequence, weight in distribution.items():
        for length in range(len(sequence) + 1):
            parts.setdefault(sequence[:length], []).append(weight)
    return {prefix: fsum(weights) for prefix, weights in parts.items()}


def contexts(vocab_size: int, length: int) -> list[Tokens]:
    """Every sequence of fewer than `length` tokens, the shortest first."""
    return [one for size in range(length) for one in product(range(vocab_size), repeat=size)]


def _row(rows: tuple[tuple[int, ...], ...], before: Tokens) -> FloatArray:
    place = sum((turn + 1) * (token + 1) for turn, token in enumerate(before)) % len(rows)
    weights = np.array(rows[place], dtype=np.float64)
    weights /= weights.sum()
    return weights
