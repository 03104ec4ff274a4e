"""Pads passes of a live model to one size, to run several drawings at once or to compile only a few sizes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device.capture import GraphCapture
from underpaint.runtime.live.memory import KeyValueTensors, PlacedCache, StaticCache
from underpaint.runtime.live.model import LiveModel, LiveModelError

SIZES: Final = (1, 8, 16, 32, 64)
"""Numbers of new positions of compiled passes; a pass uses the next larger size. Longer passes are not padded."""

Outputs: TypeAlias = tuple[Tensor, Tensor]
"""The last hidden states for the head, and the states that a drafter reads; see `LiveModel.hidden`."""


class LanePass(NamedTuple):
    """One drawing's pass: embeddings [B, T, D], mask [B, 1, T, S + T] after S slots, position ids [..., B, T]."""

    embeds: Tensor
    mask: Tensor
    positions: Tensor


class PassAnswer(NamedTuple):
    """Logits [B, T, V], states [B, T, F], and the seconds that were spent on other drawings in the meantime."""

    logits: Tensor
    states: Tensor
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class _SizedPass:
    """Input tensors of passes of one size, written in place, and the function that runs them."""

    embeds: Tensor
    mask: Tensor
    positions: Tensor
    places: Tensor
    run: Callable[[], Outputs]

    def fill(self, rows: slice, one: LanePass | None, end: int) -> None:
        """Write a lane's pass; the last position is repeated as padding.

        Args:
            rows: The lane's rows.
            one: Its pass; None for an idle lane, whose new positions are written to unused slots.
            end: The first unused slot of the lane's cache.
        """
        size = self.embeds.shape[1]
        if one is None:
            self.mask[rows] = 0.0  # the result is not used, but it must be finite
            self.places[rows] = torch.arange(end, end + size, device=self.places.device)
            return
        count, seen = one.mask.shape[-2:]
        self.places[rows] = torch.arange(seen - count, seen - count + size, device=self.places.device)
        self.mask[rows] = torch.finfo(self.mask.dtype).min
        self.mask[rows, :, :count, :seen], self.mask[rows, :, count:, :seen] = one.mask, one.mask[:, :, -1:]
        self.embeds[rows, :count], self.embeds[rows, count:] = one.embeds, one.embeds[:, -1:]
        self.positions[..., rows, :count], self.positions[..., rows, count:] = one.positions, one.positions[..., -1:]


