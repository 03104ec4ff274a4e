"""The weights of a torch decoder in the layout of the decoder graphs; each is computed when it is written."""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.artifacts.decoder_config import DecoderConfig, Precision
from underpaint.artifacts.scaled_rows import ScaledRows, scaled_rows
from underpaint.export.eight_bits import EightBitMatrix, eight_bit
from underpaint.export.graph import ARRAYS, WeightSource
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.layers import Layer, rope_table

Weights: TypeAlias = NDArray[np.float32]
_MATRICES: Final = ("qkv", "out", "gate_up", "down", "head")
"""Matrices that multiply in 8 bits if requested. The product with a drafter's features is excluded, because the
features have outliers that would make the quantisation of other values coarse."""
_LEAST_SCALED: Final = 100_000
"""Matrices with fewer values stay in 16 bits."""


class RotaryTable(NamedTuple):
    """The rotary table [rows, head_dim / 2] and, for every cell, the row of each projected head.

    Values pass through the same node as queries and keys, with rows that do not turn them; queries have separate rows,
    scaled by head_dim**-0.5. `rows_of` is [places, heads + 2 kv_heads]: first the cells, then end-of-line tokens, then
    the prefix, so that negative cells index from the end.
    """

    cosine: Weights
    sine: Weights
    rows_of: NDArray[np.int64]


def rotary_table(config: DecoderConfig) -> RotaryTable | None:
    """Return the rotary table of a decoder; None if positions are learnt."""
    if config.rope == "none":
        return None
    table = plain(rope_table(config))
    cosine, sine = table[:, 0], table[:, 1]
    places, half = cosine.shape
    still, scale = np.ones((1, half), dtype=np.float32), np.float32(config.head_dim**-0.5)
    rows = np.repeat(np.arange(places)[:, None], config.projected_heads, axis=1)
    rows[:, config.heads :] += places
    rows[:, config.heads + config.kv_heads :] = 2 * places
    return RotaryTable(
        np.concatenate([cosine * scale, cosine, still]), np.concatenate([sine * scale, sine, 0 * still]), rows
    )


def plain(tensor: torch.Tensor) -> Weights:
    """Convert a tensor to a float32 array."""
    values: Weights = tensor.detach().to(torch.float32).cpu().numpy()
    return values


@torch.no_grad()
def round_to_half(module: torch.nn.Module) -> None:
    """Round every parameter and floating-point buffer in place to float16 values.

    Raises ValueError for a weight that float16 cannot store: not finite, or larger than 65504.
    """
    for name, value in module.state_dict().items():
        if not value.is_floating_point() or name.endswith("codebook_used"):
            continue
        rounded = value.to(torch.float16).to(value.dtype)
        if not bool(torch.isfinite(rounded).all()):
            raise ValueError(f"{name}: expected finite weights below 65504, got others; the checkpoint is not usable")
        value.copy_(rounded)


@torch.no_grad()
def round_to_scaled_rows(module: torch.nn.Module) -> None:
    """Round a module in place to the values that a shared weights file stores.

    Large matrices become `ScaledRows` (8 bits with a scale per row); all other weights become float16 values.

    Raises:
        ValueError: A number is not finite, or too large for float16.
    """
    for name, value in module.state_dict().items():
        wide = plain(value)
        if not np.all(np.abs(wide) < np.finfo(np.float16).max):
            raise ValueError(f"{name}: expected finite numbers that float16 holds; the training has diverged")
        if value.ndim < 2 or value.numel() < _LEAST_SCALED or "embedding" in name:
            rounded = wide.astype(np.float16).astype(np.float32)
        else:
            rounded = scaled_rows(wide).widened()
        value.copy_(torch.from_numpy(rounded))


def decoder_weights(
    decoder: Decoder,
    stored: Precision,
    precision: Precision,
    eight_bits: bool = False,
    scaled: bool = False,
) -> WeightSource:
    """Return the weights of `decoder` under the names that `export.decoder_graph` reads.

    Rows of a condition, which may come from an encoder, are stored in `precision`.

    Args:
        decoder: The torch module.
        stored: The stored type, equal to `precision` or narrower.
        precision: Precision of the graph.
        eight_bits: Whether to store matrices in 8 bits, and multiply in 8 bits.
        scaled: Whether to store matrices that are exactly `ScaledRows` as such, and refuse other weights that `stored`
            does not represent exactly.
    """
    float_weights: dict[str, Callable[[], Weights]] = {}
    for index, part in enumerate(decoder.layers):
        assert isinstance(part, Layer)
        float_weights |= {f"layers.{index}.{name}": make for name, make in _layer(part, decoder.config).items()}
    if decoder.norm is not None:
        float_weights["norm"] = partial(plain, decoder.norm.weight)
    float_weights["head"] = lambda: plain(decoder.head.weight).T
    if decoder.positions is not None:
        float_weights["positions"] = partial(plain, decoder.positions.weight)
    float_weights |= _embedding(decoder, joined=stored == precision)
    weights: dict[str, Callable[[], NDArray[np.generic] | EightBitMatrix | ScaledRows]] = {}
    for name, make in float_weights.items():
        matrix = name.rsplit(".")[-1] in _MATRICES
        if eight_bits and matrix:
            weights[name] = partial(_as_eight_bit, make)
        elif scaled and name != "conditions":
            weights[name] = partial(_exactly, name, make, stored, 1 if matrix else 0)
        else:
            weights[name] = partial(_as_stored, make, precision if name == "conditions" else stored)
    return weights


