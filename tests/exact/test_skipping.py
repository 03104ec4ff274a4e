"""Verification skipping: plain decoding where it never skips; what it skips has the drafter's distribution."""

import argparse
import subprocess
from itertools import pairwise

import numpy as np
import pytest

from underpaint.algos.accept import RULES
from underpaint.algos.chance import Chance, enumerate_outcomes, sampling
from underpaint.algos.enumeration import target_distribution, total_variation
from underpaint.algos.path_similarity import path_similarity
from underpaint.algos.protocols import Grid
from underpaint.algos.skipping import Skipping, skipped_distribution, skipping_cycles
from underpaint.algos.step import Cycle, Decoded, decode
from underpaint.algos.tree import DraftTree, Drawn, emitted, root_only
from underpaint.sim.synthetic.models import (
    Blend,
    PrefixDistribution,
    RandomDistribution,
    SyntheticDrafter,
    SyntheticTarget,
)
from underpaint.strategies import ShapePolicy

LIKELY = RandomDistribution(2, seed=3)
CHAIN, TREE = (0, 1), (0, 0, 1)


def distribution_of_images(drafter: PrefixDistribution, skipping: Skipping, grid: Grid) -> dict[tuple[int, ...], float]:
    policy = ShapePolicy(CHAIN, "iid")

    def program(chance: Chance) -> tuple[int, ...]:
        cycles = skipping_cycles(
            SyntheticTarget(LIKELY, grid), SyntheticDrafter(drafter), policy, RULES["chain"].make(), chance, skipping, 8
        )
        return tuple(token for done in cycles for token in emitted(done.tree, done.verdict))

    return enumerate_outcomes(program)


def test_unseen_tokens_have_the_drafters_distribution() -> None:
    """With the target as its own drafter nothing is lost; with another, something is."""
    grid, exact = Grid(1, 5), target_distribution(SyntheticTarget(LIKELY, Grid(1, 5)))
    assert total_variation(distribution_of_images(LIKELY, Skipping(2, 2), grid), exact) < 1e-12
    other = Blend(LIKELY, RandomDistribution(2, seed=4, sharpness=2.0), 0.7)
    assert total_variation(distribution_of_images(other, Skipping(0, 2), grid), exact) < 1e-12
    assert total_variation(distribution_of_images(other, Skipping(2, 2), grid), exact) > 1e-3


@pytest.mark.parametrize(("drawn", "rule"), [("iid", "multi_round"), ("top_k", "point")])
def test_never_skipping_is_plain_decoding(drawn: Drawn, rule: str) -> None:
    distribution, other = RandomDistribution(16, seed=1), RandomDistribution(16, seed=2)
    rule_instance, policy = RULES[rule].make(), ShapePolicy(TREE, drawn)
    for image in range(5):
        models = SyntheticTarget(distribution, Grid(4, 4)), SyntheticDrafter(Blend(distribution, other, 0.3))
        plain = decode(*models, policy, rule_instance, sampling(0, image), 8)
        cycles = skipping_cycles(*models, policy, rule_instance, sampling(0, image), Skipping(0, 4), 8)
        assert plain.tokens.tolist() == [token for done in cycles for token in emitted(done.tree, done.verdict)]


def skipped_run(skipping: Skipping, image: int = 0) -> list[Cycle]:
    distribution = RandomDistribution(8, seed=1)
    models = (
        SyntheticTarget(distribution, Grid(6, 6)),
        SyntheticDrafter(Blend(distribution, RandomDistribution(8, seed=2), 0.1)),
    )
    policy = ShapePolicy((0, 1, 2, 3), "iid")
    return list(skipping_cycles(*models, policy, RULES["chain"].make(), sampling(5, image), skipping, 16))


@pytest.mark.parametrize("every", [2, 3, 4])
def test_when_and_how_much(every: int) -> None:
    for image in range(8):
        run = skipped_run(Skipping(every, 3), image)
        assert sum(len(done.verdict.path) + 1 for done in run) == 36
        assert any(not done.verified for done in run)
        assert all(done.number % every == 0 for done in run if not done.verified)
        assert all(first.verified or second.verified for first, second in pairwise(run))
        accepted: list[int] = []
        for done in run[1:]:
            if done.verified:
                accepted.append(len(done.verdict.path))
            else:
                assert len(done.verdict.path) + 1 <= min(3, np.floor(np.mean(accepted)))


def test_the_target_takes_in_what_was_skipped() -> None:
    """After a skip the distributions are those of the whole prefix: the run is scored as one sequence."""
    distribution, seen = RandomDistribution(8, seed=1), []

    def noted(prefix: tuple[int, ...]) -> np.ndarray:
        seen.append(prefix)
        return distribution(prefix)

    target = SyntheticTarget(noted, Grid(5, 5))
    drafter = SyntheticDrafter(Blend(distribution, RandomDistribution(8, seed=2), 0.1))
    policy = ShapePolicy((0, 1, 2), "iid")
    run = skipping_cycles(target, drafter, policy, RULES["chain"].make(), sampling(2), Skipping(2, 3), 16)
    tokens: list[int] = []
    for done in run:
        tokens.extend(emitted(done.tree, done.verdict))
    assert {tuple(tokens[:count]) for count in range(20)} <= set(seen)


