"""Planted bugs in the spatial rules: each must be caught by a check that passes on the real code."""

import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from tests.mutants.harness import caught
from tests.spatial import checks
from underpaint.algos.accept.walk import excess
from underpaint.algos.arrays import BoolArray
from underpaint.algos.chance import At, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial import adaptive_window, canvas, islands, jacobi_front, mulo, neighbourhood, row_front
from underpaint.algos.spatial.canvas import Canvas
from underpaint.algos.spatial.target import Feed


def regions() -> None:
    for mask in checks.masks(40):
        checks.check_regions(mask, min(1, max(mask.shape) - 1))


def whole_islands() -> None:
    for mask in checks.masks(40):
        checks.check_islands(mask)


def fronts() -> None:
    for mask in checks.masks(40):
        checks.check_fronts(mask, min(2, mask.shape[1]))
    checks.check_whole_grid(Grid(4, 5), 2)


def repair() -> None:
    for seed, mask in enumerate(checks.masks(12)):
        for keys in ("stale", "recompute"):
            checks.check_repair(mask, checks.Repair("local", 0, "islands", keys=keys), 1, seed)
            checks.check_repair(mask, checks.Repair("local", 0, "serial", window=1, keys=keys), mask.shape[0], seed)


def jacobi() -> None:
    for seed in range(12):
        checks.check_jacobi(Grid(3, 4), checks.JacobiFronts(1, 2), seed)


def adaptive() -> None:
    for seed in range(5):
        checks.check_adaptive_distribution(seed)


def thresholds() -> None:
    for seed in range(5):
        checks.check_neutral_thresholds(Grid(2, 3), 1, None, seed)


def dense() -> None:
    checks.check_distributions_are_dense(Grid(2, 3), 0)


def keep_the_keys_of_proxies(right: Any, canvas: Canvas, *args: Any) -> Feed:
    feed: Feed = right(canvas, *args)
    canvas._fed = (np.arange(feed.cells.size), feed.cells, feed.tokens)
    return feed


def commit_again_what_is_cached(right: Any, canvas: Canvas) -> None:
    if canvas._fed is not None:
        canvas.cached[canvas._fed[1]] = False
    right(canvas)


def read_behind_drafts_of_other_rows(right: Any, canvas: Canvas, before: Any, drafts: Any, groups: Any) -> Any:
    return right(canvas, before, drafts, groups if groups is None else np.zeros_like(groups))


def see_nothing_fed_beside(right: Any, *args: Any) -> Feed:
    feed: Feed = right(*args)
    return feed._replace(visible=np.eye(feed.cells.size, dtype=np.bool_))


def count_own_rejection(right: Any, rejected: BoolArray, radius: int) -> BoolArray:
    after_t_0 = np.arange(rejected.size).reshape(rejected.shape) > np.argmax(rejected)
    return neighbourhood.expanded(rejected, radius) & after_t_0


def may_tie_with_the_row_above(right: Any, columns: Any, slant: Any) -> Any:
    reach = columns + slant
    above = np.full_like(reach, 1 << 40)
    above[..., 1:] = np.minimum.accumulate(reach, axis=-1)[..., :-1]
    return (columns < 1 << 40) & (reach <= above)


def redraw_from_another_distribution(right: Any, canvas: Canvas, *args: Any) -> Any:
    canvas.precomputed = {cell: distribution[::-1] for cell, distribution in canvas.precomputed.items()}
    return right(canvas, *args)


def accept_out_of_one(right: Any, window: Any, draft: Any, distribution: Any, node: int) -> Any:
    if window.chance.flip(float(distribution[draft.token]), At(Role.WINDOW, node)):
        return draft.token, True
    rest = excess(distribution, draft.distribution)
    return (window.chance.draw(rest, At(Role.WINDOW, node + 1)), False) if rest.any() else (draft.token, True)


def forget_the_drafted_distributions(right: Any, cells: Any, distributions: Any, drafts: Any, *args: Any) -> Any:
    for cell in cells:
        if drafts.distributions[cell].max() < 1.0:
            drafts.distributions[cell] = np.full_like(distributions[cell], 1 / distributions[cell].size)
    return right(cells, distributions, drafts, *args)


