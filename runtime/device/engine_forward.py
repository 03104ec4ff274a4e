"""Forward passes by an engine, bound to the device state's own addresses: what `decoder.DecoderForward` is in torch.

The engine runs the layers and the head; PyTorch looks tokens up, and one kernel turns lengths and masks into a bias.
Addresses are bound once for a cache and a number of new positions. A pass in a captured graph then copies its inputs to
those addresses, runs, and copies new keys and values to their slots, unless the engine writes them there itself.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from underpaint.artifacts import device_graph as names
from underpaint.artifacts.decoder_graph import (
    BIAS,
    CELLS,
    FEATURES,
    LOGITS,
    MASKED_SCORE,
    new_key,
    new_value,
    past_key,
    past_value,
)
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.decoder import code_table
from underpaint.runtime.device.forwards import Attend, Cache, CachedPass, Fill, Prefill
from underpaint.runtime.device.kernels.bias import bias
from underpaint.runtime.device.kernels.draft_inputs import draft_inputs
from underpaint.runtime.engines.device_memory import aligned, layered


class DeviceGraph(Protocol):
    """A graph of `artifacts.device_graph` on an engine."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        """What runs it on the current stream, reading and writing at these tensors' addresses from now on.

        The tensors must outlive what is given back. Raises EngineError on sizes that the engine was not built for.
        """
        ...


class EngineGraphs(NamedTuple):
    """A decoder on an engine."""

    layers: DeviceGraph
    head: DeviceGraph


class _Bound(NamedTuple):
    """A pass of T new positions. inputs, made: the buffers; fresh [K, 2, R, H, T, hd]: new keys and values.

    fresh is None where they go to their slots at once.
    """

    inputs: dict[str, Tensor]
    made: Tensor
    fresh: Tensor | None
    run: Callable[[], None]


class EngineForward:
    """A `DeviceDecoder` whose layers and head an engine runs; rows: 1, or 2 for a guidance pair.

    What a method gives back is overwritten by its next call of the same size.
    """

    def __init__(self, model: Decoder, rows: int, engine: EngineGraphs) -> None:
        self.config, self.rows, self.fixed_batch = model.config, rows, True
        self.codes, self.line_token = code_table(model)
        self.dtype, self._engine, self._reads_features = self.codes.dtype, engine, model.fc is not None
        if model.fc is not None:
            weight, shift = model.fc.weight.detach(), model.fc.bias
            ours = weight[:, model.config.dim :].float()
            self.codes = linear(self.codes.float(), ours, None if shift is None else shift.detach().float())
            self.codes = self.codes.to(self.dtype)
        self._passes: WeakKeyDictionary[Cache, dict[tuple[bool, int], _Bound]] = WeakKeyDictionary()
        self._heads: dict[tuple[int, int], tuple[Tensor, Tensor, Callable[[], None]]] = {}

    def embed(self, tokens: Tensor) -> Tensor:
        """See `DeviceDecoder`; of a drafter, what its input layer makes of the tokens' embeddings."""
        return embedding(tokens.repeat(self.rows, 1), self.codes)

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        rows, count, _ = embeddings.shape
        if isinstance(attend, Fill):
            raise ValueError("device: an engine makes no pass over a whole picture; let torch make it")
        bound = self._bound(attend, rows, count)
        bound.inputs[names.EMBEDDINGS].copy_(embeddings)
        return self._run(bound, positions, attend)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        if not self._reads_features or not isinstance(attend, CachedPass):
            raise ValueError("device: expected a drafter and a pass over new positions")
        bound = self._bound(attend, features.shape[0], tokens.shape[1])
        draft_inputs(tokens, self.codes, features, parents, bound.inputs[FEATURES], bound.inputs[names.EMBEDDINGS])
        return self._run(bound, positions, attend)

    def _run(self, bound: _Bound, positions: Tensor, attend: CachedPass | Prefill) -> Tensor:
        """The features that a bound pass makes, its embeddings (and a drafter's features) being in place."""
        count = positions.shape[1]
        bound.inputs[CELLS].view(self.rows, *positions.shape).copy_(positions)
        cache, held = attend.cache, bound.inputs[BIAS]
        if isinstance(attend, Prefill):
            held.fill_(float(MASKED_SCORE))
            held[:, :, -count:].masked_fill_(attend.sees(count)[:, 0], 0.0)
        else:
            size, slots = cache.committed.shape[4], cache.slots.shape[4] if self._reads_features else 0
            bias(attend.lengths, cache.unseen, attend.masks, held, size, slots, attend.first, attend.filled)
        bound.run()
        if bound.fresh is not None:
            kept, first = (cache.committed, 0) if isinstance(attend, Prefill) else (cache.slots, attend.first)
            kept.narrow(4, first, count).copy_(bound.fresh)
        return bound.made

    def logits(self, features: Tensor) -> Tensor:
        rows, count, width = features.shape
        if (rows, count) not in self._heads:
            given = aligned((rows, count, width), self.dtype, features.device)
            made = aligned((rows, count, self.config.vocab_size), torch.float32, features.device)
            self._heads[rows, count] = given, made, self._engine.head.bind({FEATURES: given}, {LOGITS: made})
        given, made, run = self._heads[rows, count]
        given.copy_(features)
        run()
        return made

    def _bound(self, attend: CachedPass | Prefill, rows: int, count: int) -> _Bound:
        """The bound pass of this size over this cache; made where it is the first."""
        prefill = isinstance(attend, Prefill)
        known = self._passes.setdefault(attend.cache, {})
        if (prefill, count) not in known:
            if prefill:  # conditions have many lengths: the last one's buffers are kept
                for other in [size for size in known if size[0]]:
                    del known[other]
            known[prefill, count] = self._bind(attend, rows, count)
        return known[prefill, count]

    def _bind(self, attend: CachedPass | Prefill, rows: int, count: int) -> _Bound:
        cache, config, drafts = attend.cache, self.config, self._reads_features
        committed, slots = cache.committed, cache.slots
        if not drafts and isinstance(attend, CachedPass) and attend.first != 0:
            raise ValueError(f"device: a target's pass takes the slots from 0 on, got {attend.first}")

        def zeros(*sizes: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return aligned(sizes, dtype, committed.device)

        wide = (rows, count, config.dim)
        seen = committed.shape[4] + (slots.shape[4] if drafts else 0) + count
        inputs = {
            names.EMBEDDINGS: zeros(*wide),
            CELLS: zeros(rows, count, dtype=torch.int64),
            BIAS: zeros(rows, count, seen, dtype=torch.float32),
        }
        if drafts:
            inputs[FEATURES] = zeros(*wide)
        own = drafts or isinstance(attend, Prefill) or slots.shape[4] != count
        fresh = slots
        if own:
            new = (rows, config.kv_heads, count, config.head_dim)
            fresh = layered(2 * config.layers, new, self.dtype, committed.device).view(config.layers, 2, *new)
        made = zeros(*wide)
        caches, outputs = dict[str, Tensor](), {names.made_features(drafts): made}
        for layer in range(config.layers):
            caches[past_key(layer)], caches[past_value(layer)] = committed[layer]
            if drafts:
                caches[names.slot_key(layer)], caches[names.slot_value(layer)] = slots[layer]
            outputs[new_key(layer)], outputs[new_value(layer)] = fresh[layer]
        run = self._engine.layers.bind({**inputs, **caches}, outputs)
        return _Bound(inputs, made, fresh if own else None, run)