def test_the_released_script_never_comes_to_skip() -> None:
    """HyattDD/VVS, run_vvs.sh: it sets `skip_policies` and reads `skip_policy`. The empty name is not "uniform", so the
    interval becomes 1024, which means never; and the option without its value is refused by the program."""
    script = """
    skip_policies=uniform; select_token_policies=random; interval_list=(5)
    if [ "$skip_policy" != "uniform" ]; then intervals=(1024); else intervals=("${interval_list[@]}"); fi
    echo --skip_interval "${intervals[@]}" --skip_policy $skip_policy --select_token $select_token_policy
    """
    args = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={}).stdout.split()
    assert args == ["--skip_interval", "1024", "--skip_policy", "--select_token"]
    options = argparse.ArgumentParser()
    options.add_argument("--skip_interval", type=int, default=1024)
    for name in ("--skip_policy", "--select_token"):
        options.add_argument(name, type=str)
    with pytest.raises(SystemExit):
        options.parse_args(args)
    for image in range(3):  # and the interval itself leaves every cycle of a picture verified
        assert all(done.verified for done in skipped_run(Skipping(1024, 3), image))
        assert not all(done.verified for done in skipped_run(Skipping(5, 3), image))


def test_similarity_by_hand() -> None:
    """Three paths, 1-2, 1-3 and 4: two levels, weights 2/3 and 1/3."""
    codes = np.array([[9.0, 9.0], [2.0, 0.0], [1.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    tree = DraftTree(np.array([0, 1, 4, 2, 3]), np.array([-1, 0, 0, 1, 1]), "top_k", np.empty((0, 5)), np.full(5, -1))
    slant = 0.5**0.5
    pairs = [2 / 3 * 1.0 + 1 / 3 * 0.0, 2 / 3 * slant, 2 / 3 * slant]
    assert path_similarity(tree, codes, 0.5) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert path_similarity(root_only(0, 5), codes, 0.5) == 0.0
    assert skipped_distribution(tree, 5).tolist() == pytest.approx([0, 2 / 3, 0, 0, 1 / 3])
    with pytest.raises(ValueError, match="never skipped"):
        skipped_distribution(root_only(0, 5), 5)


def test_similar_paths_are_skipped_and_the_watch_is_told() -> None:
    distribution, codes = RandomDistribution(8, seed=1), np.random.default_rng(0).standard_normal((8, 3))
    other = Blend(distribution, RandomDistribution(8, seed=2), 0.1)
    rule, policy, watched_trees = RULES["multi_round"].make(), ShapePolicy((0, 0, 1, 2), "iid"), list[DraftTree]()
    skipped = []
    for threshold in (-1.0, 0.3, 1.0):
        watched_trees.clear()
        models = SyntheticTarget(distribution, Grid(6, 6)), SyntheticDrafter(other)
        settings = Skipping(0, 3, "similarity", threshold)
        run = Decoded.of(
            skipping_cycles(
                *models, policy, rule, sampling(3), settings, 16, codes, lambda tree, probs: watched_trees.append(tree)
            )
        )
        assert run.tokens.size == 36
        free = [cycle for cycle in run.cycles if not cycle.verified]
        assert all(path_similarity(cycle.tree, codes, 0.9) >= threshold for cycle in free)
        assert len(free) - 1 <= len(watched_trees) <= len(free)
        assert all(first.verified or second.verified for first, second in pairwise(run.cycles))
        skipped.append(len(free))
    assert skipped[0] > skipped[2]
    assert skipped[0] >= skipped[1] >= skipped[2]
    with pytest.raises(ValueError, match="give the codebook"):
        next(skipping_cycles(*_models(), policy, rule, sampling(0), Skipping(0, 3, "similarity"), 16))


def test_settings() -> None:
    bad_settings = ({"every": 1}, {"every": -2}, {"longest": 0}, {"threshold": 1.5}, {"decay": 0.0}, {"schedule": "x"})
    for bad in bad_settings:
        with pytest.raises(ValueError, match="skipping: "):
            Skipping(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_nodes > longest"):
        next(
            skipping_cycles(*_models(), ShapePolicy((0,), "iid"), RULES["chain"].make(), sampling(0), Skipping(2, 8), 8)
        )


def _models() -> tuple[SyntheticTarget, SyntheticDrafter]:
    return SyntheticTarget(LIKELY, Grid(1, 3)), SyntheticDrafter(LIKELY)
