"""Grouped speculative decoding (GSD): judges a token together with codes of similar probability and appearance."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from underpaint.algos.accept.relaxed import Odds, RelaxedSiblings
from underpaint.algos.accept.spec import RULES, Residual, RuleSpec, every_combination, require_drawn
from underpaint.algos.accept.walk import walk
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import Chance
from underpaint.algos.registry import MOST_CODES, Bounds, PositiveShare, Tune, check_bounds
from underpaint.algos.tree import DRAWN, DraftTree, Verdict

MOST_DISTANCE: Final = 1e6
"""Upper limit of the distance between two codes; larger values would count all pairs of codes as near."""
GroupWindow: TypeAlias = Literal["paper", "released"]
"""Where a token's group lies in the order of the target's probabilities.

"paper": In falling order, around the token, cut off at both ends. "released": In rising order, the `group // 2` next
less likely tokens, the rest likelier; a token with fewer less likely tokens than that is judged alone, as in SJD.
Equal probabilities are in order of token id."""


class GroupedAcceptance(NamedTuple):
    """Accept x with probability min(1, p(C(x)) / q(C(x))).

    C(x): Of the `group` tokens next to x in the order of p (see `GroupWindow`), those with |p(y) - p(x)| < gap and a
    squared distance in the codebook below `distance` squared.
    """

    codebook: FloatArray
    group: int
    gap: float
    distance: float
    window: GroupWindow
    residual: Residual

    @property
    def rising(self) -> bool:
        """Whether the window uses the order of rising probability instead of falling probability."""
        return self.window == "released"

    @property
    def before(self) -> int:
        """The number of tokens in the window before x in that order."""
        return self.group // 2 if self.rising else (self.group - 1) // 2

    def order(self, target: FloatArray) -> IntArray:
        """Return token ids [V] in the order that the window uses, ties by token id."""
        order: IntArray = np.argsort(target if self.rising else -target, kind="stable")
        return order

    def members(self, target: FloatArray, token: int) -> IntArray:
        """Return C(token), which includes the token itself."""
        order = self.order(target)
        rank = int(np.flatnonzero(order == token)[0])
        start = rank - self.before
        if start < 0 and self.rising:
            return np.array([token], dtype=np.int64)
        near = order[max(start, 0) : start + self.group]
        apart = self.codebook[near] - self.codebook[token]
        close = np.einsum("ce,ce->c", apart, apart) < self.distance**2
        group: IntArray = near[(close & (np.abs(target[near] - target[token]) < self.gap)) | (near == token)]
        return group

    def odds(self, target: FloatArray, draft: FloatArray, token: int, place: int) -> Odds:
        group = self.members(target, token)
        return Odds(float(target[group].sum()), float(draft[group].sum()))

    def taken(self, target: FloatArray, draft: FloatArray, place: int) -> FloatArray:
        """See `Acceptance`: q itself, as in the paper and in the released code, or q * accept for "standard"."""
        return draft * self._accept(target, draft) if self.residual == "standard" else draft

    def _accept(self, target: FloatArray, draft: FloatArray) -> FloatArray:
        """Return the acceptance of each token [V], computed for one offset in the window at a time."""
        order = self.order(target)
        distributions = np.stack([target, draft])[:, order]
        codes = self.codebook[order]
        count = order.size
        pooled = distributions.copy()
        for offset in range(-self.before, self.group - self.before):
            if offset == 0 or abs(offset) >= count:
                continue
            here = slice(max(-offset, 0), count - max(offset, 0))
            there = slice(max(offset, 0), count - max(-offset, 0))
            apart = codes[here] - codes[there]
            close = np.einsum("ce,ce->c", apart, apart) < self.distance**2
            close &= np.abs(distributions[0, here] - distributions[0, there]) < self.gap
            pooled[:, here] += distributions[:, there] * close
        if self.rising:
            pooled[:, : self.before] = distributions[:, : self.before]
        accept = np.minimum(1.0, np.divide(pooled[0], pooled[1], out=np.ones(count), where=pooled[1] > 0.0))
        by_token = np.empty(count)
        by_token[order] = accept
        return by_token


@dataclass(frozen=True, slots=True, eq=False)
class GroupedSpeculation:
    """Accept x ~ q with probability min(1, p(C(x)) / q(C(x))) (arXiv 2508.07747); `GroupedAcceptance` defines C(x).

    In SJD's window the proposal distribution q is one pass old; see `algos.spatial.jacobi`.

    Attributes:
        codebook: [V, E] floating, the codes.
        group: Tokens in the window; 1 judges x alone; 3, 25 and 50 are published, and the released code uses 14.
        gap: The limit of |p(y) - p(x)|, > 0.
        distance: The limit of the distance between two codes, > 0; the released code compares squared distances
            between the language model's token embeddings with 0.5.
        window: Where the group lies in the order of the target's probabilities, see `GroupWindow`.
        residual: The residual after a rejection: "standard" takes q * accept from p, the others take q.
    """

    codebook: FloatArray
    group: Annotated[int, Bounds(1, MOST_CODES), Tune((5, 10, 14, 25, 50))] = 14
    gap: PositiveShare = 0.15
    distance: Annotated[float, Bounds(0.0, MOST_DISTANCE, above=True)] = 0.7
    window: GroupWindow = "paper"
    residual: Residual = "paper"

    def __post_init__(self) -> None:
        if self.codebook.ndim != 2 or not np.all(np.isfinite(self.codebook)):
            raise ValueError(f"gsd: expected a finite codebook [V, E], got shape {self.codebook.shape}")
        check_bounds("gsd", self)

    @property
    def grouped(self) -> GroupedAcceptance:
        """The acceptance used at a node."""
        return GroupedAcceptance(self.codebook, self.group, self.gap, self.distance, self.window, self.residual)

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, *DRAWN)
        if self.codebook.shape[0] != probs.shape[1]:
            raise ValueError(f"gsd: expected a codebook of V = {probs.shape[1]} codes, got {self.codebook.shape[0]}")
        return walk(tree, probs, chance, RelaxedSiblings(self.grouped))


SPEC = RULES.register(
    RuleSpec(
        name="gsd",
        make=GroupedSpeculation,
        promise="unbounded",
        drawn=frozenset(DRAWN),
        source="arXiv 2508.07747 (GSD); released code: jacobi_iteration_lumina_mgpt.py",
        bound="none proved: groups overlap, so a token's acceptance may exceed or fall short of min(1, p / q)",
        deviations=(
            "Groups are taken in the codebook, not in the language model's embeddings. An even group in the paper's "
            "window has one more less likely token. Where probabilities tie, token ids decide. Siblings are tried one "
            "after another, each against what is left"
        ),
        embeddings=True,
        residuals=dict.fromkeys(get_args(Residual), frozenset(DRAWN)),
        lossless_when=lambda settings: settings["group"] == 1,
        examples=every_combination(
            group=(1, 2, 3, 4, 6), gap=(0.11, 0.5), distance=(0.8, 2.0), window=get_args(GroupWindow)
        ),
        device="underpaint.runtime.device.kernels.walk_gsd:gsd_walk",
    )
)
