"""Named machines and models, and the least time that a pass of one can take on the other."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.numbers import whole_number
from underpaint.algos.registry import Registry
from underpaint.artifacts.files import read_regular
from underpaint.artifacts.strict_json import Within, build_typed

MOST_BATCH: Final = 65_536
"""Images of one pass; more fit into no machine's memory."""


MACHINE_FILE: Final = ".toml"
"""How the files that describe a machine end."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What bounds a pass.

    Args:
        name: As tables call it.
        title: What it is.
        bandwidth: GB/s of main memory.
        peak: Dense TFLOP/s at `weight_bytes` a number.
        weight_bytes: Of a weight and a cached number.
        launch_us: Microseconds from one kernel to the next, the least.
        source: Where the figures are from.
        bandwidth_share: The share of `bandwidth` that passes reach.
        peak_share: The share of `peak` that passes reach.
        kernels: Kernels launched in a layer; None takes the decoder's own number.
        host_ms: What a cycle takes on the host, beyond its passes.
    """

    name: str
    title: str
    bandwidth: Annotated[float, Within(1e-3, 1e6)]
    peak: Annotated[float, Within(1e-6, 1e6)]
    weight_bytes: Annotated[float, Within(0.1, 16.0)]
    launch_us: Annotated[float, Within(0.0, 1e6)]
    source: str
    bandwidth_share: Annotated[float, Within(1e-3, 1.0)] = 1.0
    peak_share: Annotated[float, Within(1e-3, 1.0)] = 1.0
    kernels: Annotated[int, Within(0, 10_000)] | None = None
    host_ms: Annotated[float, Within(0.0, 1e6)] = 0.0


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
    Machine("l4", "NVIDIA L4, 24 GB", 300.0, 121.0, 2.0, 2.5, "NVIDIA L4 datasheet: bf16, half of the sparse rate"),
    Machine("l40s", "NVIDIA L40S, 48 GB", 864.0, 362.0, 2.0, 2.5, "NVIDIA L40S datasheet: bf16, dense"),
    Machine("a10", "NVIDIA A10, 24 GB", 600.0, 125.0, 2.0, 2.5, "NVIDIA A10 datasheet: bf16, dense"),
    Machine(
        "rtx5090", "NVIDIA RTX 5090, 32 GB", 1792.0, 209.5, 2.0, 2.5, "NVIDIA RTX Blackwell whitepaper: bf16, dense"
    ),
    Machine("mi300x", "AMD MI300X, 192 GB", 5300.0, 1307.4, 2.0, 2.5, "AMD MI300X datasheet: bf16, dense"),
    Machine(
        *("thor", "NVIDIA Jetson AGX Thor, 128 GB", 273.0, 258.8, 2.0, 2.5),
        "NVIDIA Jetson Thor datasheet: an eighth of its sparse fp4 rate",
    ),
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
        kernels = model.kernels if machine.kernels is None else machine.kernels
        launches = 1e-3 * machine.launch_us * (kernels * layers + 4)
        bandwidth, peak = machine.bandwidth * machine.bandwidth_share, machine.peak * machine.peak_share
        bound = np.maximum(moved / (bandwidth * 1e6), done / (peak * 1e9))
        ms: FloatArray = np.maximum(bound, launches)
        return ms


def machine_file(name: str) -> Path | None:
    """The file that describes the machine of "FILE.toml/model"; None where the name is of a known machine."""
    path, slash, _ = name.partition(f"{MACHINE_FILE}/")
    return Path(path + MACHINE_FILE) if slash else None


def read_machine(path: Path) -> Machine:
    """Read a machine from a TOML file with the fields of `Machine`; `name`, `title` and `source` may be left out.

    Raises:
        ValueError: There is no such file, it is no TOML, a field is unknown or missing, or a value is out of its range.
        OSError: It cannot be read.
    """
    if not path.exists():
        raise ValueError(
            f"machine '{path}': expected a file that describes it, there is none; name one of "
            f"{', '.join(one.name for one in MACHINES)}, or write its bandwidth, peak, weight_bytes and launch_us there"
        )
    try:
        values = tomllib.loads(read_regular(path).decode())
        usual = {"name": path.stem, "title": path.stem, "source": str(path)}
        return build_typed(Machine, {**usual, **values}, "machine")
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a machine with bandwidth (GB/s), peak (TFLOP/s), weight_bytes and launch_us: {error}"
        ) from error


def roofline(name: str) -> RooflineCosts:
    """The roofline of "machine/model", or of "machine/model/batch8" for eight images at once.

    The machine is a known one, or the path of a file that `read_machine` takes: "lab/my-gpu.toml/llamagen-xl".

    Raises:
        ValueError: A name is unknown, or the file describes no machine.
        OSError: The file is not there.
    """
    file = machine_file(name)
    machine, slash, rest = name.partition("/")
    if file is not None:
        slash, rest = "/", name.removeprefix(f"{file}/")
    model, _, batch = rest.partition("/")
    count = batch.removeprefix("batch")
    if not slash or (batch and not batch.startswith("batch")):
        raise ValueError(
            f"latency '{name}': expected machine/model, such as a100/llamagen-xl, machine/model/batch8, "
            "FILE.toml/model, or a cost curve's file (.json)"
        )
    described = MACHINES[machine] if file is None else read_machine(file)
    size, images = DECODER_SIZES[model], _batch(name, count) if batch else 1
    return RooflineCosts(described, size, images, overhead_ms=described.host_ms)


def _batch(name: str, count: str) -> int:
    try:
        return whole_number(count, 1, MOST_BATCH)
    except ValueError as error:
        raise ValueError(f"latency '{name}': batch: {error}") from error
