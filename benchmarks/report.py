"""What every benchmark does alike: bad arguments end it with code 2, and figures end it with one JSON line."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from underpaint.artifacts.files import check_file_writable
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.results import results_text
from underpaint.runtime.evaluation.machine import describe_machine, typed_command


def options(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the argument parser of `python -m benchmarks.NAME`, with --out."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `least`, for an option."""

    def read_number(text: str) -> int:
        number = int(text) if text.lstrip("-").isdecimal() else None
        if number is None or number < least:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least}, got {text!r}")
        return number

    return read_number


@contextmanager
def refusing(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Turn a ValueError or OSError about the arguments into one line and exit code 2; no work belongs inside."""
    try:
        yield
    except (ValueError, OSError) as error:
        parser.error(str(error))


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments (None: those of this process), and check --out before any work."""
    args = parser.parse_args(arguments)
    if args.out is not None:
        with refusing(parser):
            check_file_writable(args.out)
    return args


def finish(figures: Mapping[str, Any], out: Path | None) -> None:
    """Print the figures with machine and command as the last line, and write the whole record to `out`."""
    record = {**figures, "machine": describe_machine(), "command": typed_command()}
    if out is not None:
        write_beside(out, results_text(record).encode())
    print(json.dumps(record))
