"""The cost of a cycle, counted without a GPU: nodes of its graph, bytes that they move, and waits for the device.

The cycle runs on tensors with shapes and no numbers (PyTorch's FakeTensor, on "cuda" if PyTorch was built for it).
Code that reads a number back (`.item()`, an index by a mask, a shape from data) raises there. A program that can be
counted therefore never waits, and can be captured as a CUDA graph. Triton's kernels receive data only as tensors.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tools.compile_ahead import compile_for
from underpaint.algos.draft.choice import NOTHING, Choice
from underpaint.algos.protocols import Grid
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.engine_forward import EngineForward, EngineGraphs
from underpaint.runtime.device.forms import BatchSizes, DeviceForm
from underpaint.runtime.device.forwards import Attend, DeviceDecoder
from underpaint.runtime.device.launch import Launch, Recording, overlaps, recording
from underpaint.runtime.device.low_models import LowDraft
from underpaint.runtime.device.weight_only import MATRICES, QUANTISED_TYPES, WeightOnlyLinear, quantise_layers
from underpaint.runtime.methods.multi_scale.device import IslandCycle, RepairForm
from underpaint.sim.latency.machines import Machine

_VIEWS = ("view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select")
_NOTHING = (
    "detach",
    "empty",
    "new_empty",
    "alias",
    "lift_fresh",
    "empty_like",
    "as_strided",
    "unbind",
    "split",
    "unflatten",
)


def shapes_alone(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Return a decoder of these sizes without weight values, to count or time a model whose weights are missing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Decoder(config)
    finally:
        torch.set_default_dtype(before)


class NodeTimes(NamedTuple):
    """Microseconds of a node by the cost model: its launch, and its work as bytes and as instructions limit it."""

    launch: float
    bytes: float
    slots: float

    @property
    def work(self) -> float:
        """The longer of the two limits."""
        return max(self.bytes, self.slots)


class Node(NamedTuple):
    """A node of the graph.

    Attributes:
        name: Name of the operation or kernel.
        bytes: Bytes that it moves.
        part: "target", "drafter", "sampler", or "" for nodes outside the models' forward passes.
        launch: The launch of a Triton kernel; None for operations of PyTorch.
    """

    name: str
    bytes: int
    part: str
    launch: Launch | None = None


class Program(NamedTuple):
    """The nodes of a cycle in order, and the Triton launches among them."""

    nodes: tuple[Node, ...]
    launches: tuple[Launch, ...]

    def times(self, machine: Machine, capability: int | None = None) -> list[NodeTimes]:
        """Return each node's times of launch and work on a machine, from bytes and, with a capability, instructions.

        With a capability, kernels are compiled and their machine code is read; PyTorch's kernels have no instruction
        count. A kernel starts early if it and the kernel before it wait for earlier ones, and the machine's saving is
        known. Its launch is then shorter, and what it prefetches streams from memory during all of that time. What the
        kernel before has prefetched for it streams while that kernel, itself started early, leaves the memory idle.
        All of its bytes still pass through the L2 cache.
        """
        times: list[NodeTimes] = []
        waits, idle, ahead = False, 0.0, 0
        for node in self.nodes:
            slots, hidden, launch_us, launch = 0.0, 0.0, machine.launch_us, node.launch
            waited, waits = waits, False
            if launch is not None and capability is not None:
                slots = compile_for(launch, capability).issued(machine)
                waits = overlaps(launch.function, capability)
            early = waits and waited and machine.overlap_us > 0
            if early and launch is not None:
                launch_us -= machine.overlap_us
                hidden = min(launch.prefetched, launch_us * machine.bytes_per_us) + min(ahead, idle)
            by_bytes = float(machine.work_us(max(0.0, node.bytes - hidden)))
            if hidden and machine.l2_bandwidth:
                by_bytes = max(by_bytes, 1e-3 * node.bytes / machine.l2_bandwidth)
            times.append(NodeTimes(launch_us, by_bytes, float(machine.work_us(0.0, slots=slots))))
            idle = max(0.0, (launch_us + times[-1].work) * machine.bytes_per_us - node.bytes) if early else 0.0
            ahead = 0 if launch is None else launch.prefetched_next
        return times

    def part_ms(self, machine: Machine, parts: Collection[str], capability: int | None = None) -> float:
        """Return the milliseconds of all nodes of some parts, run in sequence; see `Node` and `times`."""
        times = self.times(machine, capability)
        return 1e-3 * sum(
            one.launch + one.work for node, one in zip(self.nodes, times, strict=True) if node.part in parts
        )

    def ms(self, machine: Machine, forwards: bool, capability: int | None = None) -> float:
        """Return the milliseconds of nodes inside (`forwards`) or outside the models; see `times`."""
        inside = {node.part for node in self.nodes} - {""}
        return self.part_ms(machine, inside if forwards else {""}, capability)


def figures_of(program: Program, machine: Machine, capability: int) -> dict[str, float]:
    """Return the predicted milliseconds of a program on a machine, by name.

    "outside_ms": outside the models. "ms": all of it. "unprefetched_ms": without prefetching. "sequential_ms": without
    dependent launches either. "bytes_ms": what its bytes take alone.
    """

    def bare(node: Node) -> Node:
        if node.launch is None:
            return node
        return node._replace(launch=node.launch._replace(prefetched=0, prefetched_next=0))

    def whole(program: Program, machine: Machine) -> float:
        return sum(program.ms(machine, forwards, capability) for forwards in (False, True))

    unprefetched = program._replace(nodes=tuple(map(bare, program.nodes)))
    return {
        "outside_ms": program.ms(machine, False, capability),
        "ms": whole(program, machine),
        "unprefetched_ms": whole(unprefetched, machine),
        "sequential_ms": whole(unprefetched, replace(machine, overlap_us=0.0)),
        "bytes_ms": 1e-3 * float(machine.work_us(sum(node.bytes for node in program.nodes))),
    }


def limits_of(program: Program, machine: Machine, capability: int) -> dict[str, Any]:
    """Return what limits a program outside the models.

    "outside_by": its milliseconds by launches, bytes and slots (instructions). "longest", "longest_ms": the kernel that
    takes longest, without launches.
    """
    parts = {"launches": 0.0, "bytes": 0.0, "slots": 0.0}
    kernels: dict[str, float] = {}
    for node, took in zip(program.nodes, program.times(machine, capability), strict=True):
        if not node.part:
            parts["launches"] += 1e-3 * took.launch
            parts["slots" if took.slots > took.bytes else "bytes"] += 1e-3 * took.work
            kernels[node.name] = kernels.get(node.name, 0.0) + 1e-3 * took.work
    longest = max(kernels, key=lambda name: kernels[name])
    return {"outside_by": parts, "longest": longest, "longest_ms": kernels[longest]}


_PART: ContextVar[str] = ContextVar("part", default="")


class _Counting(TorchDispatchMode):
    """Lists every PyTorch operation that is a kernel as a node, together with Triton's launches."""

    def __init__(self, record: Recording, nodes: list[Node]) -> None:
        super().__init__()
        self._recording, self._nodes, self._seen = record, nodes, 0

    def flush(self) -> None:
        """Add the launches since the last operation."""
        for launch in self._recording.launches[self._seen :]:
            self._nodes.append(Node(launch.name, launch.bytes, launch.part, launch))
        self._seen = len(self._recording.launches)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.flush()
        output = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::").removesuffix("_copy")
        if "::" not in name and name not in _VIEWS and name not in _NOTHING:
            tensors = [part for part in tree_leaves((args, kwargs, output)) if isinstance(part, Tensor)]
            sizes = {id(part): _bytes(part) for part in tensors}
            if name == "embedding":  # reads only the rows that it returns
                sizes[id(args[0])] = _bytes(output)
            self._nodes.append(Node(name, sum(sizes.values()), _PART.get()))
        return output


