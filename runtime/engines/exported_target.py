"""A target of an export folder under a condition of ids or of features."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.rows import SamplingParams
from underpaint.runtime.conditions import Condition, read_features
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.onnx_engine import load_decoder
from underpaint.runtime.engines.shape import DecoderShape
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.engines.tensorrt_files import backend_module
from underpaint.runtime.exported import check_data
from underpaint.zoo.load import locate, names


@dataclass(slots=True)
class ExportedTarget:
    """A target and, where its condition is made of features, the graph that embeds them.

    Engines are made once for each sampler.
    """

    loaded: Any
    embed: Any
    _engines: Callable[[SamplingParams], EngineTarget] = field(init=False)

    def __post_init__(self) -> None:
        self._engines = cache(partial(EngineTarget, self.loaded))

    @property
    def shape(self) -> DecoderShape:
        """What an engine knows of it."""
        shape: DecoderShape = self.loaded.shape
        return shape

    def takes(self) -> str:
        """What it is asked for, in words; equal where two targets take the same conditions."""
        if self.embed is not None:
            prefix, width = self.embed.get_inputs()[0].shape
            return f"features [1 to {prefix}, {width}]"
        if self.shape.prompted:
            return f"prompts of ids from 0 to {self.shape.cond_ids - 1}"
        return f"{self.shape.prefix} id(s) from 0 to {self.shape.cond_ids - 1}"

    def check_pass(self, cells: int) -> None:
        """EngineError where no optimisation profile holds so many cells; ONNX Runtime takes any number."""
        record = getattr(self.loaded, "record", None)
        if record is None:
            return
        most = max(count for _, count in record.batch_counts)
        lines = 0 if self.shape.eol_token is None else -(-cells // self.shape.width)
        if min(cells + lines, self.shape.grid.cells + self.shape.eol_tokens) > most:
            raise EngineError(
                f"{self.loaded.name}: this method passes over {cells} cells at once, its engine over {most}; build it "
                f"with larger --buckets (as 1,8,16,32,64,{cells}), or let the method draft fewer rows a cycle"
            )

    def under(self, asked: Condition, sampler: SamplingParams) -> EngineTarget:
        """The target under a condition, until another is set; EngineError where it takes no such condition."""
        target = self._engines(sampler)
        if asked.features is None:
            target.condition(np.array(asked.ids))
        else:
            rows, padding = self._embedded(asked.features)
            target.condition_rows(rows, padding)
        return target

    def _embedded(self, path: Path) -> tuple[NDArray[np.float32], int]:
        """Rows of the condition graph, and how many leading positions a short caption leaves empty."""
        if self.embed is None:
            raise EngineError(f"{path}: this model takes ids, not features")
        prefix, width = self.embed.get_inputs()[0].shape
        given = read_features(path)
        if given.shape[1] != width or not 1 <= given.shape[0] <= prefix:
            raise EngineError(f"{path}: expected features [1 to {prefix}, {width}], got {list(given.shape)}")
        padded = np.zeros((prefix, width), dtype=np.float32)
        padded[prefix - given.shape[0] :] = given
        return self.embed.run(None, {"features": padded})[0], prefix - given.shape[0]


def open_target(folder: Path, backend: str, settings: EngineContext | None = None) -> ExportedTarget:
    """The target of an export folder, its files checked; ManifestError or EngineError."""
    loaded = load_part("target", folder, backend, settings)
    there = "condition" in names(folder)
    return ExportedTarget(
        loaded, open_session(locate("condition", "condition", folder).path, settings) if there else None
    )


def load_part(name: str, folder: Path, backend: str, settings: EngineContext | None = None) -> Any:
    """The decoder `name` ("target" or "drafter"), on ONNX Runtime ("cpu") or on the TensorRT package of a backend."""
    check_data(folder, name)
    if backend == "cpu":
        return load_decoder(name, name, folder, settings)
    backend_module(backend)
    from underpaint.runtime.engines.tensorrt_engine import load_tensorrt  # needs PyTorch for its memory

    return load_tensorrt(name, name, folder, backend)
