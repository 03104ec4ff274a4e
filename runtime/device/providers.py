"""Who makes the forward passes of the device runtime: torch, or an engine; whether it can, and opening it."""

from collections.abc import Sequence
from typing import Final

import torch

from underpaint.artifacts.device_graph import HEAD, LAYERS, DecoderPasses, PassSize
from underpaint.runtime.device.engine_forward import EngineGraphs
from underpaint.runtime.device.engine_graphs import onnx_graphs
from underpaint.runtime.device.folder import FolderModels
from underpaint.runtime.device.forms import DeviceForm
from underpaint.runtime.device.pass_sizes import passes_of
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import TYPES
from underpaint.runtime.engines.elsewhere import ElsewhereDecoder
from underpaint.runtime.engines.tensorrt_files import MODULES, backend_module, check_rows, part_of, read_record
from underpaint.runtime.engines.tensorrt_runtime import open_plans

TORCH: Final = "torch"
ONNX: Final = "onnx"
FORWARDS: Final = (TORCH, ONNX, *MODULES)
"""By the name that a user gives."""


def check_forward(forward: str, device: torch.device) -> None:
    """EngineError unless forward passes can be made so on this device, and their packages are installed."""
    if forward not in FORWARDS:
        raise EngineError(f"--forward: expected one of {', '.join(FORWARDS)}, got {forward!r}")
    if forward == ONNX and device.type != "cpu":
        raise EngineError("--forward onnx: ONNX Runtime runs on the CPU here; pass --device cpu, or another --forward")
    if forward in MODULES:
        backend_module(forward)
        if device.type != "cuda":
            raise EngineError(
                f"--forward {forward}: TensorRT needs a GPU, got --device {device}; leave one of them out"
            )


def passes_of_methods(folder: FolderModels, forms: Sequence[DeviceForm], batch: int, rows: int) -> list[DecoderPasses]:
    """The passes that methods make of the target, and of the drafter if there is one, in batches of `batch`.

    rows: of an image, 2 for a guidance pair. EngineError names a method whose passes have no fixed sizes.
    """
    target, drafter = folder.configs
    line_token = None if target.eol_id is None else target.vocab_size
    more = rows, batch, TYPES[target.precision], line_token
    found = [DecoderPasses((), ()) for _ in folder.decoders]
    for form in forms:
        if form.engine_gap is not None:
            raise EngineError(f"--forward: {form.engine_gap}; use --forward torch")
        drafts = drafter if form.drafts else None
        made = passes_of(form, target, drafts, target.grid, max(1, target.prefix), *more)
        found = [before.joined(now) for before, now in zip(found, made, strict=False)]
    return found


def check_engines(
    folder: FolderModels,
    forms: Sequence[DeviceForm],
    forward: str,
    batch: int,
    rows: int,
) -> int:
    """How many of a folder's decoders an engine is asked of: the target, and the drafter where a method drafts.

    EngineError unless the folder holds the engines for batches by these methods; see `passes_of_methods`.
    """
    if forward == TORCH:
        return 0
    made = passes_of_methods(folder, forms, batch, rows)
    asked = [(decoder, passes) for decoder, passes in zip(folder.decoders, made, strict=True) if passes.layers]
    for decoder, passes in asked:
        if forward == ONNX:
            onnx_graphs(decoder)
        else:
            _check_records(decoder, passes, forward, batch, rows)
    return len(asked)


def _check_records(decoder: ElsewhereDecoder, passes: DecoderPasses, forward: str, batch: int, rows: int) -> None:
    folder, name, again = decoder.located.path.parent, decoder.located.manifest.name, _again(decoder, forward, batch)
    for part, sizes in zip((LAYERS, HEAD), passes, strict=True):
        record = read_record(folder, part_of(name, part, device=True), forward, again)
        check_rows(record, rows * batch, folder, again)
        for size in sizes:
            if not any(PassSize(*built, record.places).holds(size) for built in record.passes):
                raise EngineError(f"{folder}: {record.model} has no engine for {size}; {again}")


def open_engines(
    decoders: Sequence[ElsewhereDecoder], forward: str, device: torch.device, batch: int
) -> tuple[EngineGraphs, ...]:
    """The decoders on an engine; none for torch. EngineError where one does not fit this machine or its graph."""
    if forward == TORCH:
        return ()
    if forward == ONNX:
        return tuple(onnx_graphs(decoder) for decoder in decoders)
    module = backend_module(forward)
    opened = (open_plans(one, forward, module, device, True, _again(one, forward, batch)) for one in decoders)
    return tuple(EngineGraphs(plans.layers, plans.head, plans.layers.record.places) for plans in opened)


def _again(decoder: ElsewhereDecoder, backend: str, batch: int) -> str:
    command = f"underpaint engine {decoder.located.path.parent} --backend {backend} --batch {batch}"
    return f"build it with `{command} --for-device METHODS`, every method that is drawn and its --set"
