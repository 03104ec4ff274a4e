"""Planted bugs in the kernels of Jacobi windows are seen."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tests.runtime.device.test_mutants import planted
from tests.runtime.device.test_windows import WINDOWS, V, method, on_device, on_host
from tests.runtime.device.windows import GRID, MOST, Pass, Seen, agrees, seen_at
from underpaint.algos.spatial.jacobi_window import JacobiWindow


def random_pass(seed: int, codes: int = V) -> Pass:
    """A window of four drafts whose pass says much the same. codes: tokens that are there, so that few stand often."""
    rng = np.random.default_rng(seed)
    accepted = seed % 3
    drawn_from = rng.dirichlet(np.ones(V), 4).astype(np.float32)
    probs = rng.dirichlet(np.ones(V), 5).astype(np.float32)
    decided, drafts = rng.integers(0, codes, 3 + seed % 4), rng.integers(0, codes, 4)
    uniforms = rng.random((2, 3, GRID.cells))
    token, decided_rows = int(rng.integers(codes)), rng.dirichlet(np.ones(V), decided.size).astype(np.float32)
    seen = tuple(
        Seen(age, cell, (token, int(rng.integers(V)))[rng.integers(2)], rng.dirichlet(np.ones(V)).astype(np.float32))
        for age, cell in seen_at(decided.size)
    )
    return Pass(tuple(decided), tuple(drafts), drawn_from, probs, accepted, token, uniforms, seed, decided_rows, seen)


@cache
def windows_agree(
    coupling: str, refill: str, lookup: tuple[bool, float] = (False, 0.0), last_row: bool = False
) -> Callable[[], bool]:
    passes, beside = lookup
    window = JacobiWindow(MOST, coupling, refill, passes=passes, beside=beside, last_row=last_row)
    window_passes = [random_pass(seed, 2 if window.looks_up else V) for seed in range(12)]
    return lambda: agrees(window, window_passes)


def decodes_agree() -> bool:
    how = method(WINDOWS["scd-maximal"], 1)
    return on_device(how, (1, 2)) == [on_host(how, 1), on_host(how, 2)]


def last_draft_rejected() -> bool:
    window = JacobiWindow(MOST, "independent", "left", last_row=True)
    return agrees(window, [random_pass(seed)._replace(accepted=3) for seed in range(12)])


PASSES, BESIDE, REFILLED = (True, 0.0), (False, 0.6), (False, 0.0)


MUTANTS = {
    "a draft is coupled by another cell's noise": (
        ("couple", "uniforms + image * 3 * U + place", "uniforms + image * 3 * U + place - done"),
        windows_agree("maximal", "left"),
    ),
    "a draft is drawn anew by the noise of its place in the window": (
        ("uniforms", "tl.load(cells + image) + lane", "lane"),
        decodes_agree,
    ),
    "a race is run by another cell's noise": (
        ("couple", "tl.load(cells + image) - done + place", "tl.load(cells + image) + place"),
        windows_agree("gumbel", "left"),
    ),
    "a draft is coupled by the distribution of another": (
        ("couple", "draft_probs + (image * W + place)", "draft_probs + (image * W + place - done)"),
        windows_agree("maximal", "left"),
    ),
    "a draft stays where its old score is the larger": (
        ("couple", "now > tl.load(confidence) * before", "before > tl.load(confidence) * now"),
        windows_agree("confidence", "left"),
    ),
    "what was kept in coupling is drawn again": (
        ("couple", "now_here - before_here", "now_here"),
        windows_agree("maximal", "left"),
    ),
    "a draft keeps its place in the window": (
        ("couple", "window.tokens + image * W + place - done", "window.tokens + image * W + place"),
        windows_agree("independent", "left"),
    ),
    "a distribution keeps its place in the window": (
        ("shift", "image * (W + 1) + place + done)", "image * (W + 1) + place)"),
        windows_agree("independent", "left"),
    ),
    "the window holds drafts that were decided": (
        ("shift", "tl.maximum(end - done, 0)", "end"),
        windows_agree("independent", "left"),
    ),
    "a new cell copies from above and left": (
        ("refill", "here - width, here - 1)", "here - width - 1, here - 1)"),
        windows_agree("independent", "above"),
    ),
    "a row's first cell copies from the end of the row above": (
        ("refill", "(KIND == ABOVE) | (here % width == 0)", "KIND == ABOVE"),
        windows_agree("independent", "left"),
    ),
    "a new cell looks past the drafts before it": (
        ("refill", "tl.where(source < cell, before, drafted)", "before"),
        windows_agree("independent", "left"),
    ),
    "a window runs over the picture's end": (
        ("layout", "tl.minimum(deepest, most - cell)", "deepest"),
        decodes_agree,
    ),
    "every image drafts by the first one's noise": (
        ("uniforms", "tl.load(images + image)", "tl.load(images)"),
        decodes_agree,
    ),
    "the oldest pass is looked up": (
        ("lookup_table", "ages * W * W + entry", "(W - ages) * W * W + entry"),
        windows_agree("maximal", "left", PASSES),
    ),
    "a pass is looked up beside any token": (
        ("lookup_table", "tl.load(seen_lefts + entry, there, other=-1) == left", "left >= 0"),
        windows_agree("maximal", "left", PASSES),
    ),
    "every image looks up the first one's passes": (
        ("look_up", "passes = image.to(tl.int64) * W * W", "passes = image.to(tl.int64) * 0"),
        windows_agree("maximal", "left", PASSES),
    ),
    "a draft is looked up beside the token that stood there": (
        (
            "look_up",
            "tl.load(window.tokens + image * W + lane - 1, inside",
            "tl.load(tree.tokens + image * N + done + lane, inside",
        ),
        windows_agree("maximal", "left", PASSES),
    ),
    "what was looked up is drafted from, and the last pass's kept": (
        ("shift", "if note > 0:", "if note > 99:"),
        windows_agree("independent", "left", PASSES),
    ),
    "every image looks up the first one's cells": (
        ("look_up", "table.decided + (image.to(tl.int64) * most + source)", "table.decided + source"),
        windows_agree("independent", "above", BESIDE),
    ),
    "what is found beside comes on top": (
        ("shift", "(1.0 - weight) / row_sum", "1.0 / row_sum"),
        windows_agree("independent", "above", BESIDE),
    ),
    "a row's first cell looks to the end of the row above": (
        ("refill_lookup", "tl.where(column > 0, before, -1)", "before"),
        windows_agree("independent", "lookup", REFILLED),
    ),
    "a cell is looked up by its left token alone": (
        ("lookup_table", "tl.where(below, _BOTH, _LEFT)", "_LEFT"),
        windows_agree("independent", "lookup", REFILLED),
    ),
    "a new cell looks up what was said of the first": (
        ("refill_lookup", "said = image.to(tl.int64) * most + source", "said = image.to(tl.int64) * most"),
        windows_agree("independent", "lookup", REFILLED),
    ),
    "what was said of a cell is kept as of the one before": (
        ("lookup_table", "table.decided + (image * most + cell) * V", "table.decided + (image * most + cell - 1) * V"),
        windows_agree("independent", "lookup", REFILLED),
    ),
    "a pass is kept behind the token of its own cell": (
        ("lookup_table", "tl.load(tree.tokens + node, here", "tl.load(tree.tokens + node + 1, here"),
        windows_agree("maximal", "left", PASSES),
    ),
    "it is not drafted where the last draft is the rejected one": (
        ("window", "done <= last", "done < last"),
        last_draft_rejected,
    ),
    "a random token counts as a uniform draw": (
        (
            "refill",
            "if KIND == EVENLY:\n                share",
            "if (KIND == EVENLY) | (KIND == RANDOM):\n                share",
        ),
        windows_agree("independent", "random"),
    ),
    "the first cell behind the window is not drafted": (
        ("window", "if LAST:", "if LAST == 2:"),
        windows_agree("independent", "left", last_row=True),
    ),
}


@cache
def unchanged(agree: Callable[[], bool]) -> bool:
    """What it says of the kernels as they are."""
    return agree()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    change, agree = MUTANTS[name]
    assert unchanged(agree)
    with planted(*change):
        assert not agree()
