"""Decoders from a folder of models, on the engine of a backend."""

from pathlib import Path
from typing import Final

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.conditions import ConditionEncoder
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.elsewhere import DEVICE, load_elsewhere
from underpaint.runtime.engines.engine import LoadedDecoder
from underpaint.runtime.engines.onnx_engine import load_onnx
from underpaint.runtime.engines.tensorrt_files import backend_module
from underpaint.zoo.load import FOLDER, locate, names

CPU: Final = "cpu"
"""The backend that is ONNX Runtime; the others are TensorRT's packages."""


def load_decoder(
    name: str, kind: str, folder: Path = FOLDER, context: EngineContext | None = None, backend: str = CPU
) -> LoadedDecoder:
    """The decoder `name` of a folder ("target", "drafter" or `DRAFT_TARGET` in `kind`), its files checked.

    backend: "cpu" for ONNX Runtime; "tensorrt" or "tensorrt-rtx" for an engine built of the same graph, of whose
    threads and memory the context says nothing; "device" for what `runtime.device` runs by itself.
    Raises ManifestError or EngineError, naming the file and what to do.
    """
    if backend == CPU:
        return load_onnx(name, kind, folder, context)
    if backend == DEVICE:
        return load_elsewhere(name, locate(name, kind, folder))
    backend_module(backend)
    from underpaint.runtime.engines.tensorrt_engine import load_tensorrt  # needs PyTorch for its memory

    return load_tensorrt(name, kind, folder, backend)


def load_encoder(
    config: DecoderConfig, folder: Path = FOLDER, context: EngineContext | None = None
) -> ConditionEncoder:
    """What encodes conditions for a target of a folder; features are embedded by the folder's condition graph."""
    if not config.external_cond_rows or "condition" not in names(folder):
        return ConditionEncoder(config)
    return ConditionEncoder(config, open_session(locate("condition", "condition", folder).path, context))
