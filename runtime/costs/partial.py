"""Samples of an interrupted cost measurement, stored next to the curve's file so that it can resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from underpaint.artifacts.files import check_file_writable
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.strict_json import read_object
from underpaint.runtime.costs.passes import BySize, PassSample
from underpaint.runtime.costs.samples import CycleSamples

SUFFIX: Final = ".part"
"""Suffix added to the name of the curve's file."""


@dataclass(slots=True)
class PartialCurve:
    """Samples taken so far.

    Attributes:
        path: The file; None stores nothing.
        verify: Samples of target passes by size, in whole rounds.
        draft: Samples of drafter passes by size.
        rounds: Bursts of each finished round of decoding loops, without the warm-up round.
        loops: Their families, in order.
    """

    path: Path | None = None
    verify: BySize = field(default_factory=dict)
    draft: BySize = field(default_factory=dict)
    rounds: list[list[CycleSamples]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, curve: Path, loops: Sequence[str], *, renew: bool = False) -> PartialCurve:
        """The samples of an interrupted measurement of this curve with these loops.

        Empty with `renew`, if there are none, or if their file is damaged or has other loops.
        """
        path = curve.with_name(curve.name + SUFFIX)
        empty = cls(path, loops=list(loops))
        if renew:
            empty.forget()
            return empty
        try:
            stored = read_object(path)
            if stored["loops"] != empty.loops:
                return empty
            sizes = [
                {int(size): [PassSample(*one) for one in some] for size, some in stored[name].items()}
                for name in ("verify", "draft")
            ]
            rounds = [[CycleSamples.from_dict(burst) for burst in bursts] for bursts in stored["rounds"]]
            return cls(path, sizes[0], sizes[1], rounds, empty.loops)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return empty

    def save(self) -> None:
        """Write the samples; stores nothing if the folder cannot be written."""
        if self.path is None:
            return
        stored = {
            "loops": self.loops,
            "verify": self.verify,
            "draft": self.draft,
            "rounds": [[burst.to_dict() for burst in bursts] for bursts in self.rounds],
        }
        try:
            check_file_writable(self.path)
            write_beside(self.path, (json.dumps(stored) + "\n").encode())
        except OSError:
            self.path = None

    def forget(self) -> None:
        """Delete the file, if the folder can be written."""
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
