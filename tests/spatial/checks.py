"""What must hold of the spatial rules on one case each; driven by Hypothesis, and by fixed cases against mutants."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy import ndimage

from tests.grid_model import FixedRows, GridWeights, SyntheticGridTarget, dense_distributions, image_distribution
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role, enumerate_outcomes, sampling
from underpaint.algos.enumeration import total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.adaptive_window import AdaptiveWindow
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.cell_rule import PooledCells, TreeRuleOnCells
from underpaint.algos.spatial.islands import island_fronts, label_islands
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_fronts
from underpaint.algos.spatial.mulo import Repair, RepairDecoded, draft_and_repair
from underpaint.algos.spatial.neighbourhood import after_first, expanded, redrawn_anyway
from underpaint.algos.spatial.row_front import Fronts, RowFront, front_steps, schedule
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import GridDecoded, raster, zipar
from underpaint.algos.tree import NO_TOKEN

EXACT = 1e-12


def masks(count: int) -> Iterator[BoolArray]:
    """Random masks of many shapes and densities."""
    draws = np.random.default_rng(7)
    for _ in range(count):
        shape = (int(draws.integers(1, 6)), int(draws.integers(1, 7)))
        yield draws.random(shape) < draws.choice([0.15, 0.4, 0.8])


def distance(first: tuple[int, int], second: tuple[int, int]) -> int:
    return max(abs(first[0] - second[0]), abs(first[1] - second[1]))


def check_regions(rejected: BoolArray, radius: int) -> None:
    """Eq. 6 and 7 by their words, cell by cell."""
    grid = Grid(*rejected.shape)
    cells = [(row, column) for row in range(grid.height) for column in range(grid.width)]
    refused = [cell for cell in cells if rejected[cell]]
    near = {cell for cell in cells for other in refused if distance(cell, other) <= radius and cell >= refused[0]}
    region = expanded(rejected, radius)
    assert {cell for cell in cells if region[cell]} == near
    after = after_first(rejected)
    assert [cell for cell in cells if after[cell]] == [cell for cell in cells if refused and cell >= refused[0]]
    anyway = redrawn_anyway(rejected, radius)
    for cell in cells:
        without = rejected.copy()
        without[cell] = False
        assert anyway[cell] == expanded(without, radius)[cell] or not rejected[cell]
    assert not np.any(anyway & ~region)


def check_islands(region: BoolArray) -> None:
    """The islands are the 8-connected pieces, in raster order of their first cells; none touches another."""
    labels = label_islands(region)
    expected, count = ndimage.label(region, structure=np.ones((3, 3)))
    np.testing.assert_array_equal(labels, expected - 1)
    firsts = [int(np.argmax(labels.reshape(-1) == island)) for island in range(count)]
    assert firsts == sorted(firsts)
    width = region.shape[1]
    steps = schedule(island_fronts(labels, width))
    assert sorted(cell for step in steps for cell in step.tolist()) == np.flatnonzero(region).tolist()
    assert len(steps) == max((int((labels == island).sum()) for island in range(count)), default=0)
    for step in steps:  # one an island, all that are left of it later
        islands = labels.reshape(-1)[step]
        assert len(set(islands.tolist())) == islands.size


def check_fronts(region: BoolArray, window: int) -> None:
    """Each cell once, and never before the cells it may depend on."""
    width = region.shape[1]
    decided: set[int] = set()
    steps = schedule([RowFront.over(region, window)])
    for step in steps:
        assert step.size
        for cell in step.tolist():
            row, column = divmod(cell, width)
            for other in np.flatnonzero(region).tolist():
                above = row - other // width
                if above > 0 and other % width <= column + above * (window - 1):
                    assert other in decided
                if above == 0 and other < cell:
                    assert other in decided
        assert decided.isdisjoint(step.tolist())
        decided |= set(step.tolist())
    assert decided == set(np.flatnonzero(region).tolist())
    _check_side_by_side(region, window, steps)
    if window == width:
        assert [step.tolist() for step in steps] == [[cell] for cell in np.flatnonzero(region).tolist()]


def _check_side_by_side(region: BoolArray, window: int, alone: tuple[IntArray, ...]) -> None:
    """Fronts reckoned together are ready when each is by itself: as one region, and as islands."""
    for fronts, expected in (
        ([RowFront.over(region, window)], alone),
        (island_fronts(label_islands(region), window), schedule(island_fronts(label_islands(region), window))),
    ):
        if not fronts:
            continue
        going, steps = Fronts(fronts), []
        while (ready := going.ready()).cells.size:
            assert all(fronts[front].region.reshape(-1)[cell] for cell, front in zip(*ready, strict=True))
            going.decide(ready)
            steps.append(ready.cells.tolist())
        assert steps == [step.tolist() for step in expected]
        assert all(front.done for front in going.fronts)


def check_whole_grid(grid: Grid, window: int) -> None:
    """The schedule, its closed form and its number of steps agree."""
    steps = schedule([RowFront.over(np.ones(grid, dtype=np.bool_), window)])
    assert len(steps) == front_steps(grid, window) == grid.width + (grid.height - 1) * window
    step_of = (np.arange(grid.height)[:, None] * window + np.arange(grid.width)).reshape(-1)
    for index, cells in enumerate(steps):
        np.testing.assert_array_equal(cells, np.flatnonzero(step_of == index))


class Watched:
    """A `SyntheticGridTarget` that checks what enters its cache."""

    def __init__(self, weights: GridWeights) -> None:
        self.inner = SyntheticGridTarget(weights)
        self.vocab_size, self.grid = self.inner.vocab_size, self.inner.grid
        self.committed: dict[int, list[int]] = {}
        self.feeds: list[Feed] = []

    def begin(self) -> FloatArray:
        self.committed, self.feeds = {}, []
        return self.inner.begin()

    def score(self, feed: Feed) -> FloatArray:
        self.feeds.append(feed)
        return self.inner.score(feed)

    def commit(self, rows: IntArray) -> None:
        """A key that enters the cache was computed in sight of its left neighbour: proxies are not."""
        feed = self.feeds[-1]
        for row in rows.tolist():
            cell = int(feed.cells[row])
            seen = set(feed.cells[feed.visible[row]].tolist()) | set(np.flatnonzero(feed.cached[row]))
            assert cell % self.grid.width == 0 or cell - 1 in seen
            self.committed.setdefault(cell, []).append(int(feed.tokens[row]))
        self.inner.commit(rows)


@dataclass
class Chosen:
    """A cell rule whose verdicts are given; it keeps the distributions that it was shown."""

    refused: BoolArray
    distributions: dict[int, FloatArray] = field(default_factory=dict)

    def judge(
        self,
        cells: IntArray,
        tokens: IntArray,
        draft_distributions: FloatArray | None,
        distributions: FloatArray,
        chance: Chance,
    ) -> Iterator[bool]:
        for cell, distribution in zip(cells.tolist(), distributions, strict=True):
            assert cell not in self.distributions
            self.distributions[cell] = distribution
            yield not self.refused.reshape(-1)[cell]

    def residual(
        self, cell: int, token: int, draft_distribution: FloatArray | None, distribution: FloatArray
    ) -> FloatArray:
        assert self.refused.reshape(-1)[cell]
        return distribution


def check_repair(refused: BoolArray, repair: Repair, rows: int, seed: int) -> None:
    """What repair may and may not touch, the order it goes in, and what the cache is given."""
    grid = Grid(*refused.shape)
    weights = GridWeights.random(grid, 3, seed)
    target, rule = Watched(weights), Chosen(refused)
    drafter = FixedRows(np.full((grid.cells, 3), 1 / 3), grid.width)
    done = draft_and_repair(target, drafter, rule, repair, rows, sampling(seed))
    assert np.all(done.tokens != NO_TOKEN)
    decided: set[int] = set()
    for cycle in done.cycles:
        image, draft, region = (part.reshape(-1) for part in (cycle.tokens, cycle.draft, cycle.region))
        inside = np.arange(cycle.rows.start * grid.width, cycle.rows.stop * grid.width)
        _check_region(cycle.rejected, cycle.region, repair, inside)
        kept_cells = inside[~region[inside]]
        np.testing.assert_array_equal(image[kept_cells], draft[kept_cells])
        np.testing.assert_array_equal(done.tokens[: inside[-1] + 1], image[: inside[-1] + 1])
        redrawn = [cell for step in cycle.steps for cell in step]
        assert sorted(redrawn) == np.flatnonzero(region).tolist()
        assert decided.isdisjoint(inside.tolist())
        decided |= set(inside.tolist())
        np.testing.assert_array_equal(cycle.islands >= 0, cycle.region)
        if not repair.adaptive:
            fronts = island_fronts(cycle.islands, repair.front_window(grid))
            assert [list(step) for step in cycle.steps] == [step.tolist() for step in schedule(fronts)]
    if repair.keys == "stale":
        assert all(len(tokens) == 1 for tokens in target.committed.values())
    for cell, tokens in target.committed.items():
        assert tokens == [done.tokens[cell]] * len(tokens)
    _check_verified_distributions(weights, done, rule, repair)


def _check_region(rejected: BoolArray, region: BoolArray, repair: Repair, inside: IntArray) -> None:
    expected = after_first(rejected) if repair.reject == "raster" else expanded(rejected, repair.radius)
    within = np.zeros(rejected.size, dtype=np.bool_)
    within[inside] = True
    np.testing.assert_array_equal(region, expected & within.reshape(rejected.shape))
    if repair.reject == "raster":
        assert rejected.sum() <= 1


def _check_verified_distributions(weights: GridWeights, done: RepairDecoded, rule: Chosen, repair: Repair) -> None:
    """Under recomputed keys, verification sees what one dense pass over the committed image and the draft sees."""
    if repair.keys == "stale":
        return
    before = np.zeros(done.tokens.size, dtype=np.int64)
    for cycle in done.cycles:
        start, stop = (row * weights.grid.width for row in (cycle.rows.start, cycle.rows.stop))
        context = before.copy()
        context[start:stop] = cycle.draft.reshape(-1)[start:stop]
        dense = dense_distributions(weights, context)
        for cell in range(start, stop):
            if cell in rule.distributions:
                np.testing.assert_allclose(rule.distributions[cell], dense[cell], atol=EXACT)
        before[start:stop] = done.tokens[start:stop]


def check_jacobi(grid: Grid, settings: JacobiFronts, seed: int) -> None:
    """Rows never run ahead of the rows above, open in time, and the uppermost open one always advances."""
    target = Watched(GridWeights.random(grid, 3, seed))
    done = jacobi_fronts(target, settings, sampling(seed))
    counts = np.zeros(grid.height, dtype=np.int64)
    for step in done.steps:
        before = counts.copy()
        for cell in step:
            row, column = divmod(cell, grid.width)
            assert column == counts[row]
            counts[row] += 1
            above = before[row - 1] if row else grid.width
            assert counts[row] <= above
            assert above >= settings.lead
            assert counts[row] - before[row] <= settings.window
        top = int(np.argmax(before < grid.width))
        assert counts[top] > before[top]
    assert np.all(counts == grid.width)
    _check_proxies(target.feeds, done, grid)
    assert all(tokens == [done.tokens[cell]] for cell, tokens in target.committed.items())


def _check_proxies(feeds: list[Feed], done: GridDecoded, grid: Grid) -> None:
    """Where the row above is unfinished, its last decided token stands in for its last cell."""
    unfed = len(done.steps) - len(feeds)  # cell 0 alone needs no pass
    decided = {cell for step in done.steps[:unfed] for cell in step}
    for feed, step in zip(feeds, done.steps[unfed:], strict=True):
        for cell, token in zip(feed.cells.tolist(), feed.tokens.tolist(), strict=True):
            if cell % grid.width == grid.width - 1 and cell not in decided:
                assert token == done.tokens[max(other for other in decided if other < cell)]
        decided |= set(step)


def draft_rows(grid: Grid, seed: int, coupling: float, decode: object, vocab_size: int = 2) -> float:
    """The exact total variation of a decoding, `decode(target, chance)`, to the target's distribution."""
    weights = GridWeights.random(grid, vocab_size, seed, coupling)
    target = SyntheticGridTarget(weights)
    outcomes = enumerate_outcomes(lambda chance: tuple(decode(target, chance).tokens.tolist()))  # type: ignore[operator]
    assert abs(sum(outcomes.values()) - 1.0) < EXACT
    return total_variation(outcomes, image_distribution(weights))


