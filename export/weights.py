"""Torch weights in the layout of the decoder graphs."""

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.models.drafter import BoundDrafter
from underpaint.models.layers import TransformerBlock
from underpaint.models.published.recipes import half_split
from underpaint.models.text import WordEncoder
from underpaint.models.transformer import CaptionEmbedder, LabelEmbedder, Transformer, TransformerConfig

Weights: TypeAlias = NDArray[np.float32]


class Layer(NamedTuple):
    """One decoder layer; matrices are [in, out]. `qkv` [D, 3D]: rotary pairs of q and k are half a head apart."""

    attention_norm: Weights
    qkv: Weights
    out: Weights
    ffn_norm: Weights
    gate_up: Weights
    down: Weights


class RotaryRows(NamedTuple):
    """The rotary table [rows, head_dim / 2] and, for every cell, the row of each of the 3 * heads heads.

    Values go through the same node as queries and keys, with rows that turn by nothing; queries have rows of their
    own, scaled by head_dim**-0.5. `rows_of` is [places, 3 * heads]: the cells, then the prefix, so that cell -1 finds
    it by counting from the end.
    """

    cosine: Weights
    sine: Weights
    rows_of: NDArray[np.int64]


class Vocabulary(NamedTuple):
    """The embeddings of everything that can be fed: `codes` [V, D], then `conditions` [condition ids + prefix, D].

    Row V + id is condition id `id`; `unconditional` are the rows of a prefix without condition.
    """

    codes: Weights
    conditions: Weights
    unconditional: tuple[int, ...]


def plain(tensor: torch.Tensor) -> Weights:
    """A float32 array of a tensor."""
    values: Weights = tensor.detach().to(torch.float32).cpu().numpy()
    return values


@torch.no_grad()
def halve(module: torch.nn.Module) -> None:
    """Round every parameter and floating buffer to what float16 can hold, in place.

    Raises ValueError for a weight that float16 cannot hold: not finite, or beyond 65504.
    """
    for name, value in module.state_dict().items():
        if not value.is_floating_point() or name.endswith("codebook_used"):
            continue
        rounded = value.to(torch.float16).to(value.dtype)
        if not bool(torch.isfinite(rounded).all()):
            raise ValueError(f"{name}: expected finite weights below 65504, got others; the checkpoint is not usable")
        value.copy_(rounded)


def layer(block: TransformerBlock, config: TransformerConfig) -> Layer:
    """The weights of one block."""
    query, key, value = block.attention.wqkv.weight.chunk(3)
    turned = torch.cat([half_split(query, config.n_head), half_split(key, config.n_head), value])
    ffn = block.feed_forward
    return Layer(
        attention_norm=plain(block.attention_norm.weight),
        qkv=plain(turned).T,
        out=plain(block.attention.wo.weight).T,
        ffn_norm=plain(block.ffn_norm.weight),
        gate_up=np.concatenate([plain(ffn.w1.weight), plain(ffn.w3.weight)]).T,
        down=plain(ffn.w2.weight).T,
    )


def rotary_rows(cosine: Weights, sine: Weights, heads: int, head_dim: int) -> RotaryRows:
    """The table of all heads from `cosine` and `sine` [places, head_dim / 2], places in the order of `rows_of`."""
    places, half = cosine.shape
    still, scale = np.ones((1, half), dtype=np.float32), np.float32(head_dim**-0.5)
    query_rows = np.repeat(np.arange(places)[:, None], heads, axis=1)
    rows_of = np.concatenate([query_rows, places + query_rows, np.full((places, heads), 2 * places)], axis=1)
    return RotaryRows(
        np.concatenate([cosine * scale, cosine, still]), np.concatenate([sine * scale, sine, 0 * still]), rows_of
    )


@torch.no_grad()
def vocabulary(transformer: Transformer, words: WordEncoder | None) -> Vocabulary:
    """Image codes and condition ids in one table, so that the prefix goes through the same graph as the image.

    words: the word encoder of a caption model; None for a class-conditional one.
    Raises ValueError where `words` and the model's kind do not fit.
    """
    codes = plain(transformer.tok_embeddings.weight)
    embedder = transformer.cls_embedding
    if isinstance(embedder, LabelEmbedder) and words is None:
        labels = plain(embedder.embedding_table.weight)
        null = codes.shape[0] + labels.shape[0] - 1
        return Vocabulary(codes, labels, (null,))
    if isinstance(embedder, CaptionEmbedder) and words is not None:
        conditions = plain(embedder(words.embedding.weight[None])[0])
        absent = plain(embedder(embedder.uncond_embedding[None])[0])
        first = codes.shape[0] + conditions.shape[0]
        return Vocabulary(codes, np.concatenate([conditions, absent]), tuple(range(first, first + absent.shape[0])))
    raise ValueError(
        f"vocabulary: a '{transformer.config.model_type}' model with"
        f"{'out' if words is None else ''} a word encoder does not fit; captions need one, classes none"
    )


def drafter_input(drafter: BoundDrafter) -> tuple[Weights, Weights, Weights]:
    """The drafter's input layer in two parts, [D, D] for features and [D, D] for embeddings, and the embeddings."""
    matrix = plain(drafter.drafter.fc.weight).T
    width = matrix.shape[0] // 2
    return matrix[:width], matrix[width:], plain(drafter.tok_embeddings.weight)
