"""Backends of the device's forward passes, torch or an engine: checking that they work here, and opening them.

The sizes that an engine must be built for are read from a method's own program, run on tensors without data, so no
second list can disagree with it.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import HEAD, LAYERS, DecoderPasses, PassSize
from underpaint.runtime.device.engine_forward import EngineGraphs, onnx_graphs
from underpaint.runtime.device.folder import FolderModels
from underpaint.runtime.device.forms import BatchSizes, DeviceForm
from underpaint.runtime.device.forwards import Attend
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineError, Quantization
from underpaint.runtime.engines.device_memory import TYPES
from underpaint.runtime.engines.tensorrt_files import MODULES, backend_module, check_rows, part_of, read_record
from underpaint.runtime.engines.tensorrt_runtime import open_plans

TORCH: Final = "torch"
ONNX: Final = "onnx"
FORWARDS: Final = (TORCH, ONNX, *MODULES)
"""Names of the backends, as a user gives them."""
FP8_CAPABILITY: Final = (8, 9)
"""Lowest compute capability that converts fp8 numbers."""


def check_forward(forward: str, device: torch.device, quantization: Quantization | None = None) -> None:
    """Raise EngineError unless this backend works on the device with such weights, and its packages are installed."""
    if forward not in FORWARDS:
        raise EngineError(f"--forward: expected one of {', '.join(FORWARDS)}, got {forward!r}")
    if forward == ONNX and device.type != "cpu":
        raise EngineError(
            f"--forward onnx: expected --device cpu, got {device}: a captured cycle cannot hold ONNX Runtime's passes; "
            f"use --forward torch or tensorrt there, or ONNX Runtime without the device's cycle, by --backend {device}"
        )
    if quantization is not None and forward != TORCH:
        raise EngineError(
            f"--quantization {quantization}: expected --forward torch, which multiplies such weights, got {forward}; "
            "leave one of them out"
        )
    if quantization == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        raise EngineError(
            f"--quantization fp8: expected a GPU of compute capability {'.'.join(map(str, FP8_CAPABILITY))} or newer, "
            f"got {torch.cuda.get_device_name(device)}; use int8"
        )
    if forward in MODULES:
        backend_module(forward)
        if device.type != "cuda":
            raise EngineError(
                f"--forward {forward}: TensorRT needs a GPU, got --device {device}; leave one of them out"
            )


def passes_of_methods(folder: FolderModels, forms: Sequence[DeviceForm], batch: int, rows: int) -> list[DecoderPasses]:
    """Return the passes that methods make of the target, and of the drafter if there is one, in batches of `batch`.

    Args:
        folder: The decoders.
        forms: Device forms of the methods.
        batch: Number of images in a batch.
        rows: Rows per image, 2 for a guidance pair.

    Raises:
        EngineError: The passes of a method have no fixed sizes.
    """
    target, drafter = folder.configs
    line_token = None if target.eol_id is None else target.vocab_size
    more = rows, batch, TYPES[target.precision], line_token
    passes = [DecoderPasses((), ()) for _ in folder.decoders]
    for form in forms:
        if form.engine_gap is not None:
            raise EngineError(f"--forward: {form.engine_gap}; use --forward torch")
        drafts = drafter if form.drafts else None
        form_passes = passes_of(form, target, drafts, target.grid, max(1, target.prefix), *more)
        passes = [before.joined(now) for before, now in zip(passes, form_passes, strict=False)]
    return passes


class _Recorder:
    """A `DeviceDecoder` that computes nothing and records the sizes of its passes."""

    def __init__(self, config: DecoderConfig, rows: int, dtype: torch.dtype) -> None:
        self.config, self.rows, self.dtype, self.places = config, rows, dtype, 0
        self.layers, self.head = set[PassSize](), set[PassSize]()

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.zeros(self.rows * tokens.shape[0], tokens.shape[1], self.config.dim, dtype=self.dtype)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        return self.hidden(self.embed(tokens), positions, attend)

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        count, joined = embeddings.shape[1], attend.cache.joined
        assert joined is not None
        self.layers.add(PassSize(count, count, joined.shape[4]))
        return torch.zeros_like(embeddings)

    def logits(self, features: Tensor) -> Tensor:
        count = features.shape[1]
        self.head.add(PassSize(count, count, 0))
        return torch.zeros(features.shape[0], count, self.config.vocab_size)

    def passes(self) -> DecoderPasses:
        """Return the recorded passes."""
        return DecoderPasses(tuple(sorted(self.layers)), tuple(sorted(self.head)))


def passes_of(
    form: DeviceForm,
    target: DecoderConfig,
    drafter: DecoderConfig | None,
    grid: Grid,
    prefix: int,
    rows: int,
    batch: int,
    dtype: torch.dtype,
    line_token: int | None = None,
) -> tuple[DecoderPasses, DecoderPasses]:
    """Return the passes of target and drafter in a method's program, prefill included; see `DeviceCycle`.

    Args:
        form: The method's device form.
        target: Sizes of the target.
        drafter: Sizes of the drafter; None for no drafter, whose passes are then empty.
        grid: Grid of the image's cells.
        prefix: Largest number of condition positions.
        rows: Rows per image, 2 for a guidance pair.
        batch: Number of images in a batch.
        dtype: Data type of features, keys and values.
        line_token: Token that the target embeds after every line of the picture except the last; None for none.
    """
    device = torch.device("cpu")
    with FakeTensorMode(), torch.no_grad():
        verified = _Recorder(target, rows, dtype)
        drafted = None if drafter is None else _Recorder(drafter, rows, dtype)
        cycle = form.cycle(verified, drafted, BatchSizes(grid, prefix, batch, device, line_token))
        cycle.run()
    joined = cycle.state.target_cache.joined
    assert joined is not None
    conditions = DecoderPasses((PassSize(1, prefix, joined.shape[4]),), (PassSize(1, 1, 0),))
    return verified.passes().joined(conditions), DecoderPasses((), ()) if drafted is None else drafted.passes()


def check_engines(
    folder: FolderModels,
    forms: Sequence[DeviceForm],
    forward: str,
    batch: int,
    rows: int,
) -> int:
    """Return how many of a folder's decoders run on an engine: the target, and the drafter if a method drafts.

    Raises EngineError if the folder lacks an engine for batches of these methods; see `passes_of_methods`.
    """
    if forward == TORCH:
        return 0
    passes = passes_of_methods(folder, forms, batch, rows)
    decoders = [
        (decoder, decoder_passes)
        for decoder, decoder_passes in zip(folder.decoders, passes, strict=True)
        if decoder_passes.layers
    ]
    for decoder, decoder_passes in decoders:
        if forward == ONNX:
            onnx_graphs(decoder)
        else:
            _check_records(decoder, decoder_passes, forward, batch, rows)
    return len(decoders)


def _check_records(decoder: ConfigOnlyDecoder, passes: DecoderPasses, forward: str, batch: int, rows: int) -> None:
    folder, name, again = decoder.located.path.parent, decoder.located.manifest.name, _again(decoder, forward, batch)
    for part, sizes in zip((LAYERS, HEAD), passes, strict=True):
        record = read_record(folder, part_of(name, part, device=True), forward, again)
        for count in {rows, rows * batch}:  # an image that enters a free slot begins in a batch of one
            check_rows(record, count, folder, again)
        for size in sizes:
            if not any(PassSize(*built, record.places).holds(size) for built in record.passes):
                raise EngineError(f"{folder}: {record.model} has no engine for {size}; {again}")


def open_engines(
    decoders: Sequence[ConfigOnlyDecoder], forward: str, device: torch.device, batch: int
) -> tuple[EngineGraphs, ...]:
    """Open the decoders' engines; none for torch. EngineError if one does not fit this machine or its graph."""
    if forward == TORCH:
        return ()
    if forward == ONNX:
        return tuple(onnx_graphs(decoder) for decoder in decoders)
    module = backend_module(forward)
    opened = (open_plans(one, forward, module, device, True, _again(one, forward, batch)) for one in decoders)
    return tuple(EngineGraphs(plans.layers, plans.head, plans.layers.record.places) for plans in opened)


def _again(decoder: ConfigOnlyDecoder, backend: str, batch: int) -> str:
    command = f"underpaint engine {decoder.located.path.parent} --backend {backend} --batch {batch}"
    return f"build it with `{command} --for-device METHODS`, every method that is drawn and its --set"
