"""`roofline` on the device: what it chooses, drafts and decides is the host's, token for token."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.runtime.device.chosen import (
    COSTS,
    FORK,
    GRID,
    NEAR,
    SEED,
    TABLES,
    WINDOW,
    InTurn,
    V,
    method,
    on_device,
    on_host,
)
from tests.runtime.device.tables import TableForward
from tests.runtime.device.test_mutants import planted
from underpaint.algos.draft.choice import NOTHING, Choice
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.runtime.device.chosen_growth import ChosenGrowth
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.device.kernels.lookup_table import LookupBuffers, keep
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.methods.trees.device import TreeForm

W4, W3, W1, CHAIN = Choice("window", 4), Choice("window", 3), Choice("window", 1), Choice("chain", 2)
FORKED, LINE = Choice("drawn", shape=FORK), Choice("drawn", shape=(-1, 0, 1))
ARMS = {
    "windows": (W4, W1, W3, NOTHING),
    "chains": (W4, CHAIN, W1, CHAIN),
    "siblings": (W4, FORKED, W3, LINE),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "windows": {"windows": 2, "least_window": 1, "second_look": 2, "siblings": 0},
    "siblings": {"windows": 0, "siblings": 2, "max_depth": 2},
    "all": {"windows": 2, "least_window": 2, "second_look": 1, "siblings": 2, "max_depth": 2},
}


def in_turn(arms: str, temperature: float, with_replacement: bool = False) -> TreeForm:
    policy = InTurn(**COSTS, max_depth=2, siblings=2, with_replacement=with_replacement, arms=ARMS[arms])
    return method(policy, temperature)


def choosing(settings: str, temperature: float, window: JacobiWindow = WINDOW) -> TreeForm:
    return method(Roofline(**COSTS, **SETTINGS[settings]), temperature, window)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("arms", ARMS)
def test_what_is_drafted_in_turn_is_decided_as_on_the_host(arms: str, temperature: float) -> None:
    if temperature == 0 and arms == "siblings":
        pytest.skip("nothing is drawn at temperature 0")
    how = in_turn(arms, temperature)
    assert on_device(how, 1) == on_host(how, 1)


def test_independent_siblings_may_be_equal() -> None:
    """Where each is drawn without those before it, this image has other drafts."""
    how = in_turn("siblings", 1, with_replacement=True)
    assert on_device(how, 4) == on_host(how, 4)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("settings", SETTINGS)
def test_roofline_chooses_and_draws_what_it_does_on_the_host(settings: str, temperature: float) -> None:
    how = choosing(settings, temperature)
    actual = on_device(how, 2)
    assert actual == on_host(how, 2)
    assert len(set(actual.drafted)) > 1


def test_a_race_keeps_its_noise_beside_other_trees() -> None:
    how = choosing("windows", 1, JacobiWindow(4, "gumbel", "left"))
    assert on_device(how, 3) == on_host(how, 3)


def agree(arms: str, temperature: float = 1) -> Callable[[], bool]:
    return lambda: all(
        on_device(in_turn(arms, temperature), image) == on_host(in_turn(arms, temperature), image)
        for image in (1, 3, 7)
    )


def keeps_the_path() -> bool:
    """Whether cells 2 and 3 keep what the target said at nodes 0 and 2, which were accepted."""
    none, wide = torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 6, dtype=torch.float64)
    table = LookupBuffers(
        torch.zeros(1, 6, 3), wide, none, torch.zeros(1, 1), none, none, none[:, :2], wide[0, :1],
        passes=False, beside=True, last_row=False, refills=False,
    )  # fmt: skip
    rows = torch.arange(1.0, 13.0).view(1, 4, 3)
    tree = BatchTree(none, none, none, none, none, none, rows, rows, none, none)
    verdicts = Verdicts(torch.tensor([[2, 0, 0, 0]]), torch.tensor([2]), none, none, none)
    keep(table, None, tree, verdicts, none, Progress(none + 4, none, none, none, none, none, wide, none))
    return table.decided[0].tolist() == [*[[0.0] * 3] * 2, *rows[0, [0, 2]].tolist(), *[[0.0] * 3] * 2]


def test_what_was_said_of_an_accepted_path_is_kept() -> None:
    assert keeps_the_path()


MUTANTS = {
    "a draft behind a shorter pass keeps its place": (
        ("shift", "window.tokens + image * W + lane - done, token", "window.tokens + image * W + lane, token"),
        agree("windows"),
    ),
    "its distribution keeps its place": (("shift", "row - done * V + code", "row + code"), agree("windows")),
    "drafts behind a shorter pass are forgotten": (
        ("shift", " + tl.maximum(filled - first, 0)", ""),
        agree("windows"),
    ),
    "what was said of accepted siblings is that of the first nodes": (
        (
            "lookup_table",
            "own = tl.load(verdicts.path + image * N + place - 1",
            "own = place + 0 * tl.load(verdicts.path",
        ),
        keeps_the_path,
    ),
    "the first token is the likeliest": (
        ("probs", "one_hot(token, ", "one_hot(0, "),
        agree("windows", 0),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    change, seen = MUTANTS[name]
    with planted(*change):
        assert not seen()


def test_a_choice_from_the_verdict_before_the_last_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    take, queue = ChosenGrowth.take, list[Tensor]()

    def late(growth: ChosenGrowth, numbers: Tensor) -> None:
        queue.append(numbers)
        if len(queue) > 1:
            take(growth, queue.pop(0))

    monkeypatch.setattr(ChosenGrowth, "take", late)
    seen = False
    for image in (1, 2, 3):
        queue.clear()
        seen = seen or on_device(choosing("siblings", 1), image) != on_host(choosing("siblings", 1), image)
    assert seen


@pytest.mark.parametrize(
    ("settings", "batch", "told"),
    [
        ({"trees": True}, 1, "no form with trees of likeliest tokens, .* use trees=false"),
        ({}, 2, "batches of 1 image, as each chooses a program of its own, got 2; use --batch 1"),
    ],
)
def test_what_has_no_form_is_refused(settings: dict[str, Any], batch: int, told: str) -> None:
    how = method(Roofline(**{**COSTS, **settings}), 1)
    target, drafter = TableForward(TABLES, False), TableForward(NEAR, True)
    with pytest.raises(ValueError, match=told):
        DeviceCycle(target, drafter, how, GRID, 1, batch, torch.device("cpu"))


def test_a_second_image_starts_anew_and_passes_are_counted() -> None:
    runner = DeviceRunner(
        TableForward(TABLES, False), TableForward(NEAR, True), choosing("all", 1), GRID, 1, 1, torch.device("cpu")
    )
    image_tokens = []
    for image in (1, 2):
        runner.begin(TableForward(TABLES, False).embed(torch.tensor([[image % V]])), [SEED], [image])
        (decoded,) = runner.finish(1)
        assert decoded.error is None
        assert decoded.passes is not None
        assert decoded.passes >= decoded.cycles - 1
        image_tokens.append(decoded.tokens.tolist())
    assert image_tokens == [on_host(choosing("all", 1), image).tokens for image in (1, 2)]
