"""What a stopped measurement of a cost curve had taken: kept beside the curve's file, and gone on with."""

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
"""Behind the name of the curve's own file."""


@dataclass(slots=True)
class PartialCurve:
    """Samples taken so far.

    Attributes:
        path: The file; None keeps nothing.
        verify: Of target passes by size, whole rounds.
        draft: Of drafter passes by size.
        rounds: Bursts of each finished round of decoding loops, the first of which is not kept.
    """

    path: Path | None = None
    verify: BySize = field(default_factory=dict)
    draft: BySize = field(default_factory=dict)
    rounds: list[list[CycleSamples]] = field(default_factory=list)

    @classmethod
    def of(cls, curve: Path, *, renew: bool = False) -> PartialCurve:
        """What a stopped measurement of this curve left; nothing where there is none, or its file is damaged."""
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
        """Write what is there; a folder that cannot be written keeps nothing."""
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
        """Delete the file: the curve is whole."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
