"""Draft only where it pays: a lossless method and plain autoregression are timed, and the faster one draws on.

In a batch of many images arithmetic limits a target pass, so drafted positions cost time. From which batch size on they
cost more than they save depends on GPU, model and method (arXiv 2406.14066).
"""

from collections.abc import Callable, Iterator, Sequence

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.device.drawing import DeviceDrawer, NotDrawn
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
    report: Callable[[float, float], None] = lambda drafted, without: None,
) -> Iterator[tuple[int, Drawing | NotDrawn]]:
    """Draw pictures by `method`, or where a trial finds `plain` faster by that.

    The first `TRIAL_BATCHES` batches are drawn by `method`, as many by `plain`, and all others by the faster one.
    `Drawing.method` says which drew a picture. Programs are made one after another, so memory holds one at a time.

    Args:
        drawer: What makes the programs.
        method: A method that `check_trial` took.
        plain: Plain autoregression; None draws all by `method`.
        sampling: How the target is sampled.
        tasks: The pictures.
        watch: Is told how far the images of a batch are.
        report: Is told the seconds of a picture by `method` and by `plain`, once both are known.

    Yields:
        The picture's place among `tasks`, and what became of it, in the order of ending.
    """
    seconds = dict[str, float]()

    def part(by: DecodingMethod, first: int, end: int) -> Iterator[tuple[int, Drawing | NotDrawn]]:
        some, spent = tasks[first:end], 0.0
        program = drawer.program(by, sampling)
        if drawer.cuda:
            program.prime(some[: drawer.batch])
        for number, outcome in program.draw_all(some, watch):
            spent += outcome.seconds if isinstance(outcome, Drawing) else 0.0
            yield first + number, outcome
        seconds[by.name] = spent / len(some)

    if plain is None:
        yield from part(method, 0, len(tasks))
        return
    trial = TRIAL_BATCHES * drawer.batch
    yield from part(method, 0, trial)
    yield from part(plain, trial, 2 * trial)
    report(seconds[method.name], seconds[plain.name])
    yield from part(plain if seconds[plain.name] < seconds[method.name] else method, 2 * trial, len(tasks))
