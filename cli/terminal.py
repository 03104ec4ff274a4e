"""Tables on the terminal, or plain text of a fixed width where there is none."""

from rich import box
from rich.console import Console
from rich.table import Table

PLAIN_WIDTH = 190
"""Columns where there is no terminal to ask."""


def console() -> Console:
    """Standard output."""
    found = Console()
    return found if found.is_terminal else Console(width=PLAIN_WIDTH)


def table(title: str) -> Table:
    """A light table."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
