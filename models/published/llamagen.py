"""LlamaGen (arXiv 2406.06525), the drafters trained for it (LANTERN, arXiv 2410.03355), and Tar's AR-DTok.

AR-DTok (arXiv 2506.18898) is LlamaGen without rotary positions, but with one learnt vector per position. Its condition
is a linear map of TA-Tok features.
"""

import math
import re
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.published import recipes
from underpaint.models.published.files import Checkpoint, CheckpointError, Recipe, refuse_extra, require
from underpaint.models.published.options import LoadOptions, Parts

HEADS: Final = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2048: 32, 2560: 40, 3200: 32, 4096: 32, 384: 6}
"""Number of heads for each published width: B, L, XL, XXL, 1B, XXXL, 3B, 7B; and Tar's S."""
LAYERS: Final = {768: 12, 1024: 24, 1280: 36, 1536: 48, 2048: 22, 2560: 48, 3200: 24, 4096: 32}
"""Number of LlamaGen's layers for each width."""
CLASS_GRID: Final = 16
_STRIDE: Final = 16
"""Side of a cell in pixels."""
_PIXELS: Final = re.compile(r"(?<![0-9])(256|384|512)(?![0-9])")
"""The image sides in the names of published files."""
TA_TOK_POSITIONS: Final = 729


def _heads(dim: int, options: LoadOptions, kind: str) -> int:
    heads = options.heads or HEADS.get(dim)
    if heads is None:
        raise CheckpointError(f"{kind}: width {dim} is none of the published {sorted(HEADS)}; give --heads")
    return heads


def _count_layers(source: Checkpoint, dim: int, options: LoadOptions, kind: str) -> int:
    """Return the number of layers; check it against the published width, as missing last layers go unnoticed."""
    count = recipes.count_layers(source.tensors.shapes, "layers.")
    published = count if options.heads else LAYERS.get(dim, count)
    if count != published:
        raise CheckpointError(
            f"expected a {kind} checkpoint: width {dim} is published with {published} layers, got {count}; copy the "
            "file again, or give --heads for a model of another depth"
        )
    return count


def _layers(source: Checkpoint, config: DecoderConfig, kind: str) -> dict[str, Recipe]:
    """Return the recipes for the parameters of all layers."""
    tensors: dict[str, Recipe] = {}
    for index in range(config.layers):
        layer = f"layers.{index}."
        names = [f"{layer}{name}.weight" for name in _LAYER]
        require(source, kind, *names)
        norm, fused, out, ffn, gate, up, down = (recipes.stored(source, name) for name in names)
        tensors |= {
            f"{layer}attention_norm.weight": norm,
            f"{layer}qkv.weight": recipes.reordered(fused, _half_split(config)),
            f"{layer}out.weight": out,
            f"{layer}ffn_norm.weight": ffn,
            f"{layer}gate_up.weight": recipes.joined(gate, up),
            f"{layer}down.weight": down,
        }
    return tensors


