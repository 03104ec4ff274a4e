"""The command line. Ctrl-C while its modules are being imported prints one line instead of a traceback."""

import os
import sys
from types import TracebackType

STOPPED = 130
"""The exit code after Ctrl-C, as in shells."""
STOPPED_LINE = "stopped: nothing of what was not finished is kept"


def _end_on_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print one line if Ctrl-C ended the program, and pass all other errors to Python's own hook."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stdout.flush()
    sys.stderr.write(f"{STOPPED_LINE}\n")
    sys.stderr.flush()
    os._exit(STOPPED)  # otherwise Python would end the process by a signal


sys.excepthook = _end_on_interrupt
