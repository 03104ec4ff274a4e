"""Windows with `last_row` run the released loop of SJD, SCD and GSD, pass by pass.

`released_loop` is written from reading the authors' code (github.com/tyshiwo1/Accelerating-T2I-AR-with-SJD,
github.com/junhyukso/SCD and github.com/junhyukso/GSD, scheduler/jacobi_iteration_*.py). It keeps their way to count:
the window holds the committed token too, and row i of a pass is the distribution of the token behind position i.
"""

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exact.test_jacobi import COUPLINGS, LOOKING_AHEAD, TOKEN_WISE, missed, refills, with_refills
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial import jacobi
from underpaint.algos.spatial.jacobi_window import Coupling, JacobiWindow, Refill
from underpaint.algos.tree import emitted
from underpaint.sim.synthetic.models import PrefixDistribution, RandomDistribution, SyntheticTarget
from underpaint.strategies import pools


class Step(NamedTuple):
    """One pass. inputs: the tokens that the target saw; scores: of the drafts among them; committed: by the pass."""

    inputs: tuple[int, ...]
    scores: tuple[tuple[float, ...], ...]
    committed: tuple[int, ...]


def rounded(row: FloatArray) -> tuple[float, ...]:
    return tuple((np.round(row, 9) + 0.0).tolist())


def released_loop(
    distribution: PrefixDistribution, cells: int, positions: int, keeps_on: bool, one_hot: bool, chance: Chance
) -> tuple[Step, ...]:
    """Draw one image.

    positions: of a pass at most, the committed token counted. keeps_on: SCD's maximal coupling, which goes on to judge
    behind the first rejection; its kept tokens have their new scores here, as a lossless loop needs. one_hot: a random
    token is scored as certain, else as the uniform draw that it is.
    """
    uses = iter(range(10**6))

    def draw(row: FloatArray) -> int:
        return chance.draw(row, At(Role.DRAFT, next(uses)))

    first = distribution(())
    image = [draw(first)]
    steps = [Step((), (), (image[0],))]
    kept_tokens, kept_scores = list[int](), list[FloatArray]()
    while len(image) < cells:
        here = min(positions, cells - len(image))
        tokens, scores = [image[-1], *kept_tokens][:here], [first, *kept_scores][:here]
        while len(tokens) < here:
            even = np.full(first.size, 1.0 / first.size)
            tokens.append(draw(even))
            scores.append(np.eye(first.size)[tokens[-1]] if one_hot else even)
        rows = [distribution((*image, *tokens[1 : place + 1])) for place in range(here)]
        chosen, matched = list[int](), here
        for place in range(1, here):
            token, new, old = tokens[place], rows[place - 1], scores[place]
            if matched < here and not keeps_on:
                chosen.append(draw(new))
            elif chance.flip(float(new[token]), At(Role.ACCEPT, next(uses)), out_of=float(old[token])):
                chosen.append(token)
            else:
                lacking = np.maximum(new - old, 0.0)
                chosen.append(draw(lacking) if lacking.any() else token)
                matched = min(matched, place)
        chosen.append(draw(rows[-1]))
        steps.append(Step(tuple(tokens), tuple(map(rounded, scores[1:])), tuple(chosen[:matched])))
        image += chosen[:matched]
        kept_tokens, kept_scores = chosen[matched:], rows[matched:]
    return tuple(steps)


def our_steps(
    distribution: PrefixDistribution, grid: Grid, window: JacobiWindow, chance: Chance, module: ModuleType = jacobi
) -> tuple[Step, ...]:
    """module: whose `jacobi_cycles` runs."""
    target, steps = SyntheticTarget(distribution, grid), list[Step]()
    for cycle in module.jacobi_cycles(target, RULES["chain"].make(), chance, window):
        tree, first = cycle.tree, not steps
        scores = () if first or tree.size == 1 else tuple(map(rounded, tree.draft_probs))
        inputs = () if first else tuple(tree.tokens.tolist())
        steps.append(Step(inputs, scores, tuple(emitted(tree, cycle.verdict))))
    return tuple(steps)


