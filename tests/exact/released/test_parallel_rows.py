"""PJD's released loop over several rows: equal to the authors' code, and what its mistakes cost."""

from itertools import product

import pytest

from tests.exact.released.jacobi_loop import ReleasedLoop, bias_and_passes
from tests.exact.released.parallel_rows import ReleasedRows, RowDistribution, Seen, decode
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import enumerate_outcomes, sampling
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid
from underpaint.sim.synthetic.models import RandomDistribution


def two_tokens(seed: int, own_row: int | None = None) -> RowDistribution:
    """A model of two tokens. own_row: the grid's width, where a cell depends on its own row alone."""
    model = RandomDistribution(2, seed=seed, sharpness=1.5)

    def distribution(seen: Seen, cell: int) -> FloatArray:
        context = [one for one in seen if own_row is None or one[0] // own_row == cell // own_row]
        return model((cell, *(number for one in context for number in one)))

    return distribution


def bias_and_steps(distribution: RowDistribution, grid: Grid, loop: ReleasedRows) -> tuple[float, float]:
    """The total variation of whole images from the model's raster order, and the mean target passes, both exact."""
    runs = enumerate_outcomes(lambda chance: decode(distribution, 2, grid, loop, chance))
    images: dict[tuple[int, ...], float] = {}
    for run, weight in runs.items():
        images[run.tokens] = images.get(run.tokens, 0.0) + weight
    exact = dict.fromkeys(product(range(2), repeat=grid.cells), 1.0)
    for image in exact:
        for cell, token in enumerate(image):
            exact[image] *= float(distribution(tuple(enumerate(image[:cell])), cell)[token])
    return total_variation(images, exact), sum(len(run.steps) * weight for run, weight in runs.items())


@pytest.mark.parametrize(
    ("seed", "grid", "loop", "tokens", "passes"),
    [
        (14, Grid(1, 6), ReleasedRows(5, 3), "100011", 5),
        (23, Grid(1, 5), ReleasedRows(3, 4), "10011", 4),
        (1, Grid(3, 4), ReleasedRows(4, 4), "010001101001", 10),
        (6, Grid(3, 4), ReleasedRows(3, 2), "101011100011", 6),
        (0, Grid(5, 5), ReleasedRows(4, 2), "0010010011100010110110100", 14),
        (4, Grid(4, 6), ReleasedRows(7, 4), "010011111010110101101011", 11),
        (26, Grid(5, 4), ReleasedRows(3, 1), "11101110001011000101", 12),
        (72, Grid(5, 6), ReleasedRows(5, 1), "110010010000000001111101101001", 15),
    ],
)
def test_images_and_passes_are_the_authors(seed: int, grid: Grid, loop: ReleasedRows, tokens: str, passes: int) -> None:
    """boyaliao/PJD, `_sample` with the model replaced by this one, guidance off, and each draw from the same uniform.

    The images and passes are those of the authors' code. The last three change with either mistake corrected.
    """
    run = decode(two_tokens(seed), 2, grid, loop, sampling(seed))
    assert ("".join(map(str, run.tokens)), len(run.steps)) == (tokens, passes)
    corrected = (ReleasedRows(loop.window, loop.lead, late, mask) for late, mask in ((False, True), (True, False)))
    if seed in (4, 26, 72):
        assert all(decode(two_tokens(seed), 2, grid, one, sampling(seed)) != run for one in corrected)


@pytest.mark.parametrize("seed", [8, 11])
def test_one_row_is_the_loop_of_one_row(seed: int) -> None:
    model = RandomDistribution(2, seed=seed, sharpness=1.5)

    def along_the_row(seen: Seen, cell: int) -> FloatArray:
        return model(tuple(token for _, token in seen))

    rows = bias_and_steps(along_the_row, Grid(1, 5), ReleasedRows(4, 5))
    assert rows == pytest.approx(bias_and_passes(model, 5, ReleasedLoop(4, "ratio", old_scores=True)), abs=1e-12)


@pytest.mark.parametrize(("seed", "bias"), [(8, 0.12515), (11, 0.08780)])
def test_pjd_judges_drafts_one_place_late_after_a_row_has_ended(seed: int, bias: float) -> None:
    """boyaliao/PJD, `_sample`: the last token of an ended row is fed once more, and its scores are cut off, but not
    the token itself: `model_input_ids` is one longer than the scores. Where rows do not depend on each other, the
    corrected loop is exact on this grid."""
    model, grid = two_tokens(seed, own_row=3), Grid(2, 3)
    assert bias_and_steps(model, grid, ReleasedRows(2, 1))[0] == pytest.approx(bias, rel=1e-3)
    assert bias_and_steps(model, grid, ReleasedRows(2, 1, judged_late=False))[0] < 1e-12


@pytest.mark.parametrize(("seed", "released", "corrected"), [(8, 0.21117, 0.18876), (11, 0.11219, 0.09771)])
def test_rows_that_depend_on_each_other_are_biased_either_way(seed: int, released: float, corrected: float) -> None:
    loops = ReleasedRows(2, 1), ReleasedRows(2, 1, judged_late=False)
    biases = [bias_and_steps(two_tokens(seed), Grid(2, 3), loop)[0] for loop in loops]
    assert biases == pytest.approx([released, corrected], rel=1e-3)


@pytest.mark.parametrize("window", [2, 3, 4])
def test_lower_rows_commit_at_most_a_window_less_one(window: int) -> None:
    """The top row commits the token behind its drafts, the rows below only their drafts; all stay behind the row
    above."""

    def sure(seen: Seen, cell: int) -> FloatArray:
        return two_tokens(0)((), 0).round()

    run = decode(sure, 2, Grid(3, 9), ReleasedRows(window, 5), sampling(3))
    counts = [0, 0, 0]
    for step in run.steps:
        above = [9, *counts[:-1]]
        top = step[0][0]
        for row, count in step:
            assert count <= window - (row != top)
            assert counts[row] + count <= above[row] - (row != top)
        for row, count in step:
            counts[row] += count
    assert counts == [9, 9, 9]
    below = [count for step in run.steps for row, count in step if row != step[0][0]]
    assert max(below) == window - 1
