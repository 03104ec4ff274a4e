"""Jacobi windows on the device: each kernel is the reference's, and whole decodes are the host's, token for token."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.tables import TableForward, TableHost, Tables
from tests.runtime.device.test_mutants import planted
from tests.runtime.device.windows import GRID as PASSES_GRID
from tests.runtime.device.windows import MOST, Pass, agrees, passes
from underpaint.algos.accept import RULES
from underpaint.algos.chance import Philox, Role, sampling
from underpaint.algos.coupling import noise_of
from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import jacobi_decode
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.spatial.lookup import Lookup
from underpaint.runtime.device.cycle import DeviceCycle, DeviceMethod
from underpaint.runtime.device.kernels.cell_uniforms import cell_uniforms
from underpaint.runtime.device.window_growth import COUPLINGS, REFILLS

GRID, V, SEED = Grid(2, 3), 5, 5
TABLES = Tables(1, V, rows=2)
WINDOWS = {
    "sjd": JacobiWindow(3, "independent", "above"),
    "scd-maximal": JacobiWindow(4, "maximal", "left"),
    "scd-gumbel": JacobiWindow(3, "gumbel", "uniform"),
}


class Drawn(NamedTuple):
    """Tokens by cell, and the number of drafts by cycle."""

    tokens: list[int]
    drafts: list[int]


def method(window: JacobiWindow, temperature: float, rule: str = "chain") -> DeviceMethod:
    sampler = SamplingParams(guidance=2.0, temperature=temperature)
    return DeviceMethod(None, RULES[rule].make(), sampler, window=window)


def on_device(how: DeviceMethod, images: Sequence[int]) -> list[Drawn]:
    """Every image, all in one batch."""
    target = TableForward(TABLES, False)
    cycle = DeviceCycle(target, None, how, GRID, 1, len(images), torch.device("cpu"))
    first = torch.tensor([[image % V] for image in images])
    cycle.begin(target.embed(first), torch.full((len(images),), SEED), torch.tensor(images))
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    assert cycle.state.verdicts.status.tolist() == [1] * len(images)
    progress, found = cycle.state.progress, []
    for place, count in enumerate(progress.cycles.tolist()):
        found.append(Drawn(progress.decided[place].tolist(), progress.history[place, :count, 2].tolist()))
    return found


@cache
def on_host(how: DeviceMethod, image: int) -> Drawn:
    """One image alone."""
    assert how.window is not None
    target, chance = TableHost(TABLES, GRID, how.sampler, False, image % V), sampling(SEED, image)
    noise = noise_of(chance) if how.window.coupling == "gumbel" else None
    made = jacobi_decode(target, how.rule, chance, how.window, noise)
    return Drawn(made.tokens.tolist(), [cycle.tree.size - 1 for cycle in made.cycles])


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_batch_of_unequal_progress_is_the_reference_s_single_decodes(name: str, temperature: float) -> None:
    how = method(WINDOWS[name], temperature)
    wanted = {image: on_host(how, image) for image in (0, 1, 2, 6)}
    images = (2, 6, 0, 1) if name == "scd-maximal" else (0, 1, 2)
    assert on_device(how, images) == [wanted[image] for image in images]
    if temperature:
        assert len({len(drawn.drafts) for drawn in wanted.values()}) > 1


@settings(max_examples=3)
@given(data=st.data())
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("refill", REFILLS)
def test_a_window_is_drafted_anew_as_the_reference_does(coupling: str, refill: str, data: st.DataObject) -> None:
    vocab_size = data.draw(st.sampled_from([2, 3, 5]))
    assert agrees(JacobiWindow(MOST, coupling, refill), [data.draw(passes(vocab_size)) for _ in range(3)])


def test_uniforms_of_cells_are_the_reference_s_bit_for_bit() -> None:
    keys = ((7, 5, 0, 1), (2**40, 9, 1000, 62), (2**62, 2**33, 3, 131))
    columns = (torch.tensor(column, dtype=torch.int64) for column in zip(*keys, strict=True))
    out = torch.zeros(3, 2, 5, dtype=torch.float64)
    cell_uniforms(out, *columns, torch.tensor([Role.DRAFT, Role.COUPLE]))
    for place, (seed, image, cycle, first) in enumerate(keys):
        for turn, role in enumerate((Role.DRAFT, Role.COUPLE)):
            wanted = Philox(seed, image).uniforms(cycle, role, first + 5)[first:]
            np.testing.assert_array_equal(out[place, turn], wanted)


def random_pass(seed: int) -> Pass:
    """A window of four drafts whose pass says much the same."""
    rng = np.random.default_rng(seed)
    accepted = seed % 3
    drawn_from = rng.dirichlet(np.ones(V), 4).astype(np.float32)
    probs = rng.dirichlet(np.ones(V), 5).astype(np.float32)
    decided, drafts = rng.integers(0, V, 2 + seed % 3), rng.integers(0, V, 4)
    uniforms = rng.random((2, 3, PASSES_GRID.cells))
    return Pass(tuple(decided), tuple(drafts), drawn_from, probs, accepted, int(rng.integers(V)), uniforms, seed)


@cache
def windows_agree(coupling: str, refill: str) -> Callable[[], bool]:
    made = [random_pass(seed) for seed in range(12)]
    return lambda: agrees(JacobiWindow(MOST, coupling, refill), made)


def decodes_agree() -> bool:
    how = method(WINDOWS["scd-maximal"], 1)
    return on_device(how, (1, 2)) == [on_host(how, 1), on_host(how, 2)]


MUTANTS = {
    "a draft is coupled by another cell's noise": (
        ("couple", "uniforms + image * 3 * W + place", "uniforms + image * 3 * W + place - done"),
        windows_agree("maximal", "left"),
    ),
    "a draft is drawn anew by the noise of its place in the window": (
        ("cell_uniforms", "tl.load(cells + image) + lane", "lane"),
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
    "what was kept in coupling is drawn again": (
        ("couple", "now_here - before_here", "now_here"),
        windows_agree("maximal", "left"),
    ),
    "a draft keeps its place in the window": (
        ("couple", "held + image * W + place - done", "held + image * W + place"),
        windows_agree("independent", "left"),
    ),
    "a distribution keeps its place in the window": (
        ("shift", "(image * N + place + done)", "(image * N + place)"),
        windows_agree("independent", "left"),
    ),
    "the window holds drafts that were decided": (
        ("shift", "tl.maximum(last - done, 0)", "last"),
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
    "a token is accepted behind a rejected one": (
        ("walk_drawn", "child = tl.load(sibling + tree + child)", "child = tl.load(first + tree + child)"),
        decodes_agree,
    ),
    "a window runs over the picture's end": (
        ("layout", "tl.minimum(deepest, most - cell)", "deepest"),
        decodes_agree,
    ),
    "every image drafts by the first one's noise": (
        ("cell_uniforms", "tl.load(images + image)", "tl.load(images)"),
        decodes_agree,
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


@pytest.mark.parametrize(
    ("window", "rule", "told"),
    [
        (JacobiWindow(4, "maximal", "lookup"), "chain", "refill 'lookup' has no form on the device; those that have"),
        (JacobiWindow(4, candidates=2), "without_replacement", "2 candidates a cell has no form on the device"),
        (JacobiWindow(4, lookup=Lookup(passes=True)), "chain", "looks up what the target said before has no form"),
        (JacobiWindow(64), "chain", "passes of 65 positions, the device's hold 64; set window=63 or less"),
        (JacobiWindow(4, "maximal"), "block", "looks at the drafts behind a token before it decides"),
        (JacobiWindow(4), "point", "does not judge drawn tokens"),
    ],
)
def test_a_window_without_a_form_is_refused(window: JacobiWindow, rule: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DeviceCycle(TableForward(TABLES, False), None, method(window, 1, rule), GRID, 1, 1, torch.device("cpu"))
