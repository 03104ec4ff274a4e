"""LlamaGen (arXiv 2406.06525), the drafters trained for it (LANTERN, arXiv 2410.03355), and Tar's AR-DTok.

AR-DTok (arXiv 2506.18898) is LlamaGen without rotary turns, with one learnt vector a position and a linear map of
TA-Tok features as its condition.
"""

from typing import Final

import torch
from torch import Tensor

from models.published.decoder import DecoderConfig
from models.published.files import Checkpoint, CheckpointError, require
from models.published.options import LoadOptions, Parts, count_layers, half_split, repeat_heads, square_side

HEADS: Final = {768: 12, 1024: 16, 1280: 20, 1536: 24, 3200: 32, 4096: 32, 384: 6, 2560: 40}
"""Heads of the published widths: B, L, XL, XXL, 3B, 7B; and Tar's S and XXXL."""
CAPTION_POSITIONS: Final = 120
CLASS_GRID: Final = 16
TA_TOK_POSITIONS: Final = 729


def _heads(dim: int, options: LoadOptions, kind: str) -> int:
    heads = options.heads or HEADS.get(dim)
    if heads is None:
        raise CheckpointError(f"{kind}: width {dim} is none of the published {sorted(HEADS)}; give --heads")
    return heads


def _layers(tensors: dict[str, Tensor], source: Checkpoint, count: int, heads: int, rotary: bool) -> None:
    """Rename every layer's parameters into `tensors`."""
    for index in range(count):
        old, new = f"layers.{index}.", f"layers.{index}."
        names = [f"{old}{name}.weight" for name in _LAYER]
        require(source, "LlamaGen", *names)
        norm, fused, out, ffn, gate, up, down = (source.tensors[name] for name in names)
        dim = out.shape[0]
        query, rest = fused[:dim], fused[dim:]
        key, value = rest.chunk(2)
        groups = dim // key.shape[0]
        key, value = (repeat_heads(part, heads // groups, groups) if groups > 1 else part for part in (key, value))
        if rotary:
            query, key = half_split(query, heads), half_split(key, heads)
        tensors |= {
            f"{new}attention_norm.weight": norm,
            f"{new}qkv.weight": torch.cat([query, key, value]),
            f"{new}out.weight": out,
            f"{new}ffn_norm.weight": ffn,
            f"{new}gate_up.weight": torch.cat([gate, up]),
            f"{new}down.weight": down,
        }


_LAYER: Final = (
    *("attention_norm", "attention.wqkv", "attention.wo", "ffn_norm"),
    *("feed_forward.w1", "feed_forward.w3", "feed_forward.w2"),
)
_KNOWN: Final = {"tok_embeddings.weight", "norm.weight", "output.weight"}


def _refuse_extra(source: Checkpoint, known: set[str], count: int, kind: str) -> None:
    layers = {f"layers.{index}.{name}.weight" for index in range(count) for name in _LAYER}
    # Buffers that some releases carry and that follow from the sizes.
    extra = sorted(set(source.tensors) - known - layers - {"freqs_cis", "causal_mask"})
    if extra:
        more = f" and {len(extra) - 5} more" if len(extra) > 5 else ""
        raise CheckpointError(f"expected a {kind} checkpoint: {', '.join(extra[:5])}{more} not known; check the kind")


def llamagen(source: Checkpoint, options: LoadOptions, captions: bool) -> Parts:
    """A class-conditional model, or with `captions` a text-conditional one; every size."""
    kind = "llamagen-t2i" if captions else "llamagen-c2i"
    table = "cls_embedding.embedding_table.weight"
    projection = ("cls_embedding.cap_proj.fc1.weight", "cls_embedding.cap_proj.fc2.weight")
    absent = "cls_embedding.uncond_embedding"
    own = (*projection, absent) if captions else (table,)
    require(source, kind, *own, *sorted(_KNOWN), "layers.0.feed_forward.w1.weight")
    found = source.tensors
    vocab, dim = found["tok_embeddings.weight"].shape
    count, heads = count_layers(found, "layers."), _heads(dim, options, kind)
    prefix = found[absent].shape[0] if captions else 1
    config = DecoderConfig(
        dim=dim,
        layers=count,
        heads=heads,
        hidden=found["layers.0.feed_forward.w1.weight"].shape[0],
        vocab_size=vocab,
        grid_side=options.grid_side or CLASS_GRID,
        prefix=prefix,
        condition="rows" if captions else "table",
        conditions=0 if captions else found[table].shape[0],
    )
    _refuse_extra(source, _KNOWN | set(own), count, kind)
    tensors = _ends(source)
    if not captions:
        tensors["conditions.weight"] = found[table]
    _layers(tensors, source, count, heads, rotary=True)
    if not captions:
        return Parts(config, tensors)
    first, second = (found[name] for name in projection)
    return Parts(config, tensors, {"first.weight": first, "second.weight": second, "absent": found[absent]}, True)


def _ends(source: Checkpoint) -> dict[str, Tensor]:
    found = source.tensors
    return {
        "codes.weight": found["tok_embeddings.weight"],
        "norm.weight": found["norm.weight"],
        "head.weight": found["output.weight"],
    }


def tar_dtok(source: Checkpoint, options: LoadOptions) -> Parts:
    """Tar's AR-DTok, conditioned on TA-Tok features (`prefix` of them: 729, 169 or 81 by the scale)."""
    kind = "tar-dtok"
    own = ("abs_pe", "clip_proj.weight", "clip_proj.bias")
    require(source, kind, *own, *sorted(_KNOWN), "layers.0.feed_forward.w1.weight")
    found = source.tensors
    vocab, dim = found["tok_embeddings.weight"].shape
    count, heads = count_layers(found, "layers."), _heads(dim, options, kind)
    prefix, places = options.prefix or TA_TOK_POSITIONS, found["abs_pe"].reshape(-1, dim)
    # The last token is never fed, so the published table is one shorter than condition and picture.
    side = options.grid_side or square_side(places.shape[0] + 1 - prefix, kind)
    if places.shape[0] < prefix + side * side - 1:
        raise CheckpointError(
            f"{kind}: {places.shape[0]} learnt positions do not hold {prefix} of a condition and {side * side} cells; "
            "give a smaller --prefix or --grid"
        )
    config = DecoderConfig(
        dim=dim,
        layers=count,
        heads=heads,
        hidden=found["layers.0.feed_forward.w1.weight"].shape[0],
        vocab_size=vocab,
        grid_side=side,
        prefix=prefix,
        rotary="none",
        condition="rows",
    )
    _refuse_extra(source, _KNOWN | set(own), count, kind)
    tensors = _ends(source)
    cells = places[prefix : prefix + side * side]
    unused = cells.new_zeros(side * side - cells.shape[0], dim)
    tensors["positions.weight"] = torch.cat([cells, unused, places[:prefix]])
    _layers(tensors, source, count, heads, rotary=False)
    width = found["clip_proj.weight"].shape[1]
    first = {"first.weight": found["clip_proj.weight"], "first.bias": found["clip_proj.bias"]}
    return Parts(config, tensors, {**first, "absent": torch.zeros(prefix, width)})