def overtake_the_row_above(right: Any, settings: Any, counts: Any, width: int) -> Any:
    ends = {row: min(int(counts[row]) + settings.window, width) for row in right(settings, counts, width)}
    return {row: range(int(counts[row]), end) for row, end in ends.items()}


MUTANTS: list[tuple[Any, str, Callable[..., Any], Callable[[], None]]] = [
    (neighbourhood, "_rejected_near", lambda right, rejected, radius: right(rejected, radius + 1), regions),
    (
        neighbourhood,
        "expanded",
        lambda right, rejected, radius: neighbourhood._rejected_near(rejected, radius) > 0,  # before t_0 too
        regions,
    ),
    (neighbourhood, "_from", lambda right, grid, first: right(grid, first + 1), regions),
    (neighbourhood, "redrawn_anyway", count_own_rejection, regions),
    (islands, "label_islands", lambda right, region: ndimage.label(region)[0] - 1, whole_islands),  # 4 for 8 neighbours
    (row_front, "_slant", lambda right, height, window: np.arange(height) * window, fronts),
    (row_front, "_may_be_decided", may_tie_with_the_row_above, fronts),
    (canvas, "Canvas._feed", keep_the_keys_of_proxies, jacobi),
    (canvas, "Canvas.keep", commit_again_what_is_cached, repair),
    (canvas, "Canvas._feed", read_behind_drafts_of_other_rows, jacobi),
    (canvas, "Canvas._feed", see_nothing_fed_beside, dense),
    (canvas, "Canvas.recompute", lambda right, canvas, cells: right(canvas, cells[2:]), repair),
    (
        mulo,
        "redrawn_anyway",
        lambda right, rejected, radius: np.ones_like(rejected),  # no residual is drawn from
        checks.check_raster_is_exact,
    ),
    (
        mulo,
        "redrawn_anyway",
        lambda right, rejected, radius: np.zeros_like(rejected),  # all rejected cells draw from the residual
        checks.check_independent_cells_are_exact,
    ),
    (mulo, "At", lambda right, role, cell: right(Role.BONUS, cell), thresholds),  # other noise than plain decoding
    (mulo, "settle", redraw_from_another_distribution, checks.check_raster_is_exact),
    (adaptive_window, "excess", lambda right, first, second: right(second, first), adaptive),
    (adaptive_window, "AdaptiveWindow._test", accept_out_of_one, adaptive),
    (jacobi_front, "_judge_row", forget_the_drafted_distributions, checks.check_one_row_of_jacobi_is_exact),
    (
        jacobi_front,
        "excess",
        lambda right, first, second: np.array(first),
        checks.check_one_row_of_jacobi_is_exact,
    ),
    (jacobi_front, "JacobiFronts.spans", overtake_the_row_above, jacobi),
    (
        jacobi_front,
        "JacobiFronts.spans",
        lambda right, settings, *args: right(replace(settings, lead=settings.lead - 1), *args),
        lambda: checks.check_jacobi(Grid(2, 4), checks.JacobiFronts(3, 4), 0),
    ),
]


def plant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, wrong: Callable[..., Any]) -> None:
    """Have `wrong` called with the right function and its arguments.

    A function of `module` is replaced wherever it was imported, and what `module` imports in this module alone.
    """
    owner, _, method = name.partition(".")
    right = getattr(module, owner)
    if method:
        original = getattr(right, method)
        monkeypatch.setattr(right, method, lambda *args: wrong(original, *args))
        return
    users = [module]
    if right.__module__ == module.__name__:
        users += [user for key, user in sys.modules.items() if key.startswith("underpaint.algos.spatial.")] + [checks]
    for user in users:
        if vars(user).get(name) is right:
            monkeypatch.setattr(user, name, lambda *args: wrong(right, *args))


@pytest.mark.parametrize(
    ("module", "name", "wrong", "check"), MUTANTS, ids=[f"{m[1]}-{i}" for i, m in enumerate(MUTANTS)]
)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    wrong: Callable[..., Any],
    check: Callable[[], None],
) -> None:
    plant(monkeypatch, module, name, wrong)
    with caught():
        check()


def test_the_checks_pass_on_the_real_code() -> None:
    for check in {id(mutant[3]): mutant[3] for mutant in MUTANTS}.values():
        check()
