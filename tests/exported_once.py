"""torch's exporter, once a run for equal modules: it takes ten seconds a graph, and workers share what it gave.

What it gives depends on what it is given alone: the module's classes, settings and numbers, the example, the names and
the free dimensions. All of them are the key, so another of any is exported anew.
"""

import fcntl
import hashlib
import io
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn

from tests.made_once import run_folder
from underpaint.export import modules, samplers, vision

Export = Callable[[nn.Module, Tensor, str, Sequence[str], Mapping[int, Any]], onnx.ModelProto]


class _Digest(pickle.Pickler):
    """A tensor is its class, type, shape and numbers, wherever they lie."""

    def persistent_id(self, held: Any) -> Any:
        if not isinstance(held, Tensor):
            return None
        content = hashlib.sha256(held.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return type(held).__name__, str(held.dtype), tuple(held.shape), held.requires_grad, content.hexdigest()


def digest(*objects: Any) -> str:
    """SHA-256 of objects, tensors inside them by their numbers."""
    stream = io.BytesIO()
    _Digest(stream).dump(objects)
    return hashlib.sha256(stream.getvalue()).hexdigest()


def once(export: Export, folder: Path) -> Export:
    """`export`, asked once for equal arguments by all processes that share `folder`."""

    def exported(
        module: nn.Module, example: Tensor, feed: str, results: Sequence[str], free: Mapping[int, Any]
    ) -> onnx.ModelProto:
        dimensions = [(at, str(dim), getattr(dim, "min", None), getattr(dim, "max", None)) for at, dim in free.items()]
        place = folder / f"{digest(module, example, feed, tuple(results), dimensions)}.onnx"
        with place.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                place.write_bytes(export(module, example, feed, results, free).SerializeToString())
        return onnx.load_model_from_string(place.read_bytes())

    return exported


@contextmanager
def exports_shared(base: Path) -> Iterator[None]:
    """Within it, commands and functions that run in this process export equal modules once. base: the run's folder."""
    folder = run_folder(base) / "graphs"
    folder.mkdir(exist_ok=True)
    export = once(modules.to_onnx, folder)
    with pytest.MonkeyPatch.context() as patch:
        for user in (samplers, vision):
            patch.setattr(user, "to_onnx", export)
        yield


@pytest.fixture(scope="session", autouse=True)
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For a folder's `conftest.py` to take up: every test in it, and those that follow, export equal modules once."""
    with exports_shared(tmp_path_factory.getbasetemp()):
        yield