def repaired(repair: Repair, grid: Grid, rows: int, rule: str = "chain", vocab_size: int = 2, seed: int = 0) -> object:
    """A decoding under an exact rule, from random draft distributions with a zero in them."""
    distributions = np.random.default_rng(seed).dirichlet(np.ones(vocab_size), grid.cells)
    distributions[-1] = np.eye(vocab_size)[0]
    spec = RULES[rule]
    drafter = FixedRows(distributions, grid.width, points="iid" not in spec.drawn)
    cell_rule = TreeRuleOnCells(spec.make())
    return lambda target, chance: draft_and_repair(target, drafter, cell_rule, repair, rows, chance)


def check_raster_is_exact() -> None:
    for order in ("serial", "islands"):
        repair = Repair("raster", 0, order, keys="stale")
        assert draft_rows(Grid(1, 3), 1, 1.5, repaired(repair, Grid(1, 3), 1, vocab_size=3), vocab_size=3) < EXACT
        assert draft_rows(Grid(3, 1), 2, 1.5, repaired(repair, Grid(3, 1), 2)) < EXACT


def check_independent_cells_are_exact() -> None:
    """Where no cell minds another, local repair under an exact rule is exact at every radius."""
    for radius in (0, 1):
        for order in ("serial", "islands"):
            decode = repaired(Repair("local", radius, order), Grid(1, 3), 1)
            assert draft_rows(Grid(1, 3), 3, 0.0, decode) < EXACT


