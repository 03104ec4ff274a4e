"""Progress of work with several stages, such as making the art of the scenes or exporting several models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from underpaint.cli.terminal import Advance, progress


@contextmanager
def stages() -> Iterator[Callable[[str, int, int, str], None]]:
    """Yield a callback `(stage, done, total, unit)` that shows one progress bar per stage.

    A bar ends with its stage, so that later work may show a bar of its own.
    """
    with ExitStack() as opened:
        bars: dict[str, Advance] = {}

        def report(what: str, done: int, total: int, unit: str) -> None:
            if what not in bars:
                opened.close()
                bars[what] = opened.enter_context(progress(what, total, done, unit))
            bars[what](done)
            if done >= total:
                opened.close()

        yield report