def _kv_heads(source: Checkpoint, dim: int, heads: int, kind: str) -> int:
    """Return the number of key and value heads, derived from the rows of the first layer's fused matrix."""
    name = "layers.0.attention.wqkv.weight"
    require(source, kind, name)
    kv_dim = (recipes.matrix(source, name, kind)[0] - dim) // 2
    if kv_dim < 1 or dim % kv_dim or heads % (dim // kv_dim):
        raise CheckpointError(
            f"expected a {kind} checkpoint: {name} {source.tensors.shapes[name]} does not divide into {heads} heads of "
            f"{dim // heads}; check the kind and --heads"
        )
    return heads * kv_dim // dim


def _half_split(config: DecoderConfig) -> Callable[[Tensor], Tensor]:
    """Return the reordering of published query, key and value rows to rotary pairs that are half a head apart."""
    heads, shared = config.heads, config.kv_heads
    sizes = [heads * config.head_dim, shared * config.head_dim, shared * config.head_dim]

    def change(rows: Tensor) -> Tensor:
        query, key, value = torch.split(rows, sizes)
        return torch.cat([recipes.half_split(query, heads), recipes.half_split(key, shared), value])

    return change if config.rope == "grid" else lambda rows: rows


_LAYER: Final = (
    *("attention_norm", "attention.wqkv", "attention.wo", "ffn_norm"),
    *("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
)
_OUTSIDE_LAYERS: Final = {"tok_embeddings.weight", "norm.weight", "output.weight"}


def _names(count: int) -> set[str]:
    return _OUTSIDE_LAYERS | {f"layers.{index}.{name}.weight" for index in range(count) for name in _LAYER}


def _named_grid(source: Checkpoint, kind: str) -> int:
    """Return the default side of the grid; raise CheckpointError if the file's name suggests another image size.

    The weights do not depend on the grid, because rotary positions are computed from it: `c2i_XL_384.pt` would load as
    a model for 256 px and draw noise.
    """
    named_sides = {int(digits) for file in source.files for digits in _PIXELS.findall(file.stem)}
    others = sorted(side for side in named_sides if side != CLASS_GRID * _STRIDE)
    if others:
        raise CheckpointError(
            f"{kind}: {source.files[0].name} is named after pictures of {others[0]} px, and the weights do not say how "
            f"many cells they have; give --grid {others[0] // _STRIDE}, or --grid {CLASS_GRID} for "
            f"{CLASS_GRID * _STRIDE} px"
        )
    return CLASS_GRID


def llamagen_c2i(source: Checkpoint, options: LoadOptions) -> Parts:
    """Read a class-conditional model of any size."""
    return llamagen(source, options, captions=False)


def llamagen_t2i(source: Checkpoint, options: LoadOptions) -> Parts:
    """Read a text-conditional model of any size."""
    return llamagen(source, options, captions=True)


def llamagen(source: Checkpoint, options: LoadOptions, captions: bool) -> Parts:
    """Read a model of any size: text-conditional with `captions`, else class-conditional."""
    kind = "llamagen-t2i" if captions else "llamagen-c2i"
    table = "cls_embedding.embedding_table.weight"
    projection = ("cls_embedding.cap_proj.fc1.weight", "cls_embedding.cap_proj.fc2.weight")
    absent = "cls_embedding.uncond_embedding"
    condition_names = (*projection, absent) if captions else (table,)
    require(source, kind, *condition_names, *sorted(_OUTSIDE_LAYERS), "layers.0.feed_forward.w1.weight")
    vocab, dim = recipes.matrix(source, "tok_embeddings.weight", kind)
    heads = _heads(dim, options, kind)
    count = _count_layers(source, dim, options, kind)
    prefix, width = recipes.matrix(source, absent, kind) if captions else (1, 0)
    config = DecoderConfig(
        dim=dim,
        layers=count,
        heads=heads,
        kv_heads=_kv_heads(source, dim, heads, kind),
        hidden=recipes.matrix(source, "layers.0.feed_forward.w1.weight", kind)[0],
        vocab_size=vocab,
        grid_side=options.grid_side or _named_grid(source, kind),
        prefix=prefix,
        condition="external" if captions else "table",
        cond_ids=0 if captions else recipes.matrix(source, table, kind)[0],
    )
    refuse_extra(source, kind, _names(count) | set(condition_names))
    tensors = _ends(source) | _layers(source, config, kind)
    if not captions:
        return Parts(config, tensors | {"conditions.weight": recipes.stored(source, table)})
    names = ("first.weight", "second.weight", "absent")
    conditioner = {name: recipes.stored(source, old) for name, old in zip(names, condition_names, strict=True)}
    return Parts(config, tensors, conditioner, activation=True, features=width)


def _ends(source: Checkpoint) -> dict[str, Recipe]:
    return {
        "codes.weight": recipes.stored(source, "tok_embeddings.weight"),
        "norm.weight": recipes.stored(source, "norm.weight"),
        "head.weight": recipes.stored(source, "output.weight"),
    }


def tar_dtok(source: Checkpoint, options: LoadOptions) -> Parts:
    """Read Tar's AR-DTok, conditioned on `prefix` TA-Tok features: 729, 169 or 81, depending on the scale."""
    kind = "tar-dtok"
    other_names = ("abs_pe", "clip_proj.weight", "clip_proj.bias")
    require(source, kind, *other_names, *sorted(_OUTSIDE_LAYERS), "layers.0.feed_forward.w1.weight")
    shapes = source.tensors.shapes
    vocab, dim = recipes.matrix(source, "tok_embeddings.weight", kind)
    count, heads = recipes.count_layers(shapes, "layers."), _heads(dim, options, kind)
    prefix, places = options.prefix or TA_TOK_POSITIONS, math.prod(shapes["abs_pe"]) // dim
    # The last token is never an input, so the published table is one shorter than condition and image.
    side = options.grid_side or recipes.square_side(places + 1 - prefix, kind)
    if places < prefix + side * side - 1:
        raise CheckpointError(
            f"{kind}: {places} learnt positions do not hold {prefix} of a condition and {side * side} cells; "
            "give a smaller --prefix or --grid"
        )
    config = DecoderConfig(
        dim=dim,
        layers=count,
        heads=heads,
        kv_heads=_kv_heads(source, dim, heads, kind),
        hidden=recipes.matrix(source, "layers.0.feed_forward.w1.weight", kind)[0],
        vocab_size=vocab,
        grid_side=side,
        prefix=prefix,
        rope="none",
        condition="external",
    )
    refuse_extra(source, kind, _names(count) | set(other_names))

    def positions() -> Tensor:
        rows = source.tensors["abs_pe"].reshape(-1, dim)
        cells = rows[prefix : prefix + side * side]
        unused = cells.new_zeros(side * side - cells.shape[0], dim)
        return torch.cat([cells, unused, rows[:prefix]])

    tensors = _ends(source) | {"positions.weight": positions} | _layers(source, config, kind)
    width = recipes.matrix(source, "clip_proj.weight", kind)[1]
    first = {
        "first.weight": recipes.stored(source, "clip_proj.weight"),
        "first.bias": recipes.stored(source, "clip_proj.bias"),
    }
    return Parts(config, tensors, {**first, "absent": recipes.zeros(prefix, width)}, features=width)