def check_one_row_of_jacobi_is_exact() -> None:
    for settings in (JacobiFronts(1, 3), JacobiFronts(3, 2, refill="left")):
        decode = lambda target, chance, settings=settings: jacobi_fronts(target, settings, chance)  # noqa: E731
        assert draft_rows(Grid(1, 3), 4, 1.5, decode) < EXACT


def adaptive_distribution(distributions: list[FloatArray]) -> FloatArray:
    """The distribution of an adaptive row start through its windows' distributions p_1 .. p_n, as the module states
    it."""
    waiting, distribution = distributions[0], np.zeros_like(distributions[0])
    for before, now in pairwise(distributions):
        passed = waiting * np.minimum(1.0, now / before)
        owed = np.maximum(now - before, 0.0)
        distribution += passed
        waiting = (waiting.sum() - passed.sum()) * owed / max(owed.sum(), 1e-300)
    return distribution + waiting


def check_adaptive_distribution(seed: int) -> None:
    distributions = list(np.random.default_rng(seed).dirichlet(np.ones(3), 3))
    front = RowFront.over(np.ones((2, 3), dtype=np.bool_), 1)

    def program(chance: Chance) -> int:
        choose, here = AdaptiveWindow(chance), front.after([0])
        for cell, distribution in zip((1, 2, None), distributions, strict=True):
            token = choose(here, 3, distribution)
            if token is not None:
                return token
            assert cell is not None
            here = here.after([cell])
        raise AssertionError("held back beyond the end of the row above")

    outcomes = enumerate_outcomes(program)
    np.testing.assert_allclose(
        [outcomes.get(token, 0.0) for token in range(3)], adaptive_distribution(distributions), atol=EXACT
    )