def _bytes(part: Tensor) -> int:
    """Return the bytes to read of a tensor; the storage of an expanded tensor counts once."""
    return min(part.numel() * part.element_size(), part.untyped_storage().nbytes())


@contextmanager
def _in_part(part: str) -> Iterator[None]:
    """Count everything that runs inside the block as one part."""
    token = _PART.set(part)
    try:
        yield
    finally:
        _PART.reset(token)


class _Marked:
    """A decoder whose operations count as one part."""

    def __init__(self, decoder: DeviceDecoder, part: str) -> None:
        self._decoder, self._part = decoder, part
        self.config, self.rows, self.dtype, self.places = decoder.config, decoder.rows, decoder.dtype, decoder.places

    def embed(self, tokens: Tensor) -> Tensor:
        with _in_part(self._part):
            return self._decoder.embed(tokens)

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        with _in_part(self._part):
            return self._decoder.hidden(embeddings, positions, attend)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        with _in_part(self._part):
            return self._decoder.draft_hidden(tokens, features, parents, positions, attend)

    def logits(self, features: Tensor) -> Tensor:
        with _in_part(self._part):
            return self._decoder.logits(features)


@cache
def _fake_tensors() -> FakeTensorMode:
    """One mode for all counts, so that they share decoders."""
    return FakeTensorMode()


