"""What holds exactly of the rules of 2025 and 2026, as checks of a module, so that planted bugs meet the same ones."""

from itertools import product
from types import ModuleType
from typing import Any

import numpy as np

from tests.exact.relaxed import apart, next_token_distribution
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance, enumerate_outcomes
from underpaint.algos.enumeration import (
    accepted_per_cycle,
    enumerate_decoding,
    enumerate_verdicts,
    target_distribution,
    tokens_distribution,
    total_variation,
)
from underpaint.algos.protocols import Grid, Rule
from underpaint.algos.tree import DraftTree, Drawn, Verdict
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget
from underpaint.strategies import ShapePolicy

ROUNDING = 1e-12
TOY = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
"""The toy case of block verification (arXiv 2403.10444) and of HSD's README: target and draft, whatever came before."""


def pairs(vocab_size: int, count: int, seed: int = 0) -> list[tuple[FloatArray, FloatArray]]:
    """Pairs of a target and a draft distribution; the second pair's target has a zero."""
    rows = np.random.default_rng(seed).dirichlet(np.ones(vocab_size), size=(count, 2))
    rows[1, 0, 0] = 0.0
    return [(target / target.sum(), draft) for target, draft in rows]


def chain(vocab_size: int, length: int, seed: int, drawn: Drawn = "iid") -> tuple[DraftTree, FloatArray]:
    """A random chain of `length` drafts, and the target's rows [length + 1, V]."""
    generator = np.random.default_rng(seed)
    probs, draft = (generator.dirichlet(np.ones(vocab_size), size=length + extra) for extra in (1, 0))
    tokens = np.array([0, *(generator.choice(vocab_size, p=row) for row in draft)])
    return DraftTree(tokens, np.arange(-1, length), drawn, draft, np.array([*range(length), -1])), probs


def decoded(rule: Rule, length: int, pair: tuple[FloatArray, FloatArray] = TOY) -> tuple[float, float]:
    """The tokens that a chain of `length` has kept, and the total variation of whole images; both exact."""
    target, drafter = SyntheticTarget(lambda prefix: pair[0], Grid(1, length + 2)), SyntheticDrafter(lambda _: pair[1])
    traces = enumerate_decoding(target, drafter, ShapePolicy(tuple(range(length)), "iid"), rule, 8, 2)
    whole = target_distribution(target)
    return accepted_per_cycle(traces, 1), total_variation(tokens_distribution(traces, whole), whole)


def check_ensemble(module: ModuleType) -> None:
    """One drafted token is followed by the mixture, and kept with probability 1 - w TV(p, q)."""
    for target, draft in pairs(4, 6):
        for weight in (1.0, 0.7, 0.2):
            rule = module.StaticEnsemble(weight)
            mixture = weight * target + (1.0 - weight) * draft
            got = next_token_distribution(rule, target, draft, "iid", 1)
            assert np.abs(got - mixture).max() < ROUNDING
            accepted, _ = decoded(rule, 1, (target, draft))
            assert abs(accepted - (1.0 - weight * apart(target, draft))) < ROUNDING


def released_hsd(tree: DraftTree, probs: FloatArray) -> dict[Verdict, float]:
    """HSD's verdicts by the formulas of its released code: joint probabilities, capped by a running maximum."""
    last, draft = tree.size - 1, tree.draft_probs
    steps = list(enumerate(tree.tokens[1:].tolist()))
    joint_q = np.cumprod([1.0, *(draft[place, token] for place, token in steps)])
    joint_p = np.cumprod([1.0, *(probs[place, token] for place, token in steps)])
    capped = joint_p[:last] / np.maximum.accumulate(np.maximum(joint_p[:last] / joint_q[:last], 1.0))
    verdicts = dict[Verdict, float]()
    whole = min(1.0, float(np.prod([probs[place, token] / draft[place, token] for place, token in steps])))
    path = tuple(range(1, last + 1))
    for token, share in enumerate(probs[last]):
        verdicts[Verdict(path, token)] = whole * float(share)
    reach = 1.0 - whole
    for place in range(last - 1, -1, -1):
        difference = capped[place] * probs[place] - joint_q[place] * draft[place]
        more, less = np.maximum(difference, 0.0), np.maximum(-difference, 0.0)
        resampled = more / max(more.sum(), less.sum())
        for token, share in enumerate(resampled):
            verdicts[Verdict(path[:place], token)] = reach * float(share)
        reach *= 1.0 - float(resampled.sum())
    return {verdict: weight for verdict, weight in verdicts.items() if weight > 0.0}