def check_neutral_thresholds(grid: Grid, rows: int, window: int | None, seed: int) -> None:
    """tau above 1 with serial repair is plain autoregression under the same noise; tau = 0 is the draft."""
    weights = GridWeights.random(grid, 4, seed)
    alone = np.empty((4, 0), dtype=np.int64)
    drafter = FixedRows(np.full((grid.cells, 4), 0.25), grid.width)
    serial = Repair("local", 0, "serial")
    nothing = draft_and_repair(
        SyntheticGridTarget(weights), drafter, PooledCells(alone, 1.5), serial, rows, sampling(seed)
    )
    plain = raster(SyntheticGridTarget(weights), sampling(seed))
    np.testing.assert_array_equal(nothing.tokens, plain.tokens)
    every = draft_and_repair(
        SyntheticGridTarget(weights),
        drafter,
        PooledCells(alone, 0.0),
        Repair(radius=0, window=window),
        rows,
        sampling(seed),
    )
    noise = sampling(seed)
    drafted = [noise.draw(drafter.distributions[cell], At(Role.DRAFT, cell)) for cell in range(grid.cells)]
    np.testing.assert_array_equal(every.tokens, drafted)
    assert len(every.passes) <= 1 + len(every.cycles)


def check_distributions_are_dense(grid: Grid, seed: int) -> None:
    """Plain decoding reads, cell by cell, the distributions of one dense pass over the finished image."""
    weights = GridWeights.random(grid, 3, seed)
    tokens = raster(SyntheticGridTarget(weights), sampling(seed)).tokens
    dense = dense_distributions(weights, tokens)
    canvas = Canvas.begin(SyntheticGridTarget(weights))
    for cell, token in enumerate(tokens.tolist()):
        np.testing.assert_allclose(canvas.distributions(np.array([cell]))[0], dense[cell], atol=EXACT)
        canvas.put(cell, token)
    if grid.height > 1:
        resumed = Canvas.begin(SyntheticGridTarget(weights), tokens[: grid.width]).distributions(np.array([grid.width]))
        np.testing.assert_allclose(resumed[0], dense[grid.width], atol=EXACT)
    follow = zipar(SyntheticGridTarget(weights), grid.width, sampling(seed), prefix=tokens[: grid.width])
    np.testing.assert_array_equal(follow.tokens, tokens)
