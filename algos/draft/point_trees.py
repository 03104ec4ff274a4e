"""`roofline`'s trees of likeliest tokens: how their size is forecast, and how they are drafted."""

from dataclasses import dataclass, field

import numpy as np

from underpaint.algos.draft.calibration import Calibration
from underpaint.algos.draft.costs import SizeCosts
from underpaint.algos.draft.lookahead import LeastCosts, best_tree_size, falling, forecast_level, may_reach_rate
from underpaint.algos.draft.tree_builder import TreeBuilder
from underpaint.algos.protocols import Expander
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(slots=True)
class PointTrees:
    """Draft another level while that raises the expected tokens per ms; then verify as many nodes as pay.

    Attributes:
        calibration: The calibration of the image.
        verify: Costs of target passes by draft nodes.
        draft: ms of a drafter pass by expanded nodes, from 1.
        top_k: Children of a node.
    """

    calibration: Calibration
    verify: SizeCosts
    draft: list[float]
    top_k: int
    _floor: LeastCosts = field(init=False, repr=False)
    _builder: TreeBuilder | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._floor = LeastCosts(min(self.verify.ms), max(0.0, self.verify.slopes[0]), min(self.draft))

    def pay(self, cell: int, rate: float, deepest: int, most: int) -> bool:
        """Return whether a tree of at most `deepest` levels and `most` nodes is expected to have a higher rate.

        The forecast uses the neighbours' draft probabilities; without any, return True. All levels are forecast like
        the first one: with the mean probabilities by rank, and the correction at `cell`.
        """
        probs = self.calibration.neighbour_probs(cell)
        if probs is None:
            return True
        profile = self.calibration.at(cell)(probs[None])[0]
        best = falling(profile, most)
        if not may_reach_rate(rate, best, self._floor, deepest):
            return False
        scores, last, drafting_ms = profile, profile, self.draft[0]
        tree_rate = best_tree_size(best, self.verify, drafting_ms).rate
        for _ in range(1, deepest):
            if tree_rate > rate:
                break
            ahead = forecast_level(scores, last, profile, self.verify, self.draft, drafting_ms, most)
            if ahead.rate <= tree_rate:
                break
            last = np.multiply.outer(falling(last, ahead.frontier), profile).reshape(-1)
            scores, tree_rate = np.concatenate((scores, last)), ahead.rate
            drafting_ms += self.draft[ahead.frontier - 1]
        return tree_rate > rate

    def draft_tree(self, drafter: Expander, root: int, cell: int, deepest: int, most: int) -> DraftTree:
        """Draft a tree level by level, for `cell` and the cells after it."""
        builder = self._builder = TreeBuilder(drafter, root)
        builder.add_level(1, self.top_k, self.calibration.at(cell))
        drafting_ms, scores = self.draft[0], builder.levels[0].scores
        choice = best_tree_size(falling(scores, most), self.verify, drafting_ms)
        while builder.depth < deepest:
            adjust, last = self.calibration.at(cell + builder.depth), builder.levels[-1]
            profile = adjust(np.add.reduce(last.probs, axis=0, keepdims=True) / last.probs.shape[0])[0]
            ahead = forecast_level(scores, last.scores, profile, self.verify, self.draft, drafting_ms, most)
            if ahead.rate <= choice.rate:
                break
            builder.add_level(ahead.frontier, self.top_k, adjust)
            drafting_ms += self.draft[ahead.frontier - 1]
            scores = np.concatenate((scores, builder.levels[-1].scores))
            choice = best_tree_size(falling(scores, most), self.verify, drafting_ms)
        return builder.tree(choice.nodes)

    def drafting_ms(self) -> float:
        """Return the cost in ms of drafting the last tree, before `learn`; 0 if there was none."""
        return sum(self.draft[len(level.expanded) - 1] for level in self._builder.levels) if self._builder else 0.0

    def learn(self, tree: DraftTree, verdict: Verdict, cell: int) -> list[bool]:
        """Learn from the verdict on the last drafted tree; return by level whether the likeliest token was accepted.

        It learns from all committed tokens whose parent was expanded, verified or not.
        """
        builder, self._builder = self._builder, None
        if builder is None:
            return []
        committed = [*tree.tokens[list(verdict.path)].tolist(), verdict.token]
        hits, number = list[bool](), -1
        for step, (token, level) in enumerate(zip(committed, builder.levels, strict=False)):
            if number not in level.expanded:
                break
            row = level.expanded.index(number)
            probs = level.probs[row]
            offered = level.tokens[row, : np.count_nonzero(probs)].tolist()
            rank = offered.index(token) if token in offered else None
            self.calibration.learn(cell + step, probs, rank)
            hits.append(rank == 0)
            if rank is None:
                break
            number = level.first + row * probs.size + rank
        return hits
