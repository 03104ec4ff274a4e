"""The rules of 2025 and 2026: what they promise, what their authors' formulas give, and where a claim fails."""

from itertools import product
from math import e, log
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.utils import _speculative_sampling

from tests.exact.recent_rules import CHECKS, ROUNDING, TOY, chain, decoded, pairs
from tests.mutants.harness import load
from underpaint.algos.accept import RULES
from underpaint.algos.accept.fly import top_entropy
from underpaint.algos.accept.gbv import Ranking, bundle
from underpaint.algos.chance import Chance, Role, enumerate_outcomes, index_of, sampling, scripted
from underpaint.algos.draft import POLICIES
from underpaint.algos.enumeration import accepted_per_cycle, enumerate_decoding, target_distribution, total_variation
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.spatial.jacobi import jacobi_cycles
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow
from underpaint.algos.tree import emitted
from underpaint.sim.synthetic.models import RandomDistribution, SyntheticDrafter, SyntheticTarget


@pytest.mark.parametrize("name", CHECKS)
def test_the_rule_does_what_its_source_says(name: str) -> None:
    CHECKS[name](load(name))


@pytest.mark.parametrize("weight", [0.3, 0.8])
def test_the_ensemble_decides_as_transformers_does(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`_speculative_sampling` with `assistant_ensemble_weight`, on the same uniforms."""
    for seed in range(60):
        tree, probs = chain(4, 3, seed)
        uniforms = np.random.default_rng(seed).random(4)
        monkeypatch.setattr(torch, "rand_like", lambda ratio, u=uniforms: torch.tensor(u[:3]).reshape(ratio.shape))

        def draw(row: torch.Tensor, num_samples: int, u: Any = uniforms) -> torch.Tensor:
            return torch.tensor([[index_of(row[0].numpy(), float(u[3]))]])

        monkeypatch.setattr(torch, "multinomial", draw)
        tokens, n_matches = _speculative_sampling(
            torch.tensor(tree.tokens)[None],
            torch.tensor(tree.draft_probs).log()[None],
            3,
            torch.tensor(probs).log()[None],
            assistant_ensemble_weight=weight,
        )
        script = {(0, Role.ACCEPT, node): float(uniforms[node - 1]) for node in (1, 2, 3)}
        script |= {(0, role, node): float(uniforms[3]) for role in (Role.RESIDUAL, Role.BONUS) for node in range(4)}
        verdict = RULES["ensemble"].make(weight)(tree, probs, scripted(script))
        assert (len(verdict.path), verdict.token) == (int(n_matches), int(tokens[0, -1]))


def test_hsd_as_released_is_not_lossless() -> None:
    """The toy case of its README: as block verification for one token, then more is kept, at a bias."""
    rule, block = RULES["hsd"].make(), RULES["block"].make()
    assert decoded(rule, 1) == pytest.approx((2 / 3, 0.0), abs=ROUNDING)
    assert decoded(rule, 2) == pytest.approx((4 / 3, 1 / 9), abs=ROUNDING)
    assert decoded(rule, 3) == pytest.approx((16 / 9, 5 / 81), abs=ROUNDING)
    assert decoded(block, 2) == pytest.approx((11 / 9, 0.0), abs=ROUNDING)


def test_hsd_is_biased_wherever_it_keeps_more_than_block_verification() -> None:
    for pair in pairs(3, 6):
        (accepted, missed), (most, none) = (
            decoded(RULES["hsd"].make(), 2, pair),
            decoded(RULES["block"].make(), 2, pair),
        )
        assert none < ROUNDING
        assert accepted >= most - ROUNDING
        assert (missed > 1e-6) == (accepted > most + 1e-6)


@pytest.mark.parametrize(
    ("share", "kept", "missed"), [(0.5, 5 / 3, 1 / 3), (0.8, 25 / 18, 1 / 6), (1.0, 25 / 18, 1 / 6)]
)
def test_sjd_sv_is_not_lossless(share: float, kept: float, missed: float) -> None:
    assert decoded(RULES["sjd_sv"].make(share), 1) == pytest.approx((2 / 3, 0.0), abs=ROUNDING)
    assert decoded(RULES["sjd_sv"].make(share), 2) == pytest.approx((kept, missed), abs=ROUNDING)


def test_sjd_sv_is_not_lossless_with_one_uniform_for_all_tries_either() -> None:
    """Toy case, two drafts, whole runs: code 0 comes first too often, whichever way the second try is read."""
    target, draft = TOY
    ratio = target / draft
    first_is_kept = draft[0] * draft[0] * max(min(1.0, ratio[0] ** 2), min(1.0, ratio[0]))  # u below the larger one
    first_is_kept += draft[0] * draft[1] * max(min(1.0, ratio[0] * ratio[1]), min(1.0, ratio[0]))
    assert np.maximum(target - draft, 0.0)[0] == 0.0  # so a rejection never draws code 0
    assert first_is_kept == pytest.approx(4 / 9, abs=ROUNDING)
    assert target[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize(("top", "most"), [(1, 1 / e), (2, 2 / e), (3, log(3)), (4, log(4))])
def test_fly_is_lossless_only_above_the_largest_entropy_of_its_top_codes(top: int, most: float) -> None:
    largest = np.full(5, 1e-9)
    largest[:top] = 1 / e if top < 3 else 1 / top
    assert top_entropy(largest, top) == pytest.approx(most, abs=1e-6)
    for name in ("fly", "fly_greedy"):
        for threshold, lossless in ((most + 1e-6, True), (most - 1e-6, False)):
            settings = {"threshold": threshold, "window": 1, "top": top}
            assert RULES[name].is_lossless(settings) == lossless, (name, settings)


@pytest.mark.parametrize("depth", [1, 3])
def test_cool_sd_keeps_the_factors_of_a_tree_in_its_first_level(depth: int) -> None:
    rule = RULES["cool"].make(1.1, 0.7)
    assert rule.at_depth(depth).factors(1) == pytest.approx(rule.factors(depth)[:1], rel=1e-12)
    assert rule.at_depth(depth).factors(depth) == pytest.approx(rule.factors(depth), rel=1e-12)


def test_fly_forgives_by_enumeration() -> None:
    """Toy case: a rejection of code 0 is forgiven wherever code 1 follows or code 0 passes."""
    assert decoded(RULES["fly"].make(0.3, 1), 1) == pytest.approx((2 / 3, 0.0), abs=ROUNDING)
    assert decoded(RULES["fly"].make(0.3, 1), 2) == pytest.approx((14 / 9, 2 / 9), abs=ROUNDING)
    assert decoded(RULES["fly"].make(0.7, 1), 2)[1] == pytest.approx(0.0, abs=ROUNDING)  # entropy is 0.637


@pytest.mark.parametrize(
    ("coupling", "confidence", "passes", "missed"),
    [
        ("independent", 0.5, 2.93952, 0.0),
        ("confidence", 1e3, 2.93952, 0.0),
        ("confidence", 1.0, 2.98591, 0.00758102),
        ("confidence", 0.5, 2.94607, 0.00474148),
        ("confidence", 0.1, 2.85929, 0.00959142),
        ("confidence", 0.0, 2.83160, 0.05246135),
        ("maximal", 0.5, 2.92492, 0.0),
    ],
)
def test_sjd_plus_plus_is_biased_and_saves_few_passes(
    coupling: Coupling, confidence: float, passes: float, missed: float
) -> None:
    window = JacobiWindow(3, coupling, "uniform", confidence=confidence)
    distribution = RandomDistribution(2, seed=9, sharpness=1.5)

    def program(chance: Chance) -> tuple[int, tuple[int, ...]]:
        target = SyntheticTarget(distribution, Grid(1, 5))
        cycles = list(jacobi_cycles(target, RULES["chain"].make(), chance, window))
        return len(cycles), tuple(token for cycle in cycles for token in emitted(cycle.tree, cycle.verdict))

    outcomes, images = enumerate_outcomes(program), dict[tuple[int, ...], float]()
    for (_, image), weight in outcomes.items():
        images[image] = images.get(image, 0.0) + weight
    assert sum(count * weight for (count, _), weight in outcomes.items()) == pytest.approx(passes, abs=1e-5)
    whole = target_distribution(SyntheticTarget(distribution, Grid(1, 5)))
    assert total_variation(images, whole) == pytest.approx(missed, abs=1e-8)


def test_gbv_keeps_more_with_every_path() -> None:
    """Toy case, two tokens a path: one path is block verification."""
    accepted = []
    for paths in (1, 2, 3):
        target, drafter = SyntheticTarget(lambda prefix: TOY[0], Grid(1, 4)), SyntheticDrafter(lambda prefix: TOY[1])
        policy = POLICIES["delayed"].make(paths, 0, 2)
        traces = enumerate_decoding(target, drafter, policy, RULES["gbv"].make(), 8, 2)
        accepted.append(accepted_per_cycle(traces, 1))
    assert accepted[0] == pytest.approx(11 / 9, abs=ROUNDING)
    assert accepted[0] < accepted[1] < accepted[2] < 2.0


def test_ties_by_two_orders_are_biased() -> None:
    """A public copy of `gbv_verify` clips p / q at 1, ranks ties by token id and takes the first child among them."""
    law = np.zeros(3)
    target, draft = np.array([0.1, 0.45, 0.45]), np.array([0.4, 0.3, 0.3])
    order = np.argsort(np.minimum(1.0, target / draft), kind="stable")
    for drawn_tokens in product(range(3), repeat=2):
        ratios = [min(1.0, target[token] / draft[token]) for token in drawn_tokens]
        law[drawn_tokens[int(np.argmax(ratios))]] += draft[drawn_tokens[0]] * draft[drawn_tokens[1]]
    assert np.abs(Ranking(2).skewed(draft, order) - law).max() == pytest.approx(0.09, abs=ROUNDING)


@pytest.mark.parametrize(
    "budget", [Budget(9, 99), Budget(3, 99), Budget(1, 99), Budget(9, 6), Budget(9, 2), Budget(0, 9)]
)
def test_delayed_trees_fit_their_budget_with_equal_branches(budget: Budget) -> None:
    drafter = SyntheticDrafter(RandomDistribution(3, seed=1))
    drafter.begin(SyntheticTarget(drafter.distribution, Grid(1, 1)).begin())
    tree = POLICIES["delayed"].make(2, 2, 3).grow(drafter, 0, budget, sampling(0))
    assert tree.size <= budget.max_nodes
    assert tree.depth <= budget.max_depth
    trunk, paths = bundle(tree)
    assert len({len(path) for path in paths}) <= 1
    assert tree.size == len(trunk) + sum(map(len, paths))
