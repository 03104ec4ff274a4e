"""Shows the steps of a training on standard error: a progress bar on a terminal, else one line now and then."""

import sys
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from underpaint.training.verbosity import is_verbose


class StepLog:
    """The progress of one run, or nothing if progress is not shown (`training.verbosity`)."""

    def __init__(self, title: str) -> None:
        console = Console(stderr=True)
        self.progress: Progress | None = None
        if console.is_terminal and is_verbose():
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self.progress = Progress(*columns, console=console)
            self.task = self.progress.add_task(title, total=1.0)
            self.progress.start()

    def line(self, step: int, figures: Mapping[str, float], share: float) -> None:
        """Show the figures of a step, after which `share` of the run, from 0 to 1, is over."""
        text = f"step {step} " + " ".join(f"{name} {value:.4g}" for name, value in figures.items())
        if self.progress is None:
            if is_verbose():
                print(text, file=sys.stderr, flush=True)
        else:
            self.progress.update(self.task, completed=share, description=text)

    def close(self) -> None:
        """Remove the bar."""
        if self.progress is not None:
            self.progress.stop()