def step_by_step(
    distribution: PrefixDistribution, grid: Grid, window: JacobiWindow, module: ModuleType = jacobi
) -> float:
    """The total variation between both loops' distributions of everything that happens."""
    ours = enumerate_outcomes(lambda chance: our_steps(distribution, grid, window, chance, module))
    theirs = enumerate_outcomes(
        lambda chance: released_loop(
            distribution, grid.cells, window.length + 1, window.coupling == "maximal", window.refill == "random", chance
        )
    )
    return total_variation(ours, theirs)


def mean_passes(loop: Callable[[Chance], tuple[Step, ...]]) -> float:
    return sum(len(steps) * weight for steps, weight in enumerate_outcomes(loop).items())


@pytest.mark.parametrize("refill", ["uniform", "random"])
@pytest.mark.parametrize("coupling", ["independent", "maximal"])
@pytest.mark.parametrize(
    ("vocab_size", "grid", "drafts"), [(2, Grid(1, 5), 1), (2, Grid(1, 5), 2), (2, Grid(2, 3), 3), (3, Grid(1, 4), 2)]
)
def test_every_pass_is_that_of_the_released_loop(
    vocab_size: int, grid: Grid, drafts: int, coupling: Coupling, refill: Refill
) -> None:
    """Drafts, their scores and what is committed, with their probabilities."""
    distribution = RandomDistribution(vocab_size, seed=9, sharpness=1.5)
    assert step_by_step(distribution, grid, JacobiWindow(drafts, coupling, refill, last_row=True)) < 1e-12


def test_without_the_kept_sample_it_is_another_loop() -> None:
    distribution = RandomDistribution(2, seed=9, sharpness=1.5)
    assert step_by_step(distribution, Grid(1, 5), JacobiWindow(2)) > 0.1


@pytest.mark.parametrize(("grid", "length", "refill"), with_refills((Grid(1, 5), 2), (Grid(3, 2), 2)))
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("rule", TOKEN_WISE)
def test_the_released_loop_is_lossless(rule: str, coupling: Coupling, refill: Refill, grid: Grid, length: int) -> None:
    assert missed(grid, JacobiWindow(length, coupling, refill, last_row=True), rule) < 1e-12


@pytest.mark.parametrize("refill", refills(Grid(1, 5)))
@pytest.mark.parametrize("rule", LOOKING_AHEAD)
def test_so_it_is_where_a_rule_looks_ahead_and_drafts_are_drawn_anew(rule: str, refill: Refill) -> None:
    assert missed(Grid(1, 5), JacobiWindow(2, "independent", refill, last_row=True), rule) < 1e-12


@pytest.mark.parametrize(
    ("seed", "refill", "without", "released"),
    [
        (7, "uniform", 3.2614, 3.2500),
        (9, "uniform", 3.2783, 3.3255),
        (7, "random", 3.4428, 3.3084),
        (9, "random", 3.6858, 3.6623),
    ],
)
def test_mean_passes_are_those_of_the_released_loop(seed: int, refill: Refill, without: float, released: float) -> None:
    """A row of five cells, windows of three positions."""
    distribution, grid = RandomDistribution(2, seed=seed, sharpness=1.5), Grid(1, 5)

    def ours(last_row: bool) -> float:
        window = JacobiWindow(2, "independent", refill, last_row=last_row)
        return mean_passes(lambda chance: our_steps(distribution, grid, window, chance))

    theirs = mean_passes(lambda chance: released_loop(distribution, 5, 3, False, refill == "random", chance))
    assert theirs == pytest.approx(ours(True), abs=1e-12)
    assert theirs == pytest.approx(released, abs=5e-5)
    assert ours(False) == pytest.approx(without, abs=5e-5)


@settings(max_examples=20)
@given(pools(2), st.sampled_from(["independent", "maximal"]), st.sampled_from(["uniform", "random"]))
def test_so_it_is_with_any_distributions(distribution: PrefixDistribution, coupling: Coupling, refill: Refill) -> None:
    assert step_by_step(distribution, Grid(1, 4), JacobiWindow(2, coupling, refill, last_row=True)) < 1e-12
