"""Tensors of checkpoint files, read one at a time.

What is mapped and has been read counts as this process's memory, so a mapping is let go and made again as reading
goes on: beside the tensors that are kept, a mapping's worth of pages and one tensor are all that loading needs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

LEAST_MAPPED_BYTES: Final = 8 << 20
"""Read through one mapping of a file before it is made again; of a large file a 64th, or it would be opened often."""
_PARTS: Final = 64


class TensorFile:
    """One file. `reopen` maps it anew, or is None where `tensors` are in memory and not mapped."""

    def __init__(self, tensors: Mapping[str, Tensor], reopen: Callable[[], Mapping[str, Tensor]] | None) -> None:
        self._tensors = tensors
        self._reopen = reopen
        self._read_bytes = 0
        whole = sum(value.nbytes for value in tensors.values())
        self._most_bytes = max(LEAST_MAPPED_BYTES, whole // _PARTS)
        self.shapes = {name: tuple(value.shape) for name, value in tensors.items()}

    @torch.no_grad()
    def copy(self, name: str, dtype: torch.dtype) -> Tensor:
        """An own copy of a tensor, of `dtype` where it is floating; of a mapped file nothing else stays in memory."""
        found = self._tensors[name]
        kind = dtype if found.is_floating_point() else found.dtype
        if self._reopen is None or not found.is_contiguous():
            return found.to(kind, copy=True)
        made = torch.empty(found.shape, dtype=kind)
        whole, size = made.view(-1), found.element_size()
        del found
        start = 0
        while start < len(whole):
            stop = start + max(1, self._left() // size)
            whole[start:stop] = self._tensors[name].view(-1)[start:stop]
            self._read_bytes += size * len(whole[start:stop])
            start = stop
        return made

    def _left(self) -> int:
        """Bytes that may still be read through this mapping, or through a new one where it has served."""
        if self._reopen is not None and self._read_bytes >= self._most_bytes:
            self._tensors = {}  # the old mapping goes before the new one comes
            self._tensors, self._read_bytes = self._reopen(), 0
        return self._most_bytes - self._read_bytes


class Tensors(Mapping[str, Tensor]):
    """Tensors of files by name, each an own copy made when it is asked for and kept by nobody here."""

    def __init__(self, files: tuple[TensorFile, ...], dtype: torch.dtype) -> None:
        self._place = {name: file for file in files for name in file.shapes}
        self._dtype = dtype
        self.shapes: Mapping[str, tuple[int, ...]] = {name: file.shapes[name] for name, file in self._place.items()}
        """Shapes by name, which cost no reading."""

    def __getitem__(self, name: str) -> Tensor:
        return self._place[name].copy(name, self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, name: object) -> bool:
        return name in self._place
