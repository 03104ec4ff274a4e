"""Jacobi windows on the device: each kernel is the reference's, and whole decodes are the host's, token for token."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.tables import TableForward, TableHost, Tables
from tests.runtime.device.windows import MOST, Pass, agrees, by_device, passes
from underpaint.algos.accept import RULES
from underpaint.algos.chance import Philox, Role, sampling
from underpaint.algos.coupling import noise_of
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import jacobi_decode
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.device.kernels import couple
from underpaint.runtime.device.kernels.uniforms import cell_uniforms
from underpaint.runtime.methods.windows.device import WindowForm
from underpaint.runtime.methods.windows.growth import COUPLINGS, REFILLS, lookup_rows, window_plan

GRID, V, SEED = Grid(2, 3), 5, 5
TABLES = Tables(1, V, rows=2)
WINDOWS = {
    "sjd": JacobiWindow(3, "independent", "above"),
    "scd-maximal": JacobiWindow(4, "maximal", "left"),
    "scd-gumbel": JacobiWindow(3, "gumbel", "uniform"),
    "lookup": JacobiWindow(4, "maximal", "lookup", passes=True, beside=0.85, last_row=True),
}


class Drawn(NamedTuple):
    """Tokens by cell, and the number of drafts by cycle."""

    tokens: list[int]
    drafts: list[int]


def method(window: JacobiWindow, temperature: float, rule: str = "chain") -> WindowForm:
    sampler = SamplingParams(guidance=2.0, temperature=temperature)
    return WindowForm(RULES[rule].make(), sampler, window=window)


def on_device(how: WindowForm, images: Sequence[int]) -> list[Drawn]:
    """Every image, all in one batch."""
    target = TableForward(TABLES, False)
    cycle = DeviceCycle(target, None, how, GRID, 1, len(images), torch.device("cpu"))
    first = torch.tensor([[image % V] for image in images])
    cycle.begin(target.embed(first), torch.full((len(images),), SEED), torch.tensor(images))
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    assert cycle.state.verdicts.status.tolist() == [1] * len(images)
    progress, results = cycle.state.progress, []
    for place, count in enumerate(progress.cycles.tolist()):
        results.append(Drawn(progress.decided[place].tolist(), progress.history[place, :count, 2].tolist()))
    return results


@cache
def on_host(how: WindowForm, image: int) -> Drawn:
    """One image alone."""
    assert how.window is not None
    target, chance = TableHost(TABLES, GRID, how.sampler, False, image % V), sampling(SEED, image)
    noise = noise_of(chance) if how.window.coupling == "gumbel" else None
    decoded = jacobi_decode(target, how.rule, chance, how.window, noise)
    return Drawn(decoded.tokens.tolist(), [cycle.tree.size - 1 for cycle in decoded.cycles])


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_batch_of_unequal_progress_is_the_reference_s_single_decodes(name: str, temperature: float) -> None:
    how = method(WINDOWS[name], temperature)
    expected = {image: on_host(how, image) for image in (0, 1, 2, 6)}
    images = (2, 6, 0, 1) if name == "scd-maximal" else (0, 1, 2)
    assert on_device(how, images) == [expected[image] for image in images]
    if temperature:
        assert len({len(result.drafts) for result in expected.values()}) > 1


@settings(max_examples=10)
@given(one=passes(3))
def test_drafts_alone_are_compared_with_their_old_scores(one: Pass) -> None:
    """The first cell behind a whole window has none: they would be read behind the last row."""
    compared, right = list[Any](), couple.is_confident

    def counted(*row: Any) -> Any:
        compared.append(row)
        return right(*row)

    with patch.object(couple, "is_confident", counted):
        by_device(JacobiWindow(MOST, "confidence", "left", last_row=True), [one])
    assert len(compared) == max(0, len(one.drafts) - one.accepted - 1)


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
            expected = Philox(seed, image).uniforms(cycle, role, first + 5)[first:]
            np.testing.assert_array_equal(out[place, turn], expected)


LOOKUPS = {
    "refill": ("lookup", {}, False),
    "passes": ("left", {"passes": True}, False),
    "beside": ("above", {"beside": 0.75}, False),
    "last row": ("uniform", {}, True),
    "all": ("lookup", {"passes": True, "beside": 0.85}, True),
}


@settings(max_examples=3)
@given(data=st.data())
@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize("looked", LOOKUPS)
def test_what_was_said_before_is_looked_up_as_the_reference_does(
    looked: str, coupling: str, data: st.DataObject
) -> None:
    refill, lookup, last_row = LOOKUPS[looked]
    vocab_size = data.draw(st.sampled_from([2, 3]))
    window = JacobiWindow(MOST, coupling, refill, **lookup, last_row=last_row)
    assert agrees(window, [data.draw(passes(vocab_size)) for _ in range(2)])


def test_the_tables_of_a_lookup_are_bounded_and_counted() -> None:
    """LlamaGen's shape at 512 px: 64 MiB of decided cells, 12.25 of passes, 520 KiB of parts that are drawn from."""
    window = JacobiWindow(14, "maximal", "lookup", passes=True, beside=0.85, last_row=True)
    plan = window_plan(window, RULES["chain"].make(), Grid(32, 32), 16384, 64)
    assert plan.image_bytes == 64 * 2**20 + 12.25 * 2**20 + 520 * 2**10
    assert lookup_rows(window, 14, 1024) == (1024, 14 * 14)
    assert lookup_rows(JacobiWindow(14, last_row=True), 14, 1024) == (0, 0)


@pytest.mark.parametrize(
    ("window", "rule", "told"),
    [
        (JacobiWindow(62, candidates=3), "without_replacement", "passes of 65 positions, .* set window=61 or less"),
        (JacobiWindow(64), "chain", "passes of 65 positions, the device's hold 64; set window=63 or less"),
        (JacobiWindow(4, "maximal"), "block", "looks at the drafts behind a token before it decides"),
        (JacobiWindow(4), "point", "does not judge drawn tokens"),
    ],
)
def test_a_window_without_a_form_is_refused(window: JacobiWindow, rule: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        DeviceCycle(TableForward(TABLES, False), None, method(window, 1, rule), GRID, 1, 1, torch.device("cpu"))
