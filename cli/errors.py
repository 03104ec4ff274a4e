"""Bad input: one message on standard error, exit code 2, before any work."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

BAD_INPUT = 2
STOPPED = 130
"""The exit code after Ctrl-C, as shells count it."""


@contextmanager
def bad_input() -> Iterator[None]:
    """Turn a ValueError or an OSError of validation into its message and exit code 2.

    Nothing but validation belongs inside: an error in the work itself is a bug, and keeps its traceback.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from error
