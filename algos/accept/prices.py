"""What a unit of total variation buys in a draft tree, at every price: the tokens that it keeps.

A unit of mass that moves to a drafted token is one of acceptance there, at any node. But an acceptance also keeps what
was drafted behind the token in play. So units differ by what stands behind: at the last token of a path one keeps one
token, at the first one of a long likely path it keeps many.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from underpaint.algos.accept.proposals import normalised
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.tree import DraftTree

PRICES: FloatArray = np.concatenate([[0.5], np.geomspace(1.0, 32.0, 63), [1e9]])
"""[P] tokens that a unit of total variation has to keep: at the first all that can move does, at the last nothing."""


class Curve(NamedTuple):
    """What one cycle would spend and keep, in expectation, at each of `PRICES`; both [P]."""

    spent: FloatArray
    kept: FloatArray


class Price(NamedTuple):
    """Between two of `PRICES`: what is worth more than that at `place` moves whole, what is worth more than the one
    before it by `share` in [0, 1]."""

    place: int
    share: float

    def moves(self, worth: FloatArray) -> float:
        """The share of mass that moves to a token of `worth` [P], the tokens that keeping it keeps at each price."""
        if worth[self.place] > PRICES[self.place]:
            return 1.0
        before = self.place - 1
        return self.share if before >= 0 and worth[before] > PRICES[before] else 0.0


def price_of(curve: Curve, rate: float) -> Price:
    """The price at which `rate` is spent for each token, the extra one of a cycle counted, by the curve's cycles."""
    rates = curve.spent / (1.0 + curve.kept)
    place = int(np.flatnonzero(rates <= rate)[0])
    if place == 0:
        return Price(0, 0.0)
    return Price(place, (rate - float(rates[place])) / float(rates[place - 1] - rates[place]))


class PointPlan(NamedTuple):
    """What could move in a tree of point proposals.

    curve: of the whole tree. worth: [N, P], the tokens that keeping node i keeps, itself counted, less what they cost
    at the price. sources: for each inner node, its children with the codes that mass may come from, nearest first; the
    child that is worth most comes first and has the codes that several are near to.
    """

    curve: Curve
    worth: FloatArray
    sources: dict[int, list[tuple[int, IntArray]]]


def plan_points(tree: DraftTree, probs: FloatArray, neighbours: IntArray) -> PointPlan:
    """The plan of a top_k tree under the target's distributions `probs` [N, V]; neighbours: [V, k].

    Everything in the tree was chosen from what was decided before it, so the plan may look at all of it.
    """
    count = tree.size
    kept, spent, value = np.zeros((count, PRICES.size)), np.zeros((count, PRICES.size)), np.zeros((count, PRICES.size))
    sources: dict[int, list[tuple[int, IntArray]]] = {}
    below = tree.children()
    for node in range(count - 1, -1, -1):
        if not below[node]:
            continue
        target = normalised(probs[node])
        children = sorted(below[node], key=lambda child: -float(kept[child, -1]))
        sources[node] = _share_out([(child, int(tree.tokens[child])) for child in children], neighbours)
        for child, codes in sources[node]:
            worth = 1.0 + value[child]
            moved = np.where(worth > PRICES, float(target[codes].sum()), 0.0)
            odds = target[tree.tokens[child]] + moved
            value[node] += odds * worth - PRICES * moved
            kept[node] += odds * (1.0 + kept[child])
            spent[node] += moved + odds * spent[child]
    return PointPlan(Curve(spent[0], kept[0]), 1.0 + value, sources)


def _share_out(children: list[tuple[int, int]], neighbours: IntArray) -> list[tuple[int, IntArray]]:
    """For each (child, token) its near codes that no child holds and none before it has."""
    gone = {token for _, token in children}
    found = []
    for child, token in children:
        codes = [code for code in neighbours[token].tolist() if code not in gone]
        gone.update(codes)
        found.append((child, np.array(codes, dtype=np.int64)))
    return found


@dataclass(slots=True)
class LevelMeans:
    """What siblings that are drawn have met so far, by level: nothing of the tree in hand is in it.

    seen: nodes that were reached, those without children counted. accepted, movable: sums over them of the probability
    that a child is kept with nothing moved, and of the total variation that could be spent.
    """

    seen: list[int] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    movable: list[float] = field(default_factory=list)

    def add(self, level: int, accepted: float, movable: float) -> None:
        """Note a node at `level`; 0 and 0 for one without children. Levels come from the root downwards."""
        if level == len(self.seen):
            self.seen.append(0)
            self.accepted.append(0.0)
            self.movable.append(0.0)
        self.seen[level] += 1
        self.accepted[level] += accepted
        self.movable[level] += movable

    def plan(self) -> tuple[Curve, FloatArray]:
        """The curve of a cycle of such means, and [levels, P] what a token kept at each level keeps."""
        kept, spent, value = np.zeros(PRICES.size), np.zeros(PRICES.size), np.zeros(PRICES.size)
        worths = []
        for seen, accepted, movable in zip(self.seen[::-1], self.accepted[::-1], self.movable[::-1], strict=True):
            worth = 1.0 + value
            moved = np.where(worth > PRICES, movable / seen, 0.0)
            odds = accepted / seen + moved
            worths.append(worth)
            value = odds * worth - PRICES * moved
            kept, spent = odds * (1.0 + kept), moved + odds * spent
        return Curve(spent, kept), np.array(worths[::-1]).reshape(-1, PRICES.size)
