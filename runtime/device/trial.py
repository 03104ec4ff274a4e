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
