"""Drafting only where it pays: time a lossless method and plain autoregression, then draw with the faster one.

In a batch of many images arithmetic limits a target pass, so draft tokens cost time. The batch size at which they cost
more than they save depends on GPU, model and method (arXiv 2406.14066).
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from statistics import fmean

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.drawing import BatchProgram, DeviceDrawer, NotDrawn
from underpaint.runtime.device.runner import Watch
from underpaint.runtime.drawing import TRIAL_BATCHES, Drawing, ImageTask
from underpaint.runtime.methods.method import DecodingMethod


def trial_result(method: str, drafted: float, undrafted: float, faster: str) -> str:
    """Describe the result of a trial: seconds per picture by `method` and by plain autoregression, and the faster."""
    times = f"{drafted:.3f} s per picture by {method}, {undrafted:.3f} s by plain autoregression"
    return f"{times}: the other pictures are drawn by {faster}"


class DraftTrial:
    """A trial with pictures that arrive at any time.

    The first pictures are drafted, as many are drawn by plain autoregression, and all others by the faster one.
    """

    def __init__(self, method: str, pictures: int) -> None:
        """Start a trial.

        Args:
            method: Name of the drafting method.
            pictures: Number of pictures that each of the two draws in the trial.
        """
        self.method, self._pictures = method, pictures
        self._begun = 0
        self._seconds: dict[bool, list[float | None]] = {True: [], False: []}

    @property
    def ended(self) -> bool:
        """Whether both have drawn their pictures."""
        return all(len(one) == self._pictures for one in self._seconds.values())

    @property
    def means(self) -> tuple[float, float]:
        """Seconds per picture with and without drafts; infinite if all such pictures ended with an error."""
        drafted, undrafted = (
            fmean([one for one in self._seconds[drafts] if one is not None] or [inf]) for drafts in (True, False)
        )
        return drafted, undrafted

    @property
    def drafts(self) -> bool:
        """Whether the next picture is drafted."""
        if self.ended:
            drafted, undrafted = self.means
            return drafted <= undrafted
        return self._begun < self._pictures

    def begin(self, drafts: bool) -> None:
        """Count a picture that is begun with or without drafts."""
        self._begun += drafts

    def drop(self, drafts: bool) -> None:
        """Forget a picture that will not be finished."""
        self._begun -= drafts

    def add(self, drafts: bool, seconds: float | None) -> None:
        """Add the seconds of a picture that ended; None if it ended with an error. Later pictures change nothing."""
        if len(self._seconds[drafts]) < self._pictures:
            self._seconds[drafts].append(seconds)


def draw_by_faster(
    drawer: DeviceDrawer,
    method: DecodingMethod,
    plain: DecodingMethod | None,
    sampling: SamplingParams,
    tasks: Sequence[ImageTask],
    watch: Watch | None = None,
    report: Callable[[float, float, str], None] = lambda drafted, undrafted, faster: None,
) -> Iterator[tuple[int, Drawing | NotDrawn]]:
    """Draw pictures by `method`, or by `plain` if a trial finds it faster.

    The first `TRIAL_BATCHES` batches are drawn by `method`, as many by `plain`, and all others by the faster one.
    `Drawing.method` names the one that drew a picture. Memory holds one program at a time.

    Args:
        drawer: Makes the programs.
        method: A method that `check_trial` accepts.
        plain: Plain autoregression; None draws all pictures by `method`.
        sampling: How the target is sampled.
        tasks: The pictures.
        watch: Callback: the decided cells of each image in the batch.
        report: Callback after the trial: seconds per picture by `method` and by `plain`, and the name of the faster
            one. A method whose trial pictures all ended with an error takes infinitely long.

    Yields:
        The picture's index in `tasks` and its outcome, in the order of ending.
    """

    def part(program: BatchProgram, first: int, end: int) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        for number, outcome in program.draw_all(tasks[first:end], watch):
            if isinstance(outcome, Drawing):
                seconds.append(outcome.seconds)
            yield first + number, outcome

    seconds, program = list[float](), drawer.primed(method, sampling, tasks)
    if plain is None:
        yield from part(program, 0, len(tasks))
        return
    trial = TRIAL_BATCHES * drawer.batch
    yield from part(program, 0, trial)
    drafted, seconds = fmean(seconds or [inf]), []
    del program
    program = drawer.primed(plain, sampling, tasks[trial:])
    yield from part(program, trial, 2 * trial)
    undrafted = fmean(seconds or [inf])
    faster = plain if undrafted < drafted else method
    report(drafted, undrafted, faster.name)
    if faster is method:
        del program
        program = drawer.primed(method, sampling, tasks[2 * trial :])
    yield from part(program, 2 * trial, len(tasks))
