"""Forward passes on the device: the protocol of a decoder, and the KV caches that it attends to."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import scaled_dot_product_attention

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.device_graph import cached_width
from underpaint.models.layers import RMSNorm, normed_heads
from underpaint.models.layers import turn as turn_pairs
from underpaint.runtime.device.kernels.attention import WORD, Filled, attention, most_programs
from underpaint.runtime.device.kernels.commit import Handed, commit_cache
from underpaint.runtime.device.kernels.heads import Heads
from underpaint.runtime.device.kernels.layers import HEADS, product
from underpaint.runtime.device.weight_only import scale_of
from underpaint.runtime.engines.device_memory import aligned, cache_places


class Turns(NamedTuple):
    """Rotation and scaling of queries and keys in one layer, before attention.

    table [places, 2, head_dim / 2] float32: cosine and sine by position, pairs half a head apart, negative positions
    from the end; None for learned positions. scales [2 (H + K), head_dim] float32: scale and shift of normalised
    queries [H, head_dim], then of keys [K, head_dim]; None if they are not normalised.
    """

    table: Tensor | None
    scales: Tensor | None


class CachedPass(NamedTuple):
    """A pass over new positions: data that any engine reads, and, for layers in torch, the attention.

    Attributes:
        cache: Cache whose slots from `first` on take the new positions.
        first: First slot of the new positions.
        lengths: [B] int64, committed positions of each image.
        masks: [B, T, words] int64, the slots that each new position sees.
        live: Committed positions assumed by the count of moved bytes and the choice of splits; see `kernels.attention`.
        filled: The committed positions that are filled, see `kernels.attention`; None for all.
    """

    cache: "Cache"
    first: int
    lengths: Tensor
    masks: Tensor
    live: int
    filled: Filled | None

    def mix(
        self, layer: int, hidden: Tensor, norm: RMSNorm | None, qkv: Linear, turns: Turns, positions: Tensor
    ) -> Tensor:
        """Run a layer's attention and return [R, T, H * head_dim]; the new keys and values go to the slots.

        hidden [R, T, F]: input of `qkv`, before `norm` is applied, if there is one. positions [B, T] int64: cells,
        negative for condition positions.
        """
        cache, (rows, count, _) = self.cache, hidden.shape
        heads, shared, width = cache.heads, cache.slots.shape[3], cache.slots.shape[5]
        query, out = hidden.new_empty(rows, heads, count, width), hidden.new_empty(rows, count, heads * width)
        committed, fresh = cache.committed.select(0, layer), cache.slots.select(0, layer)
        table = hidden if turns.table is None else turns.table
        to = Heads(
            *(query, fresh, table, hidden if turns.scales is None else turns.scales, positions),
            *(self.first, count, fresh.shape[3], rows, positions.shape[0], table.shape[0], heads, shared, width // 2),
        )
        normed = None if norm is None else (norm.weight, norm.eps)
        flags = (turns.table is not None, turns.scales is not None)
        product(hidden, normed, qkv.weight, qkv.bias, to, HEADS.value, *flags, weight_scale=scale_of(qkv))
        buffers = (self.lengths, cache.unseen, self.masks, out, cache.arrivals)
        attention(query, committed, fresh, *buffers, self.live, self.filled)
        return out


class Prefill(NamedTuple):
    """A causal pass over the condition only, which runs outside the captured program."""

    cache: "Cache"

    def sees(self, count: int) -> Tensor:
        """Return bool [R, 1, T, T]: which of `count` positions each one sees. A hidden position sees only itself."""
        unseen = self.cache.unseen
        place = torch.arange(count, device=unseen.device)
        first = unseen[:, None, None, None]
        return (place[None, :] <= place[:, None]) & ((place[None, :] >= first) | (place[None, :] == place[:, None]))

    def __call__(self, layer: int, qkv: Tensor, turns: Turns, positions: Tensor) -> Tensor:
        """Run the attention as `CachedPass.mix` does, on qkv [R, T, (H + 2 K) * head_dim]: queries, keys and values.

        The keys and values become the first committed ones.
        """
        committed = self.cache.committed
        query, key, value = _turned(qkv, turns, positions, self.cache)
        count = query.shape[2]
        committed[layer, 0, :, :, :count] = key
        committed[layer, 1, :, :, :count] = value
        key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
        scores = (query * query.shape[3] ** -0.5) @ key.transpose(2, 3)
        weights = scores.float().masked_fill(~self.sees(count), float("-inf")).softmax(dim=-1)
        mixed: Tensor = weights.to(value.dtype) @ value
        return mixed.transpose(1, 2).flatten(2)


class Fill(NamedTuple):
    """A causal pass over cells after the condition, whose keys and values are committed.

    places [T] int64: cache positions of the cells. sees bool [R, T, S]: the committed positions that each cell sees,
    itself included.
    """

    cache: "Cache"
    places: Tensor
    sees: Tensor

    def __call__(self, layer: int, qkv: Tensor, turns: Turns, positions: Tensor) -> Tensor:
        """See `Prefill`; the keys and values are committed at the cells' cache positions."""
        query, key, value = _turned(qkv, turns, positions, self.cache)
        keys, values = self.cache.committed.select(0, layer)
        keys.index_copy_(2, self.places, key)
        values.index_copy_(2, self.places, value)
        sees, grouped = self.sees[:, None], key.shape[1] != query.shape[1]
        mixed = scaled_dot_product_attention(query, keys, values, attn_mask=sees, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(2)


Attend: TypeAlias = CachedPass | Prefill | Fill
"""The attention of a pass; torch layers call it instead of their rotation and attention."""


class DeviceDecoder(Protocol):
    """A target or a drafter. There are R = rows * B rows: the conditional rows of all images, then the other rows.

    No method reads back from the device, or takes a shape from a number on the device.
    """

    @property
    def config(self) -> DecoderConfig:
        """Sizes and options."""
        ...

    @property
    def rows(self) -> int:
        """Rows per image: 1, or 2 for a guidance pair."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Data type of keys, values and features."""
        ...

    @property
    def places(self) -> int | None:
        """Positions of the joined cache that an engine is bound to, 0 for any number; None if any cache will do."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens [B, T] int64 as [R, T, F]."""
        ...

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return a target's features [R, T, F] at new positions.

        Args:
            embeddings: [R, T, F].
            positions: [B, T] int64, cells of the tokens, or -P to -1 on a condition of P positions.
            attend: The attention of the pass.
        """
        ...

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        """Return a drafter's features [R, T, F] of tokens at new positions.

        Args:
            tokens: [B, T] int64.
            features: [R, K, F] of the tokens before.
            parents: [B, T] int64, which of the K precedes each token; None if it is the one at the token's own index.
            positions: [B, T].
            attend: The attention of the pass.
        """
        ...

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [R, T, V] in float32; the product itself is in float32 if the weights are."""
        ...


class TargetForward(DeviceDecoder, Protocol):
    """A target that draws pictures."""

    @property
    def line_token(self) -> int | None:
        """Token that it embeds after every line of the picture except the last; None for none."""
        ...


class Cache:
    """A static KV cache: committed positions, and slots for the new positions of a cycle.

    Attributes:
        committed: [L, 2, R, K, S, D], keys and values of K heads. S is the requested size, or slightly more if the keys
            and values of every layer must begin at an address that TensorRT accepts.
        slots: [L, 2, R, K, M, D], keys and values of the new positions.
        heads: Number of query heads, H.
        unseen: [R] int64, number of leading positions that a row does not see.
        joined: For an engine, [L, 2, R, K, M + S, D] with the slots before the committed positions; else None.
        prompts: [R] int64, condition positions that a row sees, for forwards whose layers count from there.
        arrivals: See `kernels.attention`.
    """

    __slots__ = ("__weakref__", "arrivals", "committed", "heads", "joined", "prompts", "slots", "unseen")

    def __init__(
        self,
        config: DecoderConfig,
        rows: int,
        size: int,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        places: int | None = None,
    ) -> None:
        """Allocate R = `rows`, M = `slots` and S >= `size`; for `places` see `DeviceDecoder`."""

        def zeros(count: int, width: int = config.head_dim) -> Tensor:
            return aligned((config.layers, 2, rows, config.kv_heads, count, width), dtype, device)

        self.heads, self.joined = config.heads, None
        if places is None:
            self.committed, self.slots = zeros(size), zeros(slots)
        else:
            self.joined = zeros(max(places, cache_places(config, slots + size)), cached_width(config))
            self.slots, self.committed = self.joined[:, :, :, :, :slots], self.joined[:, :, :, :, slots:]
        self.unseen, self.prompts = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        counters = most_programs(config.heads, config.kv_heads, slots)
        self.arrivals = torch.zeros(rows, counters, dtype=torch.int32, device=device)

    @property
    def words(self) -> int:
        """Number of int64 words in a mask over the slots."""
        return -(-self.slots.shape[4] // WORD)

    def clear(self) -> None:
        """Forget every position and zero its contents, because engines read masked positions too, with weight 0."""
        for part in (self.committed, self.slots, self.unseen, self.prompts):
            part.zero_()

    def attend(self, first: int, lengths: Tensor, masks: Tensor, live: int, filled: Filled | None = None) -> CachedPass:
        """Return a pass over new positions that take the slots from `first` on."""
        return CachedPass(self, first, lengths, masks, live, filled)

    def prefill(self) -> Prefill:
        """Return a pass over the condition only, which becomes the first committed positions."""
        return Prefill(self)

    def fill(self, prefixes: Tensor, count: int) -> Fill:
        """Return a pass over the picture's first `count` cells at once, committed at the cells' cache positions.

        prefixes [B] int64: condition positions, the same number for every image.
        """
        places = prefixes[:1] + torch.arange(count, device=prefixes.device)
        slots = torch.arange(self.committed.shape[4], device=prefixes.device)
        return Fill(self, places, (slots >= self.unseen[:, None, None]) & (slots <= places[:, None]))

    def commit(
        self, path: Tensor, counts: Tensor, lengths: Tensor, most: int, walked: bool, handed: Handed | None = None
    ) -> None:
        """Commit slots to the cache; see `kernels.commit.commit_cache`."""
        commit_cache(self.committed, self.slots, path, counts, lengths, most, walked, handed)


def _turned(qkv: Tensor, turns: Turns, positions: Tensor, cache: Cache) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [R, H, T, D], keys and values [R, K, T, D], computed as in `kernels.heads.store_heads`."""
    rows, count, _ = qkv.shape
    heads, shared, width = cache.heads, cache.committed.shape[3], cache.committed.shape[5]
    parts = torch.split(qkv.view(rows, count, -1, width), [heads, shared, shared], dim=2)
    query, key = parts[0].float(), parts[1].float()
    if turns.scales is not None:
        scales = torch.split(turns.scales, [heads, heads, shared, shared])
        query, key = normed_heads(query) * scales[0] + scales[1], normed_heads(key) * scales[2] + scales[3]
    if turns.table is not None:
        table = turns.table[positions].repeat(rows // positions.shape[0], 1, 1, 1)
        query, key = turn_pairs(query, table), turn_pairs(key, table)
    query, key, value = (part.to(qkv.dtype).transpose(1, 2) for part in (query, key, parts[2]))
    return query, key, value


def gather_rows(features: Tensor, places: Tensor, rows: int) -> Tensor:
    """Gather features [R, T, F] at places [B, K] int64 of each image into [R, K, F]."""
    batch, count = places.shape
    parts = features.view(rows, batch, *features.shape[1:])
    index = places.unsqueeze(0).unsqueeze(3).expand(rows, batch, count, features.shape[2])
    return parts.gather(2, index).view(rows * batch, count, features.shape[2])


def causal_masks(count: int, words: int, device: torch.device) -> Tensor:
    """Return masks [count, words] int64 in which position i sees slots 0 to i."""
    return pack_masks([list(range(place + 1)) for place in range(count)], words, device)


def pack_masks(seen: Sequence[Sequence[int]], words: int, device: torch.device) -> Tensor:
    """Pack the slots that each of T positions sees into masks [T, words] int64."""
    packed = [[0] * words for _ in seen]
    for row, slots in zip(packed, seen, strict=True):
        for slot in slots:
            row[slot // WORD] |= 1 << slot % WORD
    signed = [[word - (1 << 64) if word >> 63 else word for word in row] for row in packed]
    return torch.tensor(signed, dtype=torch.int64, device=device)