def narrow_layers(model: Decoder, form: str) -> None:
    """Store the matrices of layers as "int8", "int8/64" (in groups of 64), "fp8", or "half" (float16, no scales)."""
    kind, _, group_size = form.partition("/")
    if kind in QUANTISED_TYPES:
        quantise_layers(model, QUANTISED_TYPES[kind], int(group_size) if group_size else None)
        return
    for layer, name in product(model.layers, MATRICES):
        linear = getattr(layer, name)
        setattr(layer, name, WeightOnlyLinear(linear.weight.detach().half(), None, linear.bias))


@cache
def _on_a_gpu(
    config: DecoderConfig, dtype: torch.dtype, device: torch.device, rows: int, quantization: str | None = None
) -> DecoderForward:
    """Return a forward without numbers that does the same as on a GPU, on whatever device its shapes are."""
    model = shapes_alone(config, dtype, device)
    if quantization is not None:
        narrow_layers(model, quantization)
    forward = DecoderForward(model, rows)
    forward.mixed_precision_head = dtype != torch.float32
    return forward


class _Uncounted:
    """A `DeviceGraph` that launches nothing, because the kernels of an engine are not counted."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        return lambda: None


def count(program: Callable[[], None], part_of: Callable[[], str] = _PART.get) -> Program:
    """Run `program` on fake tensors and list its nodes."""
    nodes: list[Node] = []
    with recording(part_of) as record:
        counting = _Counting(record, nodes)
        with counting:
            program()
        counting.flush()
    return Program(tuple(nodes), tuple(record.launches))


def count_cycle(
    config: DecoderConfig,
    method: DeviceForm,
    batch: int,
    rows: int = 2,
    dtype: torch.dtype = torch.bfloat16,
    line_token: int | None = None,
    engine: bool = False,
    choice: Choice = NOTHING,
    quantization: str | None = None,
) -> Program:
    """Count a cycle of `method` in a model's sizes, without a device.

    PyTorch raises DataDependentOutputException if something would wait.

    Args:
        config: Sizes and options of the target.
        method: The device form of the method.
        batch: Number of batch slots.
        rows: 1, or 2 for a guidance pair.
        dtype: Type of the weights.
        line_token: See `DeviceCycle`.
        engine: Whether to count only what surrounds the passes of an engine, instead of torch's forward passes.
        choice: What the policy chose, without its read-back.
        quantization: The form of the layers' weights, see `narrow_layers`.
    """
    device = torch.device("cuda" if torch.backends.cuda.is_built() else "cpu")
    with _fake_tensors(), torch.no_grad():
        graphs = EngineGraphs(_Uncounted(), _Uncounted())

        def forward(config: DecoderConfig) -> DeviceDecoder:
            if engine:
                table = torch.empty(config.vocab_size + config.cond_ids, config.dim, dtype=dtype, device=device)
                return EngineForward(config, table, rows, graphs)
            return _on_a_gpu(config, dtype, device, rows, quantization)

        target = forward(config)
        drafts = replace(config, layers=1, drafter=True, fc_bias=False, condition="none", cond_ids=0, prefix=1)
        drafter = forward(drafts)
        grid = Grid(config.grid_side, config.width)
        marked, drafting = _Marked(target, "target"), _Marked(drafter, "drafter")
        cycle = method.cycle(marked, drafting, BatchSizes(grid, config.prefix, batch, device, line_token))
        if cycle.chooser is not None:
            cycle.chooser.settle(choice)
        if engine:
            cycle.run()  # binds addresses, which a replayed graph does not do again
        return count(cycle.run)


def count_islands(
    config: DecoderConfig, method: RepairForm, batch: int, rows: int = 2, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Program]:
    """Count the programs "draft", "verify" and "repair" of `method` as `count_cycle` does; see `IslandCycle.stages`.

    The small target has the sizes of the large one, on a grid `method.ratio` times smaller.
    """
    # Needs packages that `count_cycle` does not need.
    from underpaint.models.sampler import SamplerConfig, TokenSampler

    device = torch.device("cuda" if torch.backends.cuda.is_built() else "cpu")
    with _fake_tensors(), torch.no_grad():
        grid = Grid(config.grid_side, config.width)
        small = Grid(grid.height // method.ratio, grid.width // method.ratio)
        low = replace(config, grid_side=small.height, grid_width=small.width)
        target, drafter = (_on_a_gpu(one, dtype, device, rows) for one in (config, low))
        with torch.device(device):
            enlarge = TokenSampler(SamplerConfig("up", config.vocab_size, method.ratio))

        def enlarged(tokens: Tensor) -> Tensor:
            with _in_part("sampler"):
                return cast(Tensor, enlarge(tokens))

        drafts = LowDraft(_Marked(drafter, "drafter"), enlarged, small, config.prefix)
        cycle = IslandCycle(_Marked(target, "target"), drafts, method, grid, config.prefix, batch, device)
        names = ("draft", "verify", "repair")
        return {name: count(run) for name, (run, _) in zip(names, cycle.stages, strict=True)}
