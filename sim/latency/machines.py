"""Named machines and models, and a roofline model of the time of a pass."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.numbers import whole_number
from underpaint.algos.registry import Registry
from underpaint.artifacts.files import read_regular
from underpaint.artifacts.knee import Knee, find_knee
from underpaint.artifacts.strict_json import Within, build_typed

MOST_BATCH: Final = 65_536
"""Largest number of images in a pass; more do not fit into any machine's memory."""
MACHINE_FILE: Final = ".toml"
"""File name ending of machine descriptions."""
ACTIVATIONS: Final = 42
"""Values that a layer's kernels read and write per position, in multiples of the layer's width, without weights and KV
cache: norms, inputs and outputs of the seven matrix products, rotary embedding, gate and two sums, each a kernel."""
FIXED: Final = "-fixed"
"""Suffix of a batch without refill: its images start together, and finished slots stay empty until the last ends."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A device and the engine on it, described by the costs of kernels and of the host.

    Args:
        name: Short name, for tables.
        title: Full name.
        bandwidth: Memory bandwidth in GB/s.
        peak: Peak rate of dense matrix products in TFLOP/s.
        launch_us: Microseconds per kernel in addition to its work: the launch, and the time until all processors are
            busy. About 3 with CUDA graphs, 9 to 16 without.
        overlap_us: Part of `launch_us` that programmatic dependent launch removes, 0 if unknown. Only counts of the
            device's own kernels use it.
        source: Source of the figures.
        weight_bytes: Bytes per weight.
        value_bytes: Bytes per value in the KV cache, and per value passed from one kernel to the next.
        bandwidth_share: Share of `bandwidth` that kernels reach; the default is the A100's.
        peak_share: Share of `peak` that large matrix products reach.
        tile: Positions in the largest tile of a product; fewer positions use the smallest sufficient power of two. One
            position more than a multiple costs a whole additional tile.
        kernels: Kernels launched per layer; None takes the decoder's number.
        host_ms: Host time of a cycle that drafts, in addition to its passes.
        host_step_ms: Host time of a step of plain autoregression; None takes `host_ms`.
        l2_bandwidth: Bandwidth of the L2 cache in GB/s, for reading what was prefetched; 0 if unknown. As `overlap_us`,
            for these counts only.
        processors: Number of multiprocessors; 0 if unknown.
        ghz: Clock of the multiprocessors; 0 if unknown.
    """

    name: str
    title: str
    bandwidth: Annotated[float, Within(1e-3, 1e6)]
    peak: Annotated[float, Within(1e-6, 1e6)]
    launch_us: Annotated[float, Within(0.0, 1e6)]
    source: str
    weight_bytes: Annotated[float, Within(0.1, 16.0)] = 2.0
    value_bytes: Annotated[float, Within(0.1, 16.0)] = 2.0
    bandwidth_share: Annotated[float, Within(1e-3, 1.0)] = 0.77
    peak_share: Annotated[float, Within(1e-3, 1.0)] = 0.7
    tile: Annotated[int, Within(1, 4096)] = 64
    kernels: Annotated[int, Within(0, 10_000)] | None = None
    host_ms: Annotated[float, Within(0.0, 1e6)] = 0.0
    host_step_ms: Annotated[float, Within(0.0, 1e6)] | None = None
    overlap_us: Annotated[float, Within(0.0, 1e6)] = 0.0
    l2_bandwidth: Annotated[float, Within(0.0, 1e6)] = 0.0
    processors: Annotated[int, Within(0, 100_000)] = 0
    ghz: Annotated[float, Within(0.0, 100.0)] = 0.0

    def __post_init__(self) -> None:
        if self.overlap_us > self.launch_us:
            raise ValueError(
                f"machine '{self.name}': expected overlap_us of at most launch_us ({self.launch_us:g}), got "
                f"{self.overlap_us:g}"
            )

    @property
    def bytes_per_us(self) -> float:
        """Bytes per microsecond at the bandwidth that kernels reach."""
        return self.bandwidth * self.bandwidth_share * 1e3

    def work_us(self, moved: FloatArray | float, done: FloatArray | float = 0.0, slots: float = 0.0) -> FloatArray:
        """Microseconds of a kernel's work without its launch: the largest of three times.

        Args:
            moved: Bytes read and written.
            done: Floating-point operations of matrix products.
            slots: Instructions issued by the busiest scheduler, one per clock cycle.

        Raises:
            ValueError: `slots` is given, but the machine's clock is unknown.
        """
        if slots and not self.ghz:
            raise ValueError(f"machine '{self.name}': expected its clock (ghz) to count instructions, got none")
        by_bytes = np.asarray(moved) / self.bytes_per_us
        by_products = np.asarray(done) / (self.peak * self.peak_share * 1e6)
        us: FloatArray = np.maximum(np.maximum(by_bytes, by_products), slots / (1e3 * self.ghz) if slots else 0.0)
        return us


