"""Figures of compiled kernels on disk, so that only new kernels and a sample of the others have to be compiled."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

SAMPLE: Final = 16
"""Entries of a record that are compiled again and compared. A record of other kernels has another sample."""
COMMAND: Final = "python -m tools.compile_ahead --record"


def digest(*parts: Any) -> str:
    """Return a short hash of values by their `repr`."""
    return sha256(repr(parts).encode()).hexdigest()[:12]


class KernelRecord:
    """Figures by key, from a file that one compiler's figures are written to.

    Attributes:
        recorded: The file's figures; empty if there is no file, or another compiler gave them.
        sample: Keys of those that are compiled again.
    """

    def __init__(self, path: Path, compiler: str) -> None:
        """Read a record.

        Raises:
            RuntimeError: The file was edited.
        """
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self._path, self._compiler = path, compiler
        self._used: dict[str, list[int]] = {}
        self.recorded: dict[str, list[int]] = record["figures"] if record.get("compiler") == compiler else {}
        if self.recorded and record.get("digest") != digest(self.recorded):
            raise RuntimeError(f"{path.name} was edited; delete it and run {COMMAND}")
        seed = digest(*self.recorded)
        self.sample = frozenset(sorted(self.recorded, key=lambda key: digest(seed, key))[:SAMPLE])

    def figures(self, key: str, compute: Callable[[], list[int]]) -> list[int]:
        """Return the figures of a key, computed if the file lacks them, and compared if the key is in the sample.

        Raises:
            RuntimeError: Computing gives other figures than the file has.
        """
        if key not in self._used:
            recorded = self.recorded.get(key)
            figures = compute() if recorded is None or key in self.sample else recorded
            if recorded not in (None, figures):
                raise RuntimeError(
                    f"{self._path.name}: expected {recorded} for {key}, the compiler gave {figures}; delete the file "
                    f"and run {COMMAND}"
                )
            self._used[key] = figures
        return self._used[key]

    def missing(self) -> str:
        """Say how many of the figures asked for the file lacks; empty if none, or if another compiler wrote it."""
        missing = self._used.keys() - self.recorded.keys()
        if not self.recorded or not missing:
            return ""
        return f"{self._path.name} lacks {len(missing)} of {len(self._used)} kernels; to record them, run {COMMAND}"

    def write(self) -> None:
        """Write the figures that were asked for, in the order of their keys; all others are dropped."""
        figures = dict(sorted(self._used.items()))
        head = f'{{"compiler": {json.dumps(self._compiler)}, "digest": {json.dumps(digest(figures))}, "figures": {{\n'
        lines = [f"{json.dumps(key)}: {value}" for key, value in figures.items()]
        self._path.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
