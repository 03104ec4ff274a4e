"""Torch weights in the layout of the decoder graphs."""

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from models.drafter import BoundDrafter
from models.text import WordEncoder
from models.transformer import CaptionEmbedder, LabelEmbedder, Transformer, TransformerBlock, TransformerConfig

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
    own, scaled by head_dim**-0.5. `rows_of` is [cells + 1, 3 * heads]: its last row is the prefix, so cell -1 finds
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


def _half_split(rows: Weights, heads: int) -> Weights:
    """Reorder a projection's output rows from neighbouring rotary pairs to pairs half a head apart."""
    head_dim = rows.shape[0] // heads
    return rows.reshape(heads, head_dim // 2, 2, -1).transpose(0, 2, 1, 3).reshape(rows.shape)


def layer(block: TransformerBlock, config: TransformerConfig) -> Layer:
    """The weights of one block."""
    query, key, value = np.split(plain(block.attention.wqkv.weight), 3)
    turned = [_half_split(query, config.n_head), _half_split(key, config.n_head), value]
    ffn = block.feed_forward
    return Layer(
        attention_norm=plain(block.attention_norm.weight),
        qkv=np.concatenate(turned).T,
        out=plain(block.attention.wo.weight).T,
        ffn_norm=plain(block.ffn_norm.weight),
        gate_up=np.concatenate([plain(ffn.w1.weight), plain(ffn.w3.weight)]).T,
        down=plain(ffn.w2.weight).T,
    )


def rotary_rows(rotary: torch.Tensor, config: TransformerConfig) -> RotaryRows:
    """Tables from the module's own `rotary` [1 + cells, head_dim / 2, 2], whose row 0 is the prefix."""
    table = np.roll(plain(rotary), -1, axis=0)
    cells, heads = table.shape[0], config.n_head
    still = np.zeros((1, *table.shape[1:]), dtype=np.float32)
    still[..., 0] = 1.0
    rows = np.concatenate([table * np.float32(config.head_dim**-0.5), table, still])
    query_rows = np.repeat(np.arange(cells)[:, None], heads, axis=1)
    rows_of = np.concatenate([query_rows, cells + query_rows, np.full((cells, heads), 2 * cells)], axis=1)
    return RotaryRows(rows[..., 0], rows[..., 1], rows_of)


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
