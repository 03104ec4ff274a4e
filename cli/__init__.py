"""The command line. Ctrl-C while its modules are still being imported ends in one line too, not in a traceback."""

import os
import sys
from types import TracebackType

STOPPED = 130
"""The exit code after Ctrl-C, as shells count it."""
STOPPED_LINE = "stopped: nothing of what was not finished is kept"


def _end_on_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in one line that Ctrl-C ended the program; all other errors are shown as Python shows them."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stdout.flush()
    sys.stderr.write(f"{STOPPED_LINE}\n")
    sys.stderr.flush()
    os._exit(STOPPED)  # an interrupt that reaches the top would end as death by a signal


sys.excepthook = _end_on_interrupt
