"""Runs a live torch decoder as an engine, so that every method works as with exported graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.conditions import Condition, ConditionEncoder, EncodedCondition
from underpaint.runtime.engines.cache import KeyValueCache
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import PassOutput, PassTimer, call_kind, check_cells
from underpaint.runtime.engines.pass_inputs import EolLayout
from underpaint.runtime.engines.torch_sampling import guided_rows, sampled_probs
from underpaint.runtime.live.memory import StaticCache
from underpaint.runtime.live.model import Ids, LiveModel, LiveModelError
from underpaint.runtime.live.padded import LanePass, PaddedPasses

_USUAL_PROMPT: Final = 32
"""Number of prompt ids before the passes that are timed."""


class TorchPasses:
    """Shared base of engines that run a torch module: cache, sampling on the device, masks and timing."""

    fuses_chains = fuses_trees = False
    logits_to_host = False
    """Whether passes also return logits, for comparisons of passes."""
    by_kernels: bool | None = None
    """Whether the device runtime's kernel computes distributions; None: only on a GPU."""

    def __init__(self, config: DecoderConfig, rows: int, like: Tensor, memory: StaticCache | None = None) -> None:
        """Open an engine; `like` is a tensor of the caches' dtype and device; `memory` None allocates a cache."""
        self.config, self.rows, self.cost, self._like = config, rows, PassTimer(), like
        self.guided: Tensor | None = None
        """[T, V] float32: the guided logits of the last pass, on the device of the logits."""
        self._idle = 0.0
        """Seconds of the current pass that were spent on other drawings."""
        self.memory = StaticCache(config, rows, like) if memory is None else memory
        self.cache = KeyValueCache(self.memory, rows)
        self._params = SamplingParams()

    def sample_by(self, params: SamplingParams) -> None:
        self._params = params

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)

    @torch.inference_mode()
    def run(
        self,
        tokens: IntArray,
        cells: IntArray,
        bias: FloatArray,
        past_bias: FloatArray | None = None,
        features: FloatArray | None = None,
        chain_levels: int = 1,
        tree: FusedTreeSpec | None = None,
    ) -> PassOutput:
        if (features is not None) != self.config.drafter or chain_levels > 1 or tree is not None:
            reads = "features" if self.config.drafter else "no features"
            raise EngineError(f"live model: expected {reads}, and one level a pass; it fuses no chain and no tree")
        self._check(cells)
        started, count, self._idle = perf_counter(), cells.shape[-1], 0.0
        ids = torch.tensor(np.broadcast_to(tokens, (self.rows, count)), device=self._like.device)
        logits, hidden = self._forward(ids, cells, self._bias(bias, past_bias, count), features)
        whole = logits.float()
        self.guided = guided_rows(whole, self._params)
        by_kernels = whole.is_cuda if self.by_kernels is None else self.by_kernels
        kernel = sampling_kernel(whole.shape[-1]) if by_kernels else None
        with torch.cuda.device(whole.get_device()):  # kernels launch on this device; each thread has its own
            probs = (kernel or sampled_probs)(whole, self._params).cpu().numpy()
        read = whole.cpu().numpy() if self.logits_to_host else _none(self.rows, count)
        result = PassOutput(logits=read, features=hidden, probs=probs)
        self.cost.add(call_kind(self.cache, count), count, perf_counter() - started - self._idle)
        return result

    def _check(self, cells: IntArray) -> None:
        """Raise EngineError if a pass leaves the grid."""
        check_cells(self.config, cells)

    def _forward(
        self, ids: Tensor, cells: IntArray, bias: Tensor, features: FloatArray | None
    ) -> tuple[Tensor, NDArray[np.float32]]:
        """Run tokens [B, T] under `bias`; returns logits [B, T, V], and features [B, T, D] or [B, T, 0] on the host."""
        raise NotImplementedError

    def _bias(self, bias: FloatArray, past_bias: FloatArray | None, count: int) -> Tensor:
        """Return the attention bias [B, T, S + T] of a pass, joined from those of the cache and the caller."""
        past = self.cache.past_bias if past_bias is None else np.asarray(past_bias)
        whole = np.empty((self.rows, count, self.cache.slots + count), dtype=np.float32)
        whole[:, :, : self.cache.slots] = past if past.ndim > 1 else past[None]
        whole[:, :, self.cache.slots :] = bias
        return torch.from_numpy(whole).to(self._like.device)

    def close(self) -> None:
        del self.memory, self.cache


