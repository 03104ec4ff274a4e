"""Tensors of checkpoint files, read one at a time.

Pages of a mapping that were read count as memory of this process. So the mapping is closed and opened again while a
file is read. In addition to the tensors that are kept, loading needs only the pages of one mapping and one tensor.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

LEAST_MAPPED_BYTES: Final = 8 << 20
"""Bytes read through one mapping before it is opened again; for large files 1/64 of the file, to reopen less often."""
_PARTS: Final = 64


class TensorFile:
    """The tensors of one file. `reopen` maps the file again; it is None if `tensors` are in memory and not mapped."""

    def __init__(self, tensors: Mapping[str, Tensor], reopen: Callable[[], Mapping[str, Tensor]] | None) -> None:
        self._tensors = tensors
        self._reopen = reopen
        self._read_bytes = 0
        whole = sum(value.nbytes for value in tensors.values())
        self._most_bytes = max(LEAST_MAPPED_BYTES, whole // _PARTS)
        self.shapes = {name: tuple(value.shape) for name, value in tensors.items()}

    @torch.no_grad()
    def copy(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return a copy of a tensor, in `dtype` if it is floating; nothing else of a mapped file stays in memory."""
        source = self._tensors[name]
        kind = dtype if source.is_floating_point() else source.dtype
        if self._reopen is None or not source.is_contiguous():
            return source.to(kind, copy=True)
        copy = torch.empty(source.shape, dtype=kind)
        whole, size = copy.view(-1), source.element_size()
        del source
        start = 0
        while start < len(whole):
            stop = start + max(1, self._left() // size)
            whole[start:stop] = self._tensors[name].view(-1)[start:stop]
            self._read_bytes += size * len(whole[start:stop])
            start = stop
        return copy

    def _left(self) -> int:
        """Return the bytes that may still be read through the mapping; open a new one if it is used up."""
        if self._reopen is not None and self._read_bytes >= self._most_bytes:
            self._tensors = {}  # close the old mapping before the new one is opened
            self._tensors, self._read_bytes = self._reopen(), 0
        return self._most_bytes - self._read_bytes


class Tensors(Mapping[str, Tensor]):
    """The tensors of files by name; each access makes a new copy, and nothing is cached."""

    def __init__(self, files: tuple[TensorFile, ...], dtype: torch.dtype) -> None:
        self._place = {name: file for file in files for name in file.shapes}
        self._dtype = dtype
        self.shapes: Mapping[str, tuple[int, ...]] = {name: file.shapes[name] for name, file in self._place.items()}
        """Shapes by name, available without reading tensors."""

    def __getitem__(self, name: str) -> Tensor:
        return self._place[name].copy(name, self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, name: object) -> bool:
        return name in self._place