def conditioner_weights(conditioner: Conditioner, stored: Precision) -> WeightSource:
    """Return the weights of a condition's embedding under the names of `export.decoder_graph.write_conditioner`."""
    float_weights: dict[str, Callable[[], Weights]] = {
        "absent": partial(plain, conditioner.absent),
        "first": lambda: plain(conditioner.first.weight).T,
    }
    if conditioner.second is None:
        float_weights["first_bias"] = partial(plain, conditioner.first.bias)
    else:
        second = conditioner.second
        float_weights["second"] = lambda: plain(second.weight).T
    return {name: partial(_as_stored, make, stored) for name, make in float_weights.items()}


def _as_eight_bit(make: Callable[[], Weights]) -> EightBitMatrix:
    return eight_bit(make())


def _exactly(name: str, make: Callable[[], Weights], stored: Precision, axis: int) -> NDArray[np.generic] | ScaledRows:
    """Weights as `ScaledRows` along `axis` if these represent them exactly, else in the type `stored`; raises
    ValueError if neither is exact."""
    values = make()
    rows = scaled_rows(values, axis) if values.ndim > 1 else None
    if rows is not None and np.array_equal(rows.widened(), values):
        return rows
    narrow: NDArray[np.generic] = values.astype(ARRAYS[stored])
    if not np.array_equal(narrow.astype(np.float32), values):
        raise ValueError(
            f"{name}: expected numbers of 8 bits with a scale a row, or of {stored}; round the model first"
        )
    return narrow


def _as_stored(make: Callable[[], Weights], stored: Precision) -> NDArray[np.generic]:
    return np.asarray(make(), ARRAYS[stored])


def _layer(layer: Layer, config: DecoderConfig) -> dict[str, Callable[[], Weights]]:
    weights: dict[str, Callable[[], Weights]] = {
        "qkv": lambda: _scaled(plain(layer.qkv.weight), config).T,
        "out": lambda: plain(layer.out.weight).T,
        "ffn_norm": partial(plain, layer.ffn_norm.weight),
        "gate_up": lambda: plain(layer.gate_up.weight).T,
        "down": lambda: plain(layer.down.weight).T,
    }
    if layer.attention_norm is not None:
        weights["attention_norm"] = partial(plain, layer.attention_norm.weight)
    if config.qkv_bias:
        weights["qkv_bias"] = lambda: _scaled(plain(layer.qkv.bias), config)
    if config.qk_norm:
        for name in ("q_scale", "q_shift", "k_scale", "k_shift"):
            weights[name] = partial(plain, getattr(layer, name))
    return weights


def _scaled(rows: Weights, config: DecoderConfig) -> Weights:
    """Scale the query rows of all heads by head_dim**-0.5, unless the rotary table contains the scale."""
    if config.rope != "none":
        return rows
    scaled_copy = rows.copy()
    scaled_copy[: config.heads * config.head_dim] *= np.float32(config.head_dim**-0.5)
    return scaled_copy


def _embedding(decoder: Decoder, joined: bool) -> dict[str, Callable[[], Weights]]:
    """Return the tables of codes and conditions, `joined` or separate; a drafter's table is after its input layer."""
    codes, conditions = decoder.codes, decoder.conditions
    if decoder.fc is None:
        if conditions is None:
            return {"embedding": partial(plain, codes.weight)}
        if not joined:
            return {"embedding": partial(plain, codes.weight), "conditions": partial(plain, conditions.weight)}
        return {"embedding": lambda: np.concatenate([plain(codes.weight), plain(conditions.weight)])}
    matrix, bias = decoder.fc.weight, decoder.fc.bias
    dim = decoder.config.dim
    weights: dict[str, Callable[[], Weights]] = {"fc_feature": lambda: plain(matrix[:, :dim]).T}
    if bias is None:
        return weights | {"embedding": partial(plain, codes.weight), "fc_embedding": lambda: plain(matrix[:, dim:]).T}
    # The input layer's output for an embedding depends only on the token: store the row to save the product.
    return weights | {"embedding": lambda: plain(codes.weight) @ plain(matrix[:, dim:]).T + plain(bias)}