def check_hsd(module: ModuleType) -> None:
    """As released it is the released formulas; capped it is block verification."""
    block = RULES["block"].make()
    for seed in range(12):
        tree, probs = chain(3, 1 + seed % 4, seed)
        got = enumerate_verdicts(module.HierarchicalVerification(), tree, probs)
        assert total_variation(got, released_hsd(tree, probs)) < ROUNDING
        capped = enumerate_verdicts(module.HierarchicalVerification("capped"), tree, probs)
        assert total_variation(capped, enumerate_verdicts(block, tree, probs)) < ROUNDING


def forgiven(kept: tuple[bool, ...], probs: FloatArray, tokens: list[int], rule: Any) -> list[bool]:
    """FLy's mask over a chain, from which drafts passed their own tests: a window of its own for each rejection."""
    stays = list(kept)
    for place, passed in enumerate(kept):
        behind = kept[place + 1 : place + 1 + rule.window]
        likely = sorted((float(share) for share in probs[place]), reverse=True)[: rule.top]
        entropy = -sum(share * np.log(share) for share in likely if share > 0.0)
        sure = probs[place, tokens[place]] <= 0.0 or entropy < rule.threshold
        stays[place] = passed or (len(behind) == rule.window and all(behind) and not sure)
    return stays


def check_fly(module: ModuleType) -> None:
    """Every pattern of passed tests, with its probability, gives the path that the mask says."""
    for seed, drawn in product(range(10), ("iid", "top_k")):
        tree, probs = chain(4, 4, seed, drawn)
        probs[seed % 4, tree.tokens[1 + seed % 4]] = 0.0
        probs /= probs.sum(axis=1, keepdims=True)
        tokens, draft = tree.tokens[1:].tolist(), tree.draft_probs if drawn == "iid" else np.eye(4)[tree.tokens[1:]]
        rule = module.DeferredVerification(0.9, 1 + seed % 2, 2 + seed % 3)
        expected = dict[Verdict, float]()
        for kept in product((False, True), repeat=4):
            odds = [min(1.0, probs[place, token] / draft[place, token]) for place, token in enumerate(tokens)]
            reach = float(np.prod([share if passed else 1.0 - share for share, passed in zip(odds, kept, strict=True)]))
            stays = [*forgiven(kept, probs, tokens, rule), False]
            length = stays.index(False)
            extra = probs[4] if length == 4 else np.maximum(probs[length] - draft[length], 0.0)
            for token, share in enumerate(extra / max(extra.sum(), 1e-300)):
                verdict = Verdict(tuple(range(1, length + 1)), token)
                expected[verdict] = expected.get(verdict, 0.0) + reach * float(share)
        assert total_variation(enumerate_verdicts(rule, tree, probs), expected) < ROUNDING
        greedy = module.DeferredMatch(0.9, 1 + seed % 2, 2 + seed % 3)
        stays = forgiven(tuple((probs[:4].argmax(axis=1) == tokens).tolist()), probs, tokens, greedy)
        length = [*stays, False].index(False)
        assert enumerate_verdicts(greedy, tree, probs) == {
            Verdict(tuple(range(1, length + 1)), int(probs[length].argmax())): 1.0
        }


