"""Named machines and models, and the least time that a pass of one can take on the other."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.numbers import whole_number
from underpaint.algos.registry import Registry

MOST_BATCH: Final = 65_536
"""Images of one pass; more fit into no machine's memory."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What bounds a pass. bandwidth: GB/s of main memory; peak: dense TFLOP/s at `weight_bytes` a number.

    launch_us: of one kernel, the least time between two. source: where the figures are from.
    """

    name: str
    title: str
    bandwidth: float
    peak: float
    weight_bytes: float
    launch_us: float
    source: str


@dataclass(frozen=True, slots=True)
class DecoderSize:
    """A decoder. parameters: of a pass, the embedding left out. kernels: launched in a layer.

    cells: image tokens at the resolution in the title. guided: whether it is sampled with a guidance pair.
    drafter_layers: of the EAGLE drafter, which shares the head.
    """

    name: str
    title: str
    parameters: float
    layers: int
    width: int
    vocab_size: int
    cells: int
    guided: bool
    source: str
    drafter_layers: int = 1
    kernels: int = 10


MACHINES: Registry[Machine] = Registry("machine")
for _machine in (
    Machine("cpu2", "two cloud CPU cores, float32", 20.0, 0.15, 4.0, 2.0, "nominal; measure yours (underpaint costs)"),
    Machine("rtx4090", "NVIDIA RTX 4090, 24 GB", 1008.0, 165.2, 2.0, 2.5, "NVIDIA Ada whitepaper: bf16, dense"),
    Machine("a100", "NVIDIA A100 SXM, 80 GB", 2039.0, 312.0, 2.0, 2.5, "NVIDIA A100 datasheet: bf16, dense"),
    Machine("h100", "NVIDIA H100 SXM, 80 GB", 3350.0, 989.0, 2.0, 2.0, "NVIDIA H100 datasheet: bf16, dense"),
    Machine("h200", "NVIDIA H200 SXM, 141 GB", 4800.0, 989.0, 2.0, 2.0, "NVIDIA H200 datasheet: bf16, dense"),
    Machine("b200", "NVIDIA B200, 180 GB", 8000.0, 2250.0, 2.0, 2.0, "NVIDIA Blackwell datasheet: bf16, dense"),
):
    MACHINES.register(_machine)

_LLAMAGEN = "arXiv 2406.06525, table 1"
_CHAMELEON = "arXiv 2405.09818; drawn with classifier-free guidance"

DECODER_SIZES: Registry[DecoderSize] = Registry("decoder")
for _model in (
    DecoderSize("llamagen-b", "LlamaGen-B, 256 px", 111e6, 12, 768, 16384, 256, True, _LLAMAGEN),
    DecoderSize("llamagen-l", "LlamaGen-L, 256 px", 343e6, 24, 1024, 16384, 256, True, _LLAMAGEN),
    DecoderSize("llamagen-xl", "LlamaGen-XL, 512 px", 775e6, 36, 1280, 16384, 1024, True, _LLAMAGEN),
    DecoderSize("llamagen-xxl", "LlamaGen-XXL, 384 px", 1.4e9, 48, 1536, 16384, 576, True, _LLAMAGEN),
    DecoderSize("llamagen-3b", "LlamaGen-3B, 384 px", 3.1e9, 24, 3200, 16384, 576, True, _LLAMAGEN),
    DecoderSize(
        "ar-dtok", "Tar's AR-DTok, 512 px", 775e6, 36, 1280, 16384, 1024, True, "assumed of LlamaGen-XL's size"
    ),
    DecoderSize("anole-7b", "Anole-7B, 512 px", 7.0e9, 32, 4096, 65536, 1024, True, _CHAMELEON),
    DecoderSize("lumina-mgpt-7b", "Lumina-mGPT-7B, 768 px", 7.0e9, 32, 4096, 65536, 2352, True, _CHAMELEON),
):
    DECODER_SIZES.register(_model)


@dataclass(frozen=True, slots=True)
class RooflineCosts:
    """The larger of bytes over bandwidth and operations over peak, and no less than the kernels' launches.

    Bytes are the weights once, the cache of `cached` positions and the logits once per row; operations are two per
    parameter and position, and the attention's. A guidance pair doubles the rows; so does every image of the `batch`.
    It is a bound, not a forecast: measured passes are slower. Any size is answered for, as nothing is measured.
    """

    machine: Machine
    model: DecoderSize
    batch: int = 1
    cached: int | None = None
    overhead_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"roofline: batch must be at least 1, got {self.batch}")
        if self.cached is not None and self.cached < 0:
            raise ValueError(f"roofline: cached must be at least 0 positions, got {self.cached}")

    @property
    def name(self) -> str:
        """Machine and model."""
        return f"{self.machine.name}/{self.model.name}" + (f"/batch{self.batch}" if self.batch > 1 else "")

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        return self._pass_ms(nodes, self.model.parameters, self.model.layers)

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        """The drafter's own layers, the layer that joins token and feature, and the head."""
        model = self.model
        head = float(model.width * model.vocab_size)
        own = (model.parameters - head) / model.layers * model.drafter_layers + 2.0 * model.width**2
        return self._pass_ms(nodes, own + head, model.drafter_layers)

    def _pass_ms(self, nodes: IntArray, parameters: float, layers: int) -> FloatArray:
        model, machine = self.model, self.machine
        rows = self.batch * (2 if model.guided else 1)
        cached = model.cells // 2 if self.cached is None else self.cached
        cache_bytes = 2.0 * layers * model.width * cached * machine.weight_bytes * rows
        row_bytes = (6.0 * layers * model.width + model.vocab_size) * machine.weight_bytes
        moved = parameters * machine.weight_bytes + cache_bytes + row_bytes * rows * nodes
        done = rows * nodes * (2.0 * parameters + 4.0 * layers * model.width * (cached + nodes))
        launches = 1e-3 * machine.launch_us * (model.kernels * layers + 4)
        bound = np.maximum(moved / (machine.bandwidth * 1e6), done / (machine.peak * 1e9))
        ms: FloatArray = np.maximum(bound, launches)
        return ms


def roofline(name: str) -> RooflineCosts:
    """The roofline of "machine/model", or of "machine/model/batch8" for eight images at once.

    Raises ValueError, with the nearest name, on an unknown one.
    """
    machine, slash, rest = name.partition("/")
    model, _, batch = rest.partition("/")
    count = batch.removeprefix("batch")
    if not slash or (batch and not batch.startswith("batch")):
        raise ValueError(
            f"latency '{name}': expected machine/model, such as a100/llamagen-xl, machine/model/batch8, or a cost "
            "curve's file (.json)"
        )
    return RooflineCosts(MACHINES[machine], DECODER_SIZES[model], _batch(name, count) if batch else 1)


def _batch(name: str, count: str) -> int:
    try:
        return whole_number(count, 1, MOST_BATCH)
    except ValueError as error:
        raise ValueError(f"latency '{name}': batch: {error}") from error