@cache
def sampling_kernel(codes: int) -> Callable[[Tensor, SamplingParams], Tensor] | None:
    """The device runtime's kernel for distributions; None without Triton, or with more codes than it supports."""
    try:
        from underpaint.runtime.device.kernels.probs import sampled_probs as by_kernel
        from underpaint.runtime.device.kernels.walk import MOST_TOKENS
    except ImportError:
        return None
    return by_kernel if codes <= MOST_TOKENS else None


def _none(rows: int, count: int) -> NDArray[np.float32]:
    """Return an empty array [B, T, 0] for outputs that nobody reads."""
    return np.empty((rows, count, 0), dtype=np.float32)


class PromptPass(NamedTuple):
    """The prefill: tokens [B, P] as passes read them, features [B, P, F], and the left padding of each row."""

    tokens: IntArray
    features: NDArray[np.float32]
    padding: tuple[int, ...]


class TorchEngine(TorchPasses):
    """Implements `engines.engine.Engine` with a live model.

    Guidance, temperature, top-k and top-p are applied on the device of the logits; only distributions are copied to
    the host.
    """

    def __init__(
        self,
        live: LiveModel,
        rows: int,
        *,
        features: tuple[int, ...] | None = None,
        passes: PaddedPasses | None = None,
        lane: int = 0,
    ) -> None:
        """Open an engine.

        Args:
            live: The model.
            rows: B, the number of sequences in a pass.
            features: Hidden states that passes return, concatenated, for drafters: see `LiveModel.hidden`. None
                returns none.
            passes: Pads the passes after the prefill; None runs each pass unpadded.
            lane: The lane of `passes` that this engine uses.
        """
        memory = None if passes is None else passes.memory(lane)
        super().__init__(live.decoder, rows, next(live.body.parameters()), memory)
        self.live, self._features, self._passes, self._lane = live, features, passes, lane
        self._eol = EolLayout(self.config)
        self._padding = np.zeros((rows, 1), dtype=np.int64)
        self._prompt = 0
        self._cond_rows: Tensor | None = None
        """[C, D], the embedded condition, for a model that reads features."""
        self.prompt: PromptPass | None = None

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        super().begin(hidden)
        self._cond_rows = None if cond_rows is None else torch.from_numpy(cond_rows).to(self._like)
        self._padding = np.array(tuple(hidden) or (0,) * self.rows, dtype=np.int64)[:, None]

    def _forward(
        self, ids: Tensor, cells: IntArray, bias: Tensor, features: FloatArray | None
    ) -> tuple[Tensor, NDArray[np.float32]]:
        if not self.cache.slots:
            self._prompt = int(np.count_nonzero(np.atleast_2d(cells)[0] < 0))
        embeds, count = self.live.embed(ids, self._cond_rows), ids.shape[1]
        mask = bias[:, None].masked_fill(bias[:, None] <= float(MASKED_SCORE), torch.finfo(self._like.dtype).min)
        inputs = LanePass(embeds, mask.to(embeds.dtype), self._positions(cells, count))
        if self._passes is None or not self.cache.slots or not self._passes.takes(count):
            logits, states = self._run_alone(inputs)
        else:
            logits, states, self._idle = self._passes.ask(self._lane, inputs)
            self.memory.wrote(count)
        if self._features is None:
            return logits, _none(self.rows, count)
        read = states.float().cpu().numpy()
        if not self.cache.slots:
            self.prompt = PromptPass(ids.cpu().numpy(), read, tuple(self._padding[:, 0].tolist()))
        return logits, read

    def _run_alone(self, inputs: LanePass) -> tuple[Tensor, Tensor]:
        """Logits and states of an unpadded pass."""
        hidden, states = self.live.hidden(
            self._features or (),
            inputs_embeds=inputs.embeds,
            attention_mask=inputs.mask,
            position_ids=inputs.positions,
            past_key_values=self.memory,
            use_cache=True,
        )
        return self.live.head(hidden), states

    def _positions(self, cells: IntArray, count: int) -> Tensor:
        """Position ids of cells; the padding of a row takes no position, as in the model's own `generate`."""
        prompt = (cells < 0) & (cells >= -self._prompt)
        offsets = self._eol.places(np.where(prompt, 0, cells))
        places = np.broadcast_to(self._prompt + np.where(prompt, cells, offsets), (self.rows, count)) - self._padding
        device = self._like.device
        lengths = torch.from_numpy(self._prompt - self._padding).to(device)
        return self.live.position_ids(torch.from_numpy(places.clip(min=0)).to(device), lengths)