def check_sjd_sv(module: ModuleType) -> None:
    """Run by run, each by the probability that its product, or that without its last drafts, is kept."""
    for seed, share in product(range(12), (0.3, 0.8, 1.0)):
        tree, probs = chain(3, 4, seed)
        tokens, draft = tree.tokens[1:].tolist(), tree.draft_probs
        masses = [float(probs[place, token]) for place, token in enumerate(tokens)]
        expected, reach, start = dict[Verdict, float](), 1.0, 0
        while start < 4:
            end = next((place for place in range(start + 1, 4) if masses[place] < masses[place - 1]), 4)
            first = max(b for b in range(start, end) if sum(masses[b:end]) >= share * sum(masses[start:end]) - 1e-15)
            here = reach
            for stop in range(end, first - 1, -1):
                ratio = np.prod([masses[place] / draft[place, tokens[place]] for place in range(first, stop)])
                odds = 1.0 if stop == first else min(1.0, float(ratio))
                if stop == end:
                    reach = here * odds
                else:
                    owed = np.maximum(probs[stop] - draft[stop], 0.0)
                    for token, part in enumerate(owed / owed.sum()):
                        expected[Verdict(tuple(range(1, stop + 1)), token)] = here * odds * float(part)
                here *= 1.0 - odds
            start = end
        for token, part in enumerate(probs[4]):
            expected[Verdict((1, 2, 3, 4), token)] = reach * float(part)
        rule = module.SubsequenceVerification(share)
        assert total_variation(enumerate_verdicts(rule, tree, probs), expected) < ROUNDING
    tree, probs = chain(3, 4, 0)
    one_by_one = enumerate_verdicts(module.SubsequenceVerification(0.8, 1), tree, probs)
    assert total_variation(one_by_one, enumerate_verdicts(RULES["chain"].make(), tree, probs)) < ROUNDING


def check_confidence(module: ModuleType) -> None:
    """SJD++: a draft whose probability stays above `confidence` times the old one stays, under its new distribution."""
    for old, new in pairs(4, 6):
        for confidence, old_token in product((0.0, 0.5, 1.0, 1.7), range(4)):
            window = module.JacobiWindow(3, "confidence", confidence=confidence)
            draft = module.WindowDraft(old_token, old)

            def redraft(chance: Chance, draft: Any = draft, new: FloatArray = new, window: Any = window) -> int:
                again = module._redrawn(draft, new, 2, chance, window, None)
                assert np.array_equal(again.distribution, new)
                return int(again.token)

            stays = new[old_token] > confidence * old[old_token]
            expected = (
                {old_token: 1.0} if stays else {token: mass for token, mass in enumerate(new.tolist()) if mass > 0.0}
            )
            assert total_variation(enumerate_outcomes(redraft), expected) < ROUNDING


def check_gbv(module: ModuleType) -> None:
    """The best of K independent paths has the law that stands for q, by enumeration of all paths; the rule is exact."""
    generator = np.random.default_rng(3)
    for paths in (1, 2, 3):
        targets, drafts = generator.dirichlet(np.ones(2), size=(2, 3))
        if paths == 2:
            targets = drafts.copy()  # every ratio ties
        orders = [module.by_ratio(target, draft) for target, draft in zip(targets, drafts, strict=True)]
        assert all((np.diff((targets[row] / drafts[row])[order]) >= 0.0).all() for row, order in enumerate(orders))
        rank = [np.argsort(order).tolist() for order in orders]
        law = dict[tuple[int, int], float]()
        every = {(a, b): float(drafts[0, a] * drafts[1 + a, b]) for a, b in product(range(2), repeat=2)}
        for drawn_paths in product(every, repeat=paths):
            best = max(drawn_paths, key=lambda path: (rank[0][path[0]], rank[1 + path[0]][path[1]]))
            law[best] = law.get(best, 0.0) + float(np.prod([every[path] for path in drawn_paths]))
        for first in range(2):
            ranking = module.Ranking(paths)
            share = ranking.skewed(drafts[0], orders[0])[first]
            ranking.follow(drafts[0], orders[0], first)
            for second, next_share in enumerate(ranking.skewed(drafts[1 + first], orders[1 + first])):
                assert abs(float(share * next_share) - law[first, second]) < ROUNDING
    for shape, seed in (((0, 0, 1, 2), 1), ((0, 1, 1, 2, 3), 2), ((0, 0, 0, 1, 2, 3), 3)):
        target = SyntheticTarget(RandomDistribution(2, seed), Grid(1, 5))
        drafter = SyntheticDrafter(RandomDistribution(2, seed + 50))
        traces = enumerate_decoding(target, drafter, ShapePolicy(shape, "iid"), module.GreedyMultiPath(), 8, 2)
        whole = target_distribution(target)
        assert total_variation(tokens_distribution(traces, whole), whole) < ROUNDING


CHECKS: dict[str, Any] = {
    "accept/ensemble.py": check_ensemble,
    "accept/fly.py": check_fly,
    "accept/gbv.py": check_gbv,
    "accept/hsd.py": check_hsd,
    "accept/sjd_sv.py": check_sjd_sv,
    "spatial/jacobi.py": check_confidence,
}
