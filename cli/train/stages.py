"""Progress of work that has stages of its own: the art of the scenes, an export of several models."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from underpaint.cli.terminal import Advance, progress


@contextmanager
def stages() -> Iterator[Callable[[str, int, int, str], None]]:
    """Progress of work that tells by itself what it does, how far it is, of how much, in which unit: a bar a stage.

    A bar ends with its stage, so that what follows may show a bar of its own.
    """
    with ExitStack() as opened:
        shown: dict[str, Advance] = {}

        def told(what: str, done: int, total: int, unit: str) -> None:
            if what not in shown:
                opened.close()
                shown[what] = opened.enter_context(progress(what, total, done, unit))
            shown[what](done)
            if done >= total:
                opened.close()

        yield told