class PaddedPasses:
    """Runs the passes of several drawings as one; each has its own length, positions and mask.

    Every drawing has a lane: B rows of one cache. Its new positions are written after its own committed ones.
    """

    def __init__(
        self, live: LiveModel, rows: int, lanes: int = 1, layers: Sequence[int] = (), *, compiled: bool = False
    ) -> None:
        """Allocate the cache of all lanes.

        Args:
            live: The model.
            rows: B, the number of sequences per drawing.
            lanes: Number of drawings.
            layers: Hidden states that drafters read; see `LiveModel.hidden`.
            compiled: Whether to compile the body at a few sizes, and capture each as a graph on a CUDA device.

        Raises:
            LiveModelError: The model's passes cannot be padded.
        """
        check_padded(live)
        self.lanes, self._live, self._rows, self._layers, self._compiled = lanes, live, rows, tuple(layers), compiled
        self._like = next(live.body.parameters())
        self._tensors = KeyValueTensors(live.decoder, rows * lanes, self._like)
        self._sized: dict[tuple[int, int], _SizedPass] = {}
        self._memories = [
            StaticCache(live.decoder, rows, self._like, self._tensors, lane * rows) for lane in range(lanes)
        ]

    def memory(self, lane: int) -> StaticCache:
        """Return the cache of a lane."""
        return self._memories[lane]

    def forget(self, lane: int) -> None:
        """Clear a lane's cache, because its picture is finished or abandoned."""
        self._memories[lane].reset()

    def takes(self, count: int) -> bool:
        """Return whether passes over this many positions are padded here; else a drawing runs them alone."""
        return not self._compiled or count <= SIZES[-1]

    def ask(self, lane: int, inputs: LanePass) -> PassAnswer:
        """Run the pass of one lane; subclasses may combine it with those of others."""
        return self.run({lane: inputs})[lane]

    @torch.inference_mode()  # needed in any thread: a drawing that ends runs the pass that the others wait for
    def run(self, inputs: Mapping[int, LanePass]) -> dict[int, PassAnswer]:
        """Run one pass of these lanes; the caches of the other lanes do not change."""
        size = max(one.mask.shape[-2] for one in inputs.values())
        if self._compiled:
            size = next(each for each in SIZES if each >= size)
        reach = size + max(one.mask.shape[-1] - one.mask.shape[-2] for one in inputs.values())
        lanes = range(self.lanes) if self._compiled else range(min(inputs), max(inputs) + 1)
        ends = {lane: self._memories[lane].end for lane in lanes}
        reach = max(reach, *(size + ends[lane] for lane in lanes if lane not in inputs), 0)
        self._tensors.reserve(reach)
        example = next(iter(inputs.values()))
        sized = self._pass_of(lanes, size, self._tensors.slots if self._compiled else reach, example)
        rows = {lane: slice(at * self._rows, (at + 1) * self._rows) for at, lane in enumerate(lanes)}
        for lane, lane_rows in rows.items():
            sized.fill(lane_rows, inputs.get(lane), ends[lane])
        hidden, states = sized.run()
        counts = {lane: one.mask.shape[-2] for lane, one in inputs.items()}
        read = [hidden[rows[lane], :count].flatten(0, 1) for lane, count in counts.items()]
        together: Any = self._live.head(torch.cat(read))
        logits = together.split([len(each) for each in read])
        return {
            lane: PassAnswer(lane_logits.unflatten(0, (self._rows, count)), states[rows[lane], :count])
            for lane_logits, (lane, count) in zip(logits, counts.items(), strict=True)
        }

    def _pass_of(self, lanes: range, size: int, slots: int, example: LanePass) -> _SizedPass:
        """The pass of a size; compiled passes are kept per size, and their tensors stay at the same addresses."""
        sized = self._sized.get((size, slots)) if self._compiled else None
        if sized is None:
            count = len(lanes) * self._rows
            embeds = example.embeds.new_zeros(count, size, example.embeds.shape[-1])
            mask = example.mask.new_zeros(count, 1, size, slots)
            positions = example.positions.new_zeros(*example.positions.shape[:-2], count, size)
            places = torch.zeros(count, size, dtype=torch.int64, device=embeds.device)
            rows = slice(lanes.start * self._rows, lanes.stop * self._rows)
            cache = PlacedCache(self._tensors, rows, places, slots)
            live = self._live
            if self._compiled:
                compiled: Any = torch.compile  # its type stubs lack some parameters
                live = replace(live, body=compiled(live.body, dynamic=False, isolate_recompiles=True))

            def run() -> Outputs:
                return live.hidden(
                    self._layers,
                    inputs_embeds=embeds,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                )

            captured = captured_graph(run, embeds.get_device()) if self._compiled and captures(embeds) else run
            sized = _SizedPass(embeds, mask, positions, places, captured)
            if self._compiled:
                self._sized[size, slots] = sized
        return sized


def captures(tensor: Tensor) -> bool:
    """Return whether passes over tensors like this one can be captured as CUDA graphs."""
    return tensor.is_cuda


def captured_graph(run: Callable[[], Outputs], device: int) -> Callable[[], Outputs]:
    """Return a function that replays `run` as a CUDA graph, reading and writing the same tensors as `run`.

    The graph is captured at the first call, when the tensors already hold a pass: warm-up passes write to the cache.

    Args:
        run: The pass.
        device: Index of the GPU that it runs on.
    """
    captured: list[tuple[torch.cuda.CUDAGraph, Outputs]] = []

    def replay() -> Outputs:
        with torch.cuda.device(device):  # each thread has a current device of its own
            if not captured:
                captured.append(GraphCapture(device)(run))
            captured[0][0].replay()
        return captured[0][1]

    return replay


def pads_passes(live: LiveModel) -> bool:
    """Return whether the model's layers accept a cache that is written at given slots."""
    return not isinstance(live.config, DecoderConfig)


def check_padded(live: LiveModel) -> None:
    """Raise LiveModelError unless the model's passes can be padded."""
    if not pads_passes(live):
        raise LiveModelError(
            f"batch and compile: expected a model of transformers, got {live.family}, which this project runs itself; "
            "leave them out, or draw batches of its export with --backend device"
        )


def check_compiled(live: LiveModel) -> None:
    """Raise LiveModelError if the model's passes cannot be compiled on this machine."""
    check_padded(live)
    devices = {weight.device for weight in live.body.parameters()}
    if len(devices) > 1:
        raise LiveModelError(
            f"compile: expected a model on one device, got one on {len(devices)}; load it without device_map, or leave "
            "compile out"
        )
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if next(iter(devices)).type == "cpu" and shutil.which(compiler) is None:
        raise LiveModelError(
            f"compile: expected a C++ compiler for passes on the CPU, got no {compiler}; install one, name it in "
            "CXX, or leave compile out"
        )
