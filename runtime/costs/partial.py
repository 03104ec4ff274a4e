"""Samples of an interrupted cost measurement, stored next to the curve's file so that it can resume."""

from __future__ import annotations

import json
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
    """

    path: Path | None = None
    verify: BySize = field(default_factory=dict)
    draft: BySize = field(default_factory=dict)
    rounds: list[list[CycleSamples]] = field(default_factory=list)

    @classmethod
    def of(cls, curve: Path, *, renew: bool = False) -> PartialCurve:
        """The samples of an interrupted measurement of this curve; empty if there are none or their file is damaged."""
        path = curve.with_name(curve.name + SUFFIX)
        if renew:
            path.unlink(missing_ok=True)
        try:
            stored = read_object(path)
            sizes = [
                {int(size): [PassSample(*one) for one in some] for size, some in stored[name].items()}
                for name in ("verify", "draft")
            ]
            rounds = [[CycleSamples.from_dict(burst) for burst in bursts] for bursts in stored["rounds"]]
            return cls(path, sizes[0], sizes[1], rounds)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return cls(path)

    def save(self) -> None:
        """Write the samples; stores nothing if the folder cannot be written."""
        if self.path is None:
            return
        stored = {
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
        """Delete the file once the curve is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
