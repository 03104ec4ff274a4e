"""Weights in one safetensors file, written as they come, which ONNX graphs point into."""

import json
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
"""Bytes that the header takes for a tensor, its name aside: its type, shape and place."""
_ALIGN: Final = 64
"""Where the data begins, and the least that a tensor's bytes are filled up to."""


def header_room(names: Iterable[str]) -> int:
    """Bytes of header that tensors of these names need at most, with a scale and padding for each."""
    return sum(3 * (len(name) + _ENTRY) for name in names)


class Stored(NamedTuple):
    """Where a tensor lies: bytes from the beginning of the file."""

    offset: int
    length: int


class WeightStore(Protocol):
    """Where a graph's weights lie."""

    path: Path

    def takes(self, name: str) -> bool:
        """Whether the tensor lies in this file, and not in the graph."""
        ...

    def add(self, name: str, values: NDArray[Any]) -> Stored:
        """Where the tensor lies, written or found."""
        ...


class WeightFile:
    """A safetensors file under construction. Tensors go to disk at once; the header, which lists them, when it closes.

    room: bytes kept free for the header, which has to stand first; see `header_room`.
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
        """See `WeightStore`: every tensor."""
        return True

    def add(self, name: str, values: NDArray[Any]) -> Stored:
        """Write a tensor, once for all graphs that point at it.

        Raises ValueError on a name that is there with other numbers, or a type that the format has no word for.
        """
        held = np.ascontiguousarray(values)
        if name in self._places and self._is_written(name, held):
            return self._places[name]
        if name in self._entries or values.dtype not in _NAMES:
            raise ValueError(
                f"{self.path.name}: '{name}' is there with other numbers, or of a type {values.dtype} it cannot hold"
            )
        start = self._end
        self._note(name, _NAMES[values.dtype], list(values.shape), values.nbytes)
        held.tofile(self._stream)
        gap = -self._end % _ALIGN
        if gap:  # the format allows no holes; a small tensor keeps the next one aligned
            self._note(f"_pad_{self._end}", "U8", [gap], gap)
            self._stream.write(bytes(gap))
        self._places[name] = Stored(_LENGTH_BYTES + self._room + start, values.nbytes)
        return self._places[name]

    def _is_written(self, name: str, values: NDArray[Any]) -> bool:
        """Whether the tensor of this name is `values` to the last bit."""
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
