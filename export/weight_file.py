"""Writes weights one by one to a safetensors file that ONNX graphs refer to."""

import errno
import json
import os
from collections.abc import Iterable
from os import SEEK_END
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

SUFFIX: Final = ".safetensors"
_NAMES: Final = {
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
    np.dtype(np.int64): "I64",
}
_LENGTH_BYTES: Final = 8
_ENTRY: Final = 100
"""Header bytes for a tensor's type, shape and position, without its name."""
_ALIGN: Final = 64
"""Alignment in bytes of the data and of every tensor."""


def header_room(names: Iterable[str]) -> int:
    """Maximum number of header bytes for tensors with these names, with a scale and padding for each."""
    return sum(3 * (len(name) + _ENTRY) for name in names)


class Stored(NamedTuple):
    """Position of a tensor: bytes from the beginning of the file."""

    offset: int
    length: int


class WeightStore(Protocol):
    """Storage for a graph's weights."""

    path: Path

    def takes(self, name: str) -> bool:
        """Return whether the tensor is stored in this file instead of in the graph."""
        ...

    def add(self, name: str, values: NDArray[Any]) -> Stored:
        """Write or find the tensor, and return its position."""
        ...


class WeightFile:
    """A safetensors file being written. Tensors go to disk immediately; closing writes the header that lists them.

    room: bytes reserved for the header, which must come first; see `header_room`.
    """

    def __init__(self, path: Path, room: int) -> None:
        self.path = path
        self._room = -(-room // _ALIGN) * _ALIGN
        self._stream = path.open("w+b")
        self._stream.seek(_LENGTH_BYTES + self._room)
        self._entries: dict[str, dict[str, object]] = {}
        self._places: dict[str, Stored] = {}
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        self._stream.close()

    def takes(self, name: str) -> bool:
        """Return True: this file stores every tensor (see `WeightStore`)."""
        return True

    def add(self, name: str, values: NDArray[Any]) -> Stored:
        """Write a tensor, once for all graphs that refer to it.

        Raises ValueError if the name already has other numbers, or if the format does not support the type.
        """
        array = np.ascontiguousarray(values)
        if name in self._places and self._is_written(name, array):
            return self._places[name]
        if name in self._entries or values.dtype not in _NAMES:
            raise ValueError(
                f"{self.path.name}: '{name}' is there with other numbers, or of a type {values.dtype} it cannot hold"
            )
        start = self._end
        self._note(name, _NAMES[values.dtype], list(values.shape), values.nbytes)
        try:
            array.tofile(self._stream)
        except OSError as error:  # NumPy's error of a short write has no number
            number = error.errno or errno.ENOSPC
            raise OSError(number, os.strerror(number)) from error
        gap = -self._end % _ALIGN
        if gap:  # the format allows no gaps; padding keeps the next tensor aligned
            self._note(f"_pad_{self._end}", "U8", [gap], gap)
            self._stream.write(bytes(gap))
        self._places[name] = Stored(_LENGTH_BYTES + self._room + start, values.nbytes)
        return self._places[name]

    def _is_written(self, name: str, values: NDArray[Any]) -> bool:
        """Return whether the tensor with this name equals `values` bit for bit."""
        entry, (offset, length) = self._entries[name], self._places[name]
        self._stream.seek(offset)
        same = self._stream.read(length) == values.tobytes()
        self._stream.seek(0, SEEK_END)
        return same and (entry["dtype"], entry["shape"]) == (_NAMES.get(values.dtype), list(values.shape))

    def _note(self, name: str, dtype: str, shape: list[int], length: int) -> None:
        self._entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [self._end, self._end + length]}
        self._end += length

    def _finish(self) -> None:
        header = json.dumps(self._entries, separators=(",", ":")).encode()
        if len(header) > self._room:
            raise ValueError(f"{self.path.name}: {len(header)} bytes of header do not fit into {self._room}")
        self._stream.seek(0)
        self._stream.write(self._room.to_bytes(_LENGTH_BYTES, "little") + header.ljust(self._room))