class LiveDecoder:
    """Implements `engines.engine.LoadedDecoder`."""

    row_counts: tuple[int, ...] | None = None

    def __init__(
        self,
        live: LiveModel,
        *,
        features: tuple[int, ...] | None = None,
        logits: bool = False,
        compiled: bool = False,
        passes: PaddedPasses | None = None,
        lane: int = 0,
    ) -> None:
        """Make a decoder of a live model.

        Args:
            live: The model.
            features: See `TorchEngine`.
            logits: Whether passes also copy logits to the host.
            compiled: Whether passes are padded to a few sizes and compiled; see `PaddedPasses`.
            passes: See `TorchEngine`; it must have as many rows as the engines that are opened.
            lane: See `TorchEngine`.
        """
        self.live, self.name, self._features, self._logits = live, live.family, features, logits
        self._compiled, self._passes, self._lane = compiled, passes, lane

    @property
    def config(self) -> DecoderConfig:
        return self.live.decoder

    def max_positions(self, rows: int) -> int | None:
        return None

    def open(self, rows: int) -> TorchEngine:
        passes = self._passes
        if self._compiled:
            passes = PaddedPasses(self.live, rows, layers=self._features or (), compiled=True)
        engine = TorchEngine(self.live, rows, features=self._features, passes=passes, lane=self._lane)
        engine.logits_to_host = self._logits
        return engine


class LiveEncoder(ConditionEncoder):
    """Encodes prompt ids or features; the second row comes from the family, or is a negative prompt of any length."""

    def __init__(self, live: LiveModel) -> None:
        super().__init__(live.decoder, live.features)
        self._live = live

    def encode(self, condition: Condition) -> EncodedCondition:
        """Encode both guidance rows; the shorter one is padded on the left, and the padding is masked.

        Raises:
            LiveModelError: An id out of range, a prompt that is too long, or one that does not start a picture.
        """
        live = self._live
        if live.features is not None:
            if condition.features is None:
                raise LiveModelError(
                    f"prompt: expected features, which {live.family} is conditioned on, got ids; give the .npy file "
                    f"that numpy.save wrote, of at most {live.features.positions} x {live.features.width} numbers"
                )
            return super().encode(condition)
        prompt = live.check_prompt((*condition.ids, *live.appended))
        live.check_start(prompt)
        if condition.uncond_ids is None and live.uncond is None:
            return EncodedCondition(np.array([prompt]) + live.codes, (0,))
        absent = live.check_prompt(self._absent(prompt, condition.uncond_ids), "negative prompt")
        rows = _padded(prompt, absent)
        return EncodedCondition(rows + live.codes, (rows.shape[1] - len(prompt), rows.shape[1] - len(absent)))

    def example(self) -> EncodedCondition:
        """Return an arbitrary prompt of usual length, to time passes."""
        live = self._live
        if live.features is not None:
            return super().example()
        fixed_count = len(live.image_start) + len(live.appended)
        count = min(_USUAL_PROMPT, live.longest_prompt - fixed_count)
        return self.encode(Condition("", (*(0,) * count, *live.image_start)))

    def _absent(self, prompt: Ids, negative_prompt: Ids | None) -> Ids:
        if negative_prompt is not None:
            return negative_prompt
        assert self._live.uncond is not None
        return self._live.uncond(prompt)


def _padded(prompt: Ids, absent: Ids) -> IntArray:
    longest = max(len(prompt), len(absent))
    return np.array([(0,) * (longest - len(row)) + row for row in (prompt, absent)], dtype=np.int64)