@dataclass(frozen=True, slots=True)
class DecoderSize:
    """The size of a decoder.

    Args:
        name: Short name, for tables.
        title: Full name and resolution.
        parameters: Parameters used in a pass, without the embedding.
        layers: Number of transformer layers (attention and feed-forward).
        width: Hidden size.
        vocab_size: Vocabulary size: rows of the LM head.
        cells: Image tokens at the resolution in the title.
        guided: Whether classifier-free guidance is used, with two rows per image.
        source: Source of the figures.
        drafter_layers: Layers of the EAGLE drafter, which shares the LM head.
        kernels: Kernels launched per layer.
        key_width: Total width of the keys, and of the values, of a position; 0 takes `width`.
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
    key_width: int = 0


MACHINES: Registry[Machine] = Registry("machine")


def _machine(values: dict[str, Any], name: str, source: str = "") -> Machine:
    """Build a machine from a TOML table; ValueError as in `build_typed`."""
    return build_typed(Machine, {"name": name, "title": name, "source": source, **values}, "machine")


for _name, _values in tomllib.loads(
    files("underpaint.sim.latency").joinpath("machines.toml").read_text(encoding="utf-8")
).items():
    MACHINES.register(_machine(_values, _name))

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
    """A roofline model: the time of a pass is the sum of its kernels' launch and work times (see `Machine.work_us`).

    Matrix products read the weights once and compute whole tiles of positions; attention reads the KV cache of `cached`
    positions; the other kernels move `ACTIVATIONS`. Each image of the `batch` adds one row, or two with guidance. All
    sizes are supported, because nothing is measured.

    Args:
        machine: The machine.
        model: The size of the decoder.
        batch: Images per pass.
        cached: Positions in the KV cache, at least 0; None takes half of the image.
        refilled: Whether the next image takes the batch slot of a finished one.
    """

    machine: Machine
    model: DecoderSize
    batch: int = 1
    cached: int | None = None
    refilled: bool = True

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"roofline: batch must be at least 1, got {self.batch}")
        if self.cached is not None and self.cached < 0:
            raise ValueError(f"roofline: cached must be at least 0 positions, got {self.cached}")

    @property
    def name(self) -> str:
        """The names of machine and model, and the batch if there is one."""
        batch = f"/batch{self.batch}" + ("" if self.refilled else FIXED) if self.batch > 1 else ""
        return f"{self.machine.name}/{self.model.name}{batch}"

    @property
    def overhead_ms(self) -> float:
        return self.machine.host_ms

    @property
    def step_overhead_ms(self) -> float:
        step_ms = self.machine.host_step_ms
        return self.machine.host_ms if step_ms is None else step_ms

    @property
    def waits_for(self) -> int:
        return 1 if self.refilled else self.batch

    def verify_ms(self, nodes: IntArray) -> FloatArray:
        cached = self.model.cells // 2 if self.cached is None else self.cached
        return self._pass_ms(nodes, self.model.parameters, self.model.layers, cached)

    def draft_ms(self, nodes: IntArray) -> FloatArray:
        """[K] ms of drafter passes: its own layers, the layer that joins token and feature, and the LM head."""
        model = self.model
        head = float(model.width * model.vocab_size)
        drafter_parameters = (model.parameters - head) / model.layers * model.drafter_layers + 2.0 * model.width**2
        cached = model.cells // 2 if self.cached is None else self.cached
        return self._pass_ms(nodes, drafter_parameters + head, model.drafter_layers, cached)

    def prefill_ms(self, tokens: IntArray) -> FloatArray:
        """[K] ms of prefill passes over prompts of `tokens` [K], with an empty KV cache."""
        return self._pass_ms(tokens, self.model.parameters, self.model.layers, 0)

    def knee(self) -> Knee:
        """The number of nodes up to which a target pass costs about as much as over one node, by whole tiles."""
        rows = self.batch * (2 if self.model.guided else 1)
        sizes = sorted({max(1, tiles * self.machine.tile // rows) for tiles in range(1, 33)} | {1})
        return find_knee(list(zip(sizes, self.verify_ms(np.array(sizes)).tolist(), strict=True)))

    def _pass_ms(self, nodes: IntArray, parameters: float, layers: int, cached: int) -> FloatArray:
        model, machine = self.model, self.machine
        positions = self.batch * (2 if model.guided else 1) * np.asarray(nodes)
        kernels = (model.kernels if machine.kernels is None else machine.kernels) * layers + 4
        tile = np.minimum(machine.tile, 1 << np.ceil(np.log2(positions)).astype(np.int64))
        tiled = -(-positions // tile) * tile
        products = machine.work_us(parameters * machine.weight_bytes, 2.0 * parameters * tiled)
        rows = positions // np.asarray(nodes)
        keys = 2.0 * layers * (model.key_width or model.width) * cached * machine.value_bytes * rows
        attention = machine.work_us(keys, 4.0 * layers * model.width * positions * (cached + (nodes + 1) / 2.0))
        others = machine.work_us(
            (ACTIVATIONS * layers * model.width + model.vocab_size) * machine.value_bytes * positions
        )
        ms: FloatArray = 1e-3 * (machine.launch_us * kernels + products + attention + others)
        return ms


def machine_file(name: str) -> Path | None:
    """The path of the machine file in "FILE.toml/model"; None if the name has no file."""
    path, slash, _ = name.partition(f"{MACHINE_FILE}/")
    return Path(path + MACHINE_FILE) if slash else None


def read_machine(path: Path) -> Machine:
    """Read a machine from a TOML file with the fields of `Machine`; `name`, `title` and `source` are optional.

    Raises:
        ValueError: The file is missing or is not TOML, a field is unknown or missing, or a value is out of range.
        OSError: The file cannot be read.
    """
    if not path.exists():
        raise ValueError(
            f"machine '{path}': expected a file that describes it, there is none; name one of "
            f"{', '.join(one.name for one in MACHINES)}, or write its bandwidth, peak and launch_us there"
        )
    try:
        values = tomllib.loads(read_regular(path).decode())
        return _machine(values, path.stem, str(path))
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a machine with bandwidth (GB/s), peak (TFLOP/s) and launch_us: {error}"
        ) from error


def roofline(name: str) -> RooflineCosts:
    """The roofline of "machine/model", or of "machine/model/batch8" for batches of eight images.

    In "machine/model/batch8-fixed", the images of a batch start together and the slots of finished ones stay empty.
    The machine is a known name, or a path for `read_machine`, as in "lab/my-gpu.toml/llamagen-xl".

    Raises:
        ValueError: A name is unknown, or the file is missing or describes no machine.
        OSError: The file cannot be read.
    """
    file = machine_file(name)
    machine, slash, rest = name.partition("/")
    if file is not None:
        slash, rest = "/", name.partition(f"{MACHINE_FILE}/")[2]
    model, _, batch = rest.partition("/")
    count = batch.removeprefix("batch").removesuffix(FIXED)
    if not slash or (batch and not batch.startswith("batch")):
        raise ValueError(
            f"latency '{name}': expected machine/model, such as a100/llamagen-xl, machine/model/batch8, "
            "machine/model/batch8-fixed, FILE.toml/model, or a cost curve's file (.json)"
        )
    described = MACHINES[machine] if file is None else read_machine(file)
    size, images = DECODER_SIZES[model], _batch(name, count) if batch else 1
    return RooflineCosts(described, size, images, refilled=not batch.endswith(FIXED))


def _batch(name: str, count: str) -> int:
    try:
        return whole_number(count, 1, MOST_BATCH)
    except ValueError as error:
        raise ValueError(f"latency '{name}': batch: {error}") from error
