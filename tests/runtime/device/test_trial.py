"""A trial of drafting: every picture is drawn once, and what the trial found faster draws those behind it."""

import weakref
from collections.abc import Iterator, Sequence
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition
from underpaint.runtime.device.drawing import DeviceDrawer, NotDrawn
from underpaint.runtime.device.trial import DraftTrial, draw_by_faster
from underpaint.runtime.drawing import TRIAL_BATCHES, Drawing, ImageTask, check_trial
from underpaint.runtime.models import OpenModels

BATCH = 3
TRIAL = TRIAL_BATCHES * BATCH
DRAFTS: Any = SimpleNamespace(name="eagle2", lossless=True, drafts=True)
PLAIN: Any = SimpleNamespace(name="ar", lossless=True, drafts=False)
TASKS = [ImageTask(Condition(str(place)), place) for place in range(2 * TRIAL + 5)]


class Program:
    """Draws the last picture of a batch first; pictures of the first seed end with an error, or all of them."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self.name, self.seconds = name, seconds
        self.primed = list[int]()

    def prime(self, tasks: Sequence[ImageTask]) -> None:
        self.primed = [one.seed for one in tasks]

    def draw_all(self, tasks: Sequence[ImageTask], watch: Any) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        for number in reversed(range(len(tasks))):
            if tasks[number].seed == 0 or self.seconds is None:
                yield number, NotDrawn("NaN")
            else:
                seed = tasks[number].seed
                yield number, Drawing(self.name, "", seed, (1,), None, None, 1, 0, self.seconds, 0.0, 0.0)


class Drawer(DeviceDrawer):
    """Makes programs, one at a time."""

    def __init__(self, device: str = "cpu", **seconds: float | None) -> None:
        models: Any = SimpleNamespace(device=torch.device(device))
        super().__init__(cast(OpenModels, None), models, BATCH)
        self.seconds, self.made, self.alive = seconds, list[str](), weakref.WeakSet[Program]()
        self.captured_on = list[list[int]]()

    def program(self, method: Any, sampling: SamplingParams) -> Program:
        assert not self.alive, "the memory of two programs at once is more than was checked"
        program = Program(method.name, self.seconds[method.name])
        self.alive.add(program)
        self.made.append(method.name)
        return program


def drawn(drawer: Any, plain: Any) -> tuple[list[str | None], list[tuple[float, float, str]]]:
    """The method that drew each picture, None where it ended with an error, and what was reported."""
    reports = list[tuple[float, float, str]]()
    by: dict[int, str | None] = {}
    for place, outcome in draw_by_faster(
        drawer, DRAFTS, plain, SamplingParams(), TASKS, None, lambda *times: reports.append(times)
    ):
        assert place not in by
        by[place] = outcome.method if isinstance(outcome, Drawing) else None
        assert not isinstance(outcome, Drawing) or outcome.seed == place
        if drawer.cuda:
            drawer.captured_on += [program.primed for program in drawer.alive]
    return [by[place] for place in range(len(TASKS))], reports


@pytest.mark.parametrize(("drafted", "faster"), [(0.5, "eagle2"), (1.0, "eagle2"), (1.5, "ar")])
def test_the_faster_draws_on(drafted: float, faster: str) -> None:
    drawer = Drawer(eagle2=drafted, ar=1.0)
    by, reports = drawn(drawer, PLAIN)
    assert by == [None, *["eagle2"] * (TRIAL - 1), *["ar"] * TRIAL, *[faster] * (len(TASKS) - 2 * TRIAL)]
    assert reports == [(drafted, 1.0, faster)]
    assert drawer.made == ["eagle2", "ar", *["eagle2"] * (faster == "eagle2")], "what plain decoding needs is there"


def test_a_method_all_of_whose_pictures_fail_is_not_the_faster_one() -> None:
    drawer = Drawer(eagle2=None, ar=1.0)
    by, reports = drawn(drawer, PLAIN)
    assert reports == [(inf, 1.0, "ar")]
    assert by == [*[None] * TRIAL, *["ar"] * (len(TASKS) - TRIAL)]


def test_on_a_gpu_no_picture_is_charged_for_the_capture() -> None:
    drawer = Drawer("cuda", eagle2=0.5, ar=1.0)
    drawn(drawer, PLAIN)
    starts = [0] * TRIAL + [TRIAL] * TRIAL + [2 * TRIAL] * (len(TASKS) - 2 * TRIAL)
    assert drawer.captured_on == [[*range(start, start + BATCH)] for start in starts]


def test_without_plain_autoregression_nothing_is_tried() -> None:
    drawer = Drawer(eagle2=9.0)
    by, reports = drawn(drawer, None)
    assert set(by) == {None, "eagle2"}
    assert not reports
    assert drawer.made == ["eagle2"]


@pytest.mark.parametrize(("drafted", "drafts"), [(0.5, True), (1.0, True), (1.5, False)])
def test_a_trial_with_arriving_pictures_chooses_the_faster(drafted: float, drafts: bool) -> None:
    trial = DraftTrial("eagle2", 3)
    chosen, running = list[bool](), list[bool]()
    for _ in range(8):  # with two pictures at once
        chosen.append(trial.drafts)
        trial.begin(chosen[-1])
        running.append(chosen[-1])
        if len(running) == 2:
            first = running.pop(0)
            trial.add(first, drafted if first else 1.0)
    assert chosen == [True] * 3 + [False] * 4 + [drafts], "plain pictures until both have ended all of theirs"
    assert trial.ended
    assert trial.means == (drafted, 1.0)
    trial.add(drafts, 99.0)
    assert trial.drafts is drafts, "later pictures change nothing"


def test_a_picture_that_is_dropped_is_tried_again_and_one_that_fails_is_not() -> None:
    trial = DraftTrial("eagle2", 1)
    trial.begin(True)
    assert not trial.drafts
    trial.drop(True)
    assert trial.drafts
    trial.begin(True)
    trial.add(True, None)
    assert not trial.drafts
    trial.add(False, 9.0)
    assert trial.means == (inf, 9.0)
    assert not trial.drafts, "a method all of whose pictures fail is not the faster one"


@pytest.mark.parametrize(
    ("method", "pictures", "message"),
    [
        (SimpleNamespace(name="lantern", lossless=False, drafts=True), 99, "expected a lossless method that drafts"),
        (PLAIN, 99, "expected a lossless method that drafts, got 'ar'"),
        (DRAFTS, 2 * TRIAL, r"expected at least 13 pictures in batches of 3"),
    ],
)
def test_what_no_trial_can_be_made_of_is_refused(method: Any, pictures: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_trial(method, BATCH, pictures)
    check_trial(DRAFTS, BATCH, 2 * TRIAL + 1)
