"""Reads arrays from disk: NumPy's .npz and .npy files, and the header of safetensors files.

Readers declare the form of each array with an `ArrayForm`; an array of another form is refused before it is used.
"""

from __future__ import annotations

import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from underpaint.artifacts.files import check_regular
from underpaint.artifacts.strict_json import parse_json

MOST_BYTES: Final = 1 << 34
"""Largest size of all arrays of one .npz file, unpacked."""
_KINDS: Final = {"whole": "iu", "real": "fiu", "text": "U"}
_UNREADABLE: Final = (
    *(ValueError, KeyError, TypeError, EOFError, OverflowError, SyntaxError, MemoryError, Warning, NotImplementedError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""Errors that NumPy and zipfile raise for damaged files."""
_SIZES: Final = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""Bytes of one number, by its type in safetensors files."""


class ArrayError(ValueError):
    """A file of arrays that is damaged, or lacks what its reader needs."""


@dataclass(frozen=True, slots=True)
class ArrayForm:
    """The required form of an array.

    Numbers must always be finite.

    Attributes:
        kind: "whole" numbers, "real" numbers (including whole ones) or one "text".
        dimensions: Number of dimensions; None allows any number.
        low: Smallest allowed number.
        high: Largest allowed number.
    """

    kind: Literal["whole", "real", "text"] = "real"
    dimensions: int | None = None
    low: float = -np.inf
    high: float = np.inf

    def checked(self, array: NDArray[Any], name: str) -> NDArray[Any]:
        """Return `array`; raises ArrayError, with its name and the fault, if it does not have this form."""
        if array.dtype.kind not in _KINDS[self.kind]:
            raise ArrayError(f"{name}: expected {self.kind} numbers, got {array.dtype}".replace("text numbers", "text"))
        if self.dimensions is not None and array.ndim != self.dimensions:
            raise ArrayError(f"{name}: expected {self.dimensions} dimensions, got shape {array.shape}")
        if self.kind == "text" or not array.size:
            return array
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ArrayError(f"{name}: expected finite numbers, got NaN or infinity")
        least, most = array.min().item(), array.max().item()
        if least < self.low or most > self.high:
            raise ArrayError(
                f"{name}: expected {self.low:g} to {self.high:g}, got {least if least < self.low else most}"
            )
        return array


TEXT: Final = ArrayForm("text", 0)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Turn NumPy's warnings about a header into errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class ArrayFile:
    """An open .npz file; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raises ArrayError if it is no .npz file, OSError if it cannot be read."""
        check_regular(path)
        self._path = path
        try:
            with zipfile.ZipFile(path) as listed:
                members = listed.infolist()
            names = [member.filename for member in members]
            if len(set(names)) < len(names):
                raise ArrayError("an array stands twice in it")
            self.nbytes = sum(member.file_size for member in members)
            """Bytes of all arrays, unpacked."""
            if self.nbytes > MOST_BYTES:
                raise ArrayError(f"its arrays take more than {MOST_BYTES >> 30} GiB")
            self._arrays = np.load(path, allow_pickle=False)
            if not isinstance(self._arrays, np.lib.npyio.NpzFile):
                raise ArrayError("it holds one array")
        except _UNREADABLE as error:
            raise ArrayError(f"no .npz file of NumPy's: {error}") from error

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._arrays.close()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays.files

    def read(self, name: str, form: ArrayForm) -> NDArray[Any]:
        """Read one array; raises ArrayError if it is missing, damaged, or not of its form."""
        if name not in self:
            raise ArrayError(f"there is no array '{name}' in it")
        try:
            with _no_warnings():
                array = self._arrays[name]
        except (OSError, *_UNREADABLE) as error:
            raise ArrayError(f"{name}: {error}") from error
        if not isinstance(array, np.ndarray):
            raise ArrayError(f"{name}: expected an array of NumPy's")
        return form.checked(array, name)

    def read_json(self, name: str) -> Any:
        """The value of an array that holds one JSON text; raises ArrayError as `read`, JsonError if it is not JSON."""
        return parse_json(str(self.read(name, TEXT)), name)


def read_npy(path: Path, form: ArrayForm) -> NDArray[Any]:
    """Read an .npy file; raises ArrayError if it is none or not of its form, OSError if it cannot be read."""
    check_regular(path)
    try:
        with _no_warnings():
            array = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        raise ArrayError(f"no .npy file of NumPy's: {error}") from error
    if not isinstance(array, np.ndarray):
        raise ArrayError("expected an .npy file of NumPy's, got an .npz one")
    return form.checked(array, "the array")


def read_tensor_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Read the entries of a safetensors file by tensor, and the offset of the first tensor's bytes.

    Raises ArrayError if the header is not JSON, or a tensor is outside the file or does not have its shape's size.
    Raises OSError if the file cannot be read.
    """
    check_regular(path)
    size = path.stat().st_size
    with path.open("rb") as stream:
        room = int.from_bytes(stream.read(8), "little")
        if size < 8 or room > size - 8:
            raise ArrayError(f"expected a safetensors file, got {size} bytes without a whole header; it is cut short")
        header = parse_json(stream.read(room), "header")
    if not isinstance(header, dict):
        raise ArrayError("expected a safetensors file, got a header that is no object")
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    for name, entry in entries.items():
        _check_entry(name, entry, size - 8 - room)
    return entries, 8 + room


def _check_entry(name: str, entry: Any, room: int) -> None:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ArrayError(f"{name}: expected dtype, shape and data_offsets")
    shape, offsets, kind = entry["shape"], entry["data_offsets"], entry["dtype"]
    whole = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if not all(type(one) is int and one >= 0 for one in whole) or len(offsets) != 2:
        raise ArrayError(f"{name}: expected a shape and two offsets in whole numbers from 0 on")
    if not isinstance(kind, str) or kind not in _SIZES:
        raise ArrayError(f"{name}: expected a dtype of {', '.join(_SIZES)}, got {kind!r}")
    if not offsets[0] <= offsets[1] <= room or offsets[1] - offsets[0] != prod(shape) * _SIZES[kind]:
        raise ArrayError(f"{name}: its shape {shape} does not fit its bytes {offsets} of {room}; it is cut short")
