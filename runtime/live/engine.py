"""A live torch decoder as an engine: every method draws with it as it does with exported graphs."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft.spec import FusedTreeSpec
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.cache import CacheOwner, KeyValueCache
from underpaint.runtime.engines.condition_encoder import ConditionEncoder, EncodedCondition
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.engine import PassOutput, PassTimer, check_cells
from underpaint.runtime.engines.eol_tokens import EolLayout
from underpaint.runtime.engines.torch_sampling import sampled_probs
from underpaint.runtime.live.memory import StaticCache
from underpaint.runtime.live.model import Ids, LiveModel


class TorchEngine(CacheOwner):
    """Implements `engines.engine.Engine` on a live model.

    Guidance, temperature, top-k and top-p are applied where the logits are; distributions alone come to the host.
    """

    fuses_chains = fuses_trees = False

    def __init__(self, live: LiveModel, rows: int, *, features: bool = False, logits: bool = False) -> None:
        """Open an engine.

        Args:
            live: The model.
            rows: B, sequences of a pass.
            features: Whether passes return hidden states, for drafters.
            logits: Whether passes return logits as well as distributions, for checks.
        """
        self.live, self.config, self.rows, self.cost = live, live.decoder, rows, PassTimer()
        self._like = next(live.body.parameters())
        self.memory = StaticCache(self.config, rows, self._like)
        self.cache = KeyValueCache(self.memory, rows)
        self._eol = EolLayout(self.config)
        self._features, self._logits = features, logits
        self._params = live.sampling
        self._padding = np.zeros((rows, 1), dtype=np.int64)
        self._prompt = 0

    @property
    def makes_probs(self) -> bool:
        return True

    def sample_by(self, params: SamplingParams) -> None:
        self._params = params

    def begin(self, hidden: Sequence[int] = (), cond_rows: NDArray[np.float32] | None = None) -> None:
        self.cache.clear(hidden)
        self._padding = np.array(tuple(hidden) or (0,) * self.rows, dtype=np.int64)[:, None]

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
        if features is not None or chain_levels > 1 or tree is not None:
            raise EngineError("live model: it drafts nothing; give the drafter an engine of its own")
        check_cells(self.config, cells)
        started = perf_counter()
        device, count = self._like.device, cells.shape[-1]
        ids = torch.tensor(np.broadcast_to(tokens, (self.rows, count)), device=device)
        if not self.slots:
            self._prompt = int(np.count_nonzero(np.atleast_2d(cells)[0] < 0))
        embeds = self._embed(ids)
        out = self.live.body(
            inputs_embeds=embeds,
            attention_mask=self._mask(bias, past_bias, count).to(embeds.dtype),
            position_ids=self._positions(cells, count),
            past_key_values=self.memory,
            use_cache=True,
        )
        hidden: Tensor = out.last_hidden_state
        logits = self.live.head(hidden).float()
        probs = sampled_probs(logits, self._params)
        result = PassOutput(
            logits=logits.cpu().numpy() if self._logits else np.empty((self.rows, count, 0), dtype=np.float32),
            features=hidden.float().cpu().numpy()
            if self._features
            else np.empty((self.rows, count, 0), dtype=np.float32),
            probs=probs.cpu().numpy(),
        )
        self.cost.passes, self.cost.positions = self.cost.passes + 1, self.cost.positions + count
        self.cost.seconds += perf_counter() - started
        return result

    def _embed(self, ids: Tensor) -> Tensor:
        """Embeddings [B, T, D] of tokens [B, T]: codes, and behind them vocabulary ids."""
        codes = self.config.vocab_size
        is_code = ids < codes
        if bool(is_code.all()):
            return self.live.embed_codes(ids)
        others = self.live.embed_ids((ids - codes).clamp(min=0))
        if not bool(is_code.any()):
            return others
        return torch.where(is_code[..., None], self.live.embed_codes(ids.clamp(max=codes - 1)), others)

    def _mask(self, bias: FloatArray, past_bias: FloatArray | None, count: int) -> Tensor:
        """The additive mask [B, 1, T, S + T] of a pass."""
        past = self.past_bias if past_bias is None else np.asarray(past_bias)
        whole = np.empty((self.rows, count, self.slots + count), dtype=np.float32)
        whole[:, :, : self.slots] = past if past.ndim > 1 else past[None]
        whole[:, :, self.slots :] = bias
        mask = torch.from_numpy(whole).to(self._like.device)[:, None]
        return mask.masked_fill(mask <= float(MASKED_SCORE), torch.finfo(self._like.dtype).min)

    def _positions(self, cells: IntArray, count: int) -> Tensor:
        """Position ids of cells: a row's padding takes no place, as in the model's own `generate`."""
        prompt = (cells < 0) & (cells >= -self._prompt)
        drawn = self._eol.places(np.where(prompt, 0, cells))
        places = np.broadcast_to(self._prompt + np.where(prompt, cells, drawn), (self.rows, count)) - self._padding
        device = self._like.device
        lengths = torch.from_numpy(self._prompt - self._padding).to(device)
        return self.live.position_ids(torch.from_numpy(places.clip(min=0)).to(device), lengths)

    def commit(self, positions: IntArray | slice, counts: Sequence[int] | None = None) -> None:
        self.cache.commit(positions, counts)

    def write_scratch(self, behind: int) -> int:
        return self.cache.write_scratch(behind)

    def write_at(self, positions: IntArray, slots: IntArray) -> None:
        self.cache.write_at(positions, slots)

    def close(self) -> None:
        del self.memory, self.cache


class LiveDecoder:
    """Implements `engines.engine.LoadedDecoder`."""

    row_counts: tuple[int, ...] | None = None

    def __init__(self, live: LiveModel, *, features: bool = False, logits: bool = False) -> None:
        """See `TorchEngine`."""
        self.live, self.name = live, live.family
        self._features, self._logits = features, logits

    @property
    def config(self) -> DecoderConfig:
        return self.live.decoder

    def max_positions(self, rows: int) -> int | None:
        return None

    def open(self, rows: int) -> TorchEngine:
        return TorchEngine(self.live, rows, features=self._features, logits=self._logits)


class LiveEncoder(ConditionEncoder):
    """Encodes prompts of ids; the second row is the family's, or a negative prompt of any length."""

    def __init__(self, live: LiveModel) -> None:
        super().__init__(live.decoder)
        self._live = live

    def encode(self, condition: Condition) -> EncodedCondition:
        """Both rows, the shorter one padded in front; padding is hidden.

        Raises:
            LiveModelError: An id out of range, a prompt that is too long, or one that begins no picture.
        """
        live = self._live
        prompt = live.check_prompt((*condition.ids, *live.appended))
        live.check_start(prompt)
        if condition.uncond_ids is None and live.uncond is None:
            return EncodedCondition(np.array([prompt]) + live.codes, (0,))
        absent = live.check_prompt(self._absent(prompt, condition.uncond_ids), "negative prompt")
        rows = _padded(prompt, absent)
        return EncodedCondition(rows + live.codes, (rows.shape[1] - len(prompt), rows.shape[1] - len(absent)))

    def _absent(self, prompt: Ids, given: Ids | None) -> Ids:
        if given is not None:
            return given
        assert self._live.uncond is not None
        return self._live.uncond(prompt)


def _padded(prompt: Ids, absent: Ids) -> IntArray:
    longest = max(len(prompt), len(absent))
    return np.array([(0,) * (longest - len(row)) + row for row in (prompt, absent)], dtype=np.int64)
