"""Jacobi windows: with a rule that decides token by token every coupling and refill draws exactly the target's
distribution; with one that looks ahead a coupling does not, and is refused."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.exact.distributions import whole_images
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes, sampling
from underpaint.algos.coupling import EnumeratedNoise, SampledNoise, second_race
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.jacobi import _copied_cell, jacobi_cycles, jacobi_decode, maximal_coupling
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill
from underpaint.algos.tree import DraftTree, Verdict, emitted
from underpaint.sim.synthetic.models import PrefixDistribution, RandomDistribution, SyntheticTarget
from underpaint.strategies import distributions, pools

COUPLINGS: list[Coupling] = ["independent", "maximal", "gumbel"]
REFILLS: list[Refill] = ["uniform", "random", "left", "above", "lookup"]
TOKEN_WISE = [
    spec.name
    for spec in RULES
    if spec.promise == "lossless" and not spec.greedy and "iid" in spec.drawn and not spec.looks_ahead
]
LOOKING_AHEAD = [spec.name for spec in RULES if spec.promise == "lossless" and spec.looks_ahead]


def refills(grid: Grid) -> list[Refill]:
    """Those that differ on `grid`: in its first row, "above" is "left", as a test holds."""
    return [refill for refill in REFILLS if refill != "above" or grid.height > 1]


def with_refills(*cases: tuple[Grid, int]) -> list[tuple[Grid, int, Refill]]:
    """Grids and lengths of windows, each with every refill."""
    return [(grid, length, refill) for grid, length in cases for refill in refills(grid)]


def distribution_of_images(
    distribution: PrefixDistribution, grid: Grid, window: JacobiWindow, rule: str = "chain", checked: bool = True
) -> dict[tuple[int, ...], float]:
    """checked: False hides from the loop which rule it is, so that no pair is refused."""
    rule_instance = RULES[rule].make()

    def hidden(tree: DraftTree, probs: FloatArray, chance: Chance) -> Verdict:
        return rule_instance(tree, probs, chance)

    def program(chance: Chance) -> tuple[int, ...]:
        noise = EnumeratedNoise(chance) if window.coupling == "gumbel" else None
        target = SyntheticTarget(distribution, grid)
        cycles = jacobi_cycles(target, rule_instance if checked else hidden, chance, window, noise)
        return tuple(token for cycle in cycles for token in emitted(cycle.tree, cycle.verdict))

    return enumerate_outcomes(program)


@cache
def missed(grid: Grid, window: JacobiWindow, rule: str, seed: int = 9, checked: bool = True) -> float:
    """The total variation of whole images."""
    distribution = RandomDistribution(2, seed=seed, sharpness=1.5)
    images = distribution_of_images(distribution, grid, window, rule, checked)
    return total_variation(images, whole_images(distribution, grid))


def test_in_the_first_row_above_is_left() -> None:
    """So a grid of one row needs no enumeration of both."""
    for width in range(1, 9):
        for cell in range(width):
            assert _copied_cell(cell, width, "above") == _copied_cell(cell, width, "left") == cell - 1


@pytest.mark.parametrize(
    ("grid", "length", "refill"),
    with_refills((Grid(2, 2), 2), (Grid(2, 2), 3), (Grid(1, 4), 1), (Grid(1, 5), 2), (Grid(1, 5), 3)),
)
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("rule", TOKEN_WISE)
def test_a_rule_that_decides_token_by_token_stays_lossless(
    rule: str, coupling: Coupling, refill: Refill, grid: Grid, length: int
) -> None:
    for seed in (7, 9):
        assert missed(grid, JacobiWindow(length, coupling, refill), rule, seed) < 1e-12


@pytest.mark.parametrize(("grid", "length", "refill"), with_refills((Grid(2, 2), 2), (Grid(2, 2), 3), (Grid(1, 5), 3)))
@pytest.mark.parametrize("rule", LOOKING_AHEAD)
def test_a_rule_that_looks_ahead_stays_lossless_where_drafts_are_drawn_anew(
    rule: str, refill: Refill, grid: Grid, length: int
) -> None:
    assert missed(grid, JacobiWindow(length, "independent", refill), rule) < 1e-12


@pytest.mark.parametrize(
    ("grid", "window", "bias"),
    [
        (Grid(2, 2), JacobiWindow(2, "maximal", "uniform"), 7.0e-3),
        (Grid(1, 5), JacobiWindow(3, "maximal", "left"), 4.7e-4),
        (Grid(1, 5), JacobiWindow(3, "gumbel", "uniform"), 5.7e-5),
    ],
)
@pytest.mark.parametrize("rule", LOOKING_AHEAD)
def test_a_rule_that_looks_ahead_is_biased_by_a_coupling_and_refused(
    rule: str, grid: Grid, window: JacobiWindow, bias: float
) -> None:
    """Where it stopped says something of the drafts behind, which the coupling carries over."""
    assert missed(grid, window, rule, checked=False) == pytest.approx(bias, rel=0.02)
    with pytest.raises(ValueError, match=f"rule '{rule}' looks at the drafts behind .* coupling 'independent'"):
        missed(grid, window, rule)


@pytest.mark.parametrize("coupling", ["independent", "maximal"])
def test_three_tokens(coupling: Coupling) -> None:
    distribution, grid = RandomDistribution(3, seed=8, sharpness=1.5), Grid(1, 3)
    images = distribution_of_images(distribution, grid, JacobiWindow(2, coupling, "left"))
    assert total_variation(images, whole_images(distribution, grid)) < 1e-12


@given(pools(2), st.sampled_from(COUPLINGS), st.sampled_from(REFILLS))
def test_any_distributions(distribution: PrefixDistribution, coupling: Coupling, refill: Refill) -> None:
    grid = Grid(2, 2)
    images = distribution_of_images(distribution, grid, JacobiWindow(3, coupling, refill))
    assert total_variation(images, whole_images(distribution, grid)) < 1e-12


@given(distributions(4), distributions(4))
def test_maximal_coupling_has_the_distributions_and_holds_on(draft: np.ndarray, target: np.ndarray) -> None:
    def program(chance: Chance) -> tuple[int, int]:
        token = chance.draw(draft, At(Role.DRAFT, 1))
        return token, maximal_coupling(token, draft, target, chance, At(Role.DRAFT, 2))

    joint = enumerate_outcomes(program)
    got = np.zeros(4)
    for (_, new), weight in joint.items():
        got[new] += weight
    kept_mass = sum(weight for (old, new), weight in joint.items() if old == new)
    assert np.allclose(got, target, atol=1e-12)
    assert kept_mass == pytest.approx(1.0 - 0.5 * np.abs(draft - target).sum(), abs=1e-12)


@given(distributions(4), distributions(4))
def test_a_race_has_the_distributions_and_the_published_agreement(first: np.ndarray, second: np.ndarray) -> None:
    joint = np.array(
        [mass * second_race(first, token, second) if mass else np.zeros(4) for token, mass in enumerate(first)]
    )
    assert np.allclose(joint.sum(axis=0), second, atol=1e-12)
    apart = 0.5 * np.abs(first - second).sum()
    assert np.trace(joint) >= (1.0 - apart) / (1.0 + apart) - 1e-12
    for token in np.flatnonzero((first > 0) & (second > 0)):
        closed = 1.0 / np.maximum(first / first[token], second / second[token]).sum()
        assert joint[token, token] == pytest.approx(closed, abs=1e-12)


def test_two_closed_forms_agree_on_two_tokens() -> None:
    """The general second race, and the single uniform that decides between two tokens."""
    first, second = np.array([0.3, 0.7]), np.array([0.6, 0.4])
    assert np.allclose(second_race(first, 0, second), [1.0, 0.0])
    assert np.allclose(second_race(first, 1, second), [3 / 7, 4 / 7])


def test_sampled_noise_races_by_the_enumerated_distribution() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.dirichlet(np.ones(3)), generator.dirichlet(np.ones(3))
    count, noise = 5_000, SampledNoise(seed=3)
    met = np.zeros((3, 3))
    for cell in range(count):
        met[noise.race(first, cell), noise.race(second, cell)] += 1
    joint = np.array([mass * second_race(first, token, second) for token, mass in enumerate(first)])
    assert np.abs(met / count - joint).max() < 5 * 0.5 / count**0.5


def test_noise_is_addressed() -> None:
    distribution = np.full(50, 0.02)
    one, other = SampledNoise(seed=1, keep=2), SampledNoise(seed=1, keep=200)
    forwards = [one.race(distribution, cell) for cell in range(40)]
    backwards = [other.race(distribution, cell) for cell in reversed(range(40))]
    assert forwards == backwards[::-1]
    assert len(set(forwards)) > 10
    assert forwards != [SampledNoise(seed=1, image=1).race(distribution, cell) for cell in range(40)]
    with pytest.raises(ValueError, match="non-negative weights"):
        one.race(np.zeros(3), 0)


def test_a_third_distribution_over_three_tokens_is_refused() -> None:
    generator = np.random.default_rng(1)

    def program(chance: Chance) -> tuple[int, ...]:
        noise = EnumeratedNoise(chance)
        return tuple(noise.race(distribution, 0) for distribution in rows)

    rows = generator.dirichlet(np.ones(3), size=3)
    with pytest.raises(ValueError, match="cannot be enumerated"):
        enumerate_outcomes(program)


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize(("grid", "length", "refill"), with_refills((Grid(2, 2), 3), (Grid(1, 5), 2), (Grid(2, 3), 2)))
def test_every_part_of_the_lookup_is_lossless(coupling: Coupling, refill: Refill, grid: Grid, length: int) -> None:
    parts = ((True, 0.0, False), (False, 0.85, False), (False, 0.0, True), (True, 1.0, True))
    for passes, beside, last_row in parts:
        window = JacobiWindow(length, coupling, refill, passes=passes, beside=beside, last_row=last_row)
        assert missed(grid, window, "chain") < 1e-12


def test_a_lookup_weight_beyond_its_range_is_refused() -> None:
    for weight in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"window: beside must be at (most 1|least 0), got {weight}"):
            JacobiWindow(beside=weight)


def test_couplings_need_fewer_passes_than_redrawing() -> None:
    """What SCD is for: drafts that hold still keep the distributions behind them still, and are accepted sooner."""
    base, drift = RandomDistribution(64, seed=1, sharpness=2.0), RandomDistribution(64, seed=2, sharpness=2.0)

    def distribution(prefix: tuple[int, ...]) -> np.ndarray:
        return 0.5 * base((len(prefix),)) + 0.5 * drift(prefix[-2:])

    def passes(coupling: Coupling) -> float:
        counts = []
        for image in range(6):
            noise = SampledNoise(0, image) if coupling == "gumbel" else None
            target, window = SyntheticTarget(distribution, Grid(8, 8)), JacobiWindow(16, coupling, "left")
            done = jacobi_decode(target, RULES["chain"].make(), sampling(0, image), window, noise)
            assert done.tokens.size == 64
            counts.append(len(done.cycles))
        return float(np.mean(counts))

    redrawn = passes("independent")
    assert redrawn < 0.6 * 64
    assert passes("maximal") < 0.85 * redrawn
    assert passes("gumbel") < 0.85 * redrawn


def test_noise_and_coupling_must_fit() -> None:
    target, chain = SyntheticTarget(RandomDistribution(2), Grid(1, 2)), RULES["chain"].make()
    with pytest.raises(ValueError, match="needs noise"):
        jacobi_decode(target, chain, sampling(0), JacobiWindow(2, "gumbel"))
    with pytest.raises(ValueError, match="takes no noise"):
        jacobi_decode(target, chain, sampling(0), JacobiWindow(2, "maximal"), SampledNoise(0))
    with pytest.raises(ValueError, match="length must be at least 1"):
        JacobiWindow(0)
    with pytest.raises(ValueError, match="coupling must be one of"):
        JacobiWindow(2, "best")  # type: ignore[arg-type]
