"""Greedy multi-path block verification (GBV): judges the best of several drawn paths as a block."""

from dataclasses import dataclass

import numpy as np

from underpaint.algos.accept.block import judge_path
from underpaint.algos.accept.spec import RULES, RuleSpec, require_drawn
from underpaint.algos.accept.walk import normalised
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.best_path import BestPathJudge
from underpaint.algos.batched.chains import BatchedChain
from underpaint.algos.chance import Chance
from underpaint.algos.tree import DraftTree, Verdict


@dataclass(slots=True)
class Ranking:
    """The distribution of the best of `paths` independent paths, computed level by level along it.

    Tokens are ordered by p / q (ties: by token id), and paths by the first token that differs.

    Attributes:
        paths: The number of independent paths.
        below: The probability that one path is less than the prefix so far.
        here: The probability that one path begins with the prefix.
    """

    paths: int
    below: float = 0.0
    here: float = 1.0

    def skewed(self, draft: FloatArray, order: IntArray) -> FloatArray:
        """Return [V]: the distribution of the best path's next token, if one path draws it from `draft` in `order`."""
        reached = self.below + self.here * np.cumsum(draft[order])
        before = reached - self.here * draft[order]
        scale = self.below + self.here
        shares = np.zeros(draft.size)
        for power in range(self.paths):
            shares += (reached / scale) ** power * (before / scale) ** (self.paths - 1 - power)
        shares_left = np.empty(draft.size)
        shares_left[order] = draft[order] * shares
        return normalised(shares_left)

    def follow(self, draft: FloatArray, order: IntArray, token: int) -> None:
        """Extend the prefix by `token`."""
        place = int(np.flatnonzero(order == token)[0])
        self.below += self.here * float(draft[order[:place]].sum())
        self.here *= float(draft[token])


def by_ratio(target: FloatArray, draft: FloatArray) -> IntArray:
    """Return token ids [V] in order of rising p / q, ties by token id; tokens with q = 0 come last."""
    ratios = np.divide(target, draft, out=np.full(target.size, np.inf), where=draft > 0.0)
    order: IntArray = np.argsort(ratios, kind="stable")
    return order


def bundle(tree: DraftTree) -> tuple[list[int], list[list[int]]]:
    """Return the nodes from the root to the first fork, and the equally long paths below it (maybe no paths)."""
    below = tree.children()
    trunk = [0]
    while len(below[trunk[-1]]) == 1:
        trunk.append(below[trunk[-1]][0])
    paths = [[child] for child in below[trunk[-1]]]
    while paths and all(below[path[-1]] for path in paths):
        for path in paths:
            path.append(below[path[-1]][0])
    return trunk, paths


@dataclass(frozen=True, slots=True)
class GreedyMultiPath:
    """Choose the greatest path by p / q, level by level, and judge it by block verification.

    arXiv 2602.16961: at each level the greatest of K independent paths has a distribution proportional to
    (A + X F)^K - (A + X F-)^K. A and X are the probabilities that one path is less than the prefix, and that it begins
    with it; F and F- are the sums of q up to a token, and before it. This distribution replaces q. With one path, the
    rule is block verification.
    """

    def __call__(self, tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        require_drawn(tree, "iid")
        trunk, paths = bundle(tree)
        drafts = [normalised(tree.draft_distribution(node)) for node in trunk[:-1]]
        nodes, ranking = list(trunk), Ranking(len(paths))
        for level in range(len(paths[0]) if paths else 0):
            node = nodes[-1]
            target, draft = normalised(probs[node]), normalised(tree.draft_distribution(node))
            order = by_ratio(target, draft)
            rank = np.empty_like(order)
            rank[order] = np.arange(order.size)
            drafts.append(ranking.skewed(draft, order))
            best = max(int(rank[tree.tokens[path[level]]]) for path in paths)
            paths = [path for path in paths if int(rank[tree.tokens[path[level]]]) == best]
            nodes.append(paths[0][level])
            ranking.follow(draft, order, int(order[best]))
        return judge_path(tree, nodes, drafts, probs, chance)


SPEC = RULES.register(
    RuleSpec(
        name="gbv",
        make=GreedyMultiPath,
        promise="lossless",
        drawn=frozenset({"iid"}),
        batched=lambda rule, drawn: BatchedChain(BestPathJudge()),
        source="arXiv 2602.16961 (GBV); released code: its authors' `gbv_verify`",
        deviations=(
            "In other trees than bundles of equal paths it judges the first path below each child of the first fork, "
            "as far as all of them go"
        ),
        looks_ahead=True,
    )
)
