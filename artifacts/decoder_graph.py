"""The contract of decoder graphs: names, types and shapes of inputs and outputs, for writers and for engines.

A decoder graph is one pass of a target or a drafter over T new positions of B rows, with S slots of a cache that the
pass reads and never writes. H: heads of keys and values; hd: head width; D: hidden width; V: image codes; L: levels of
a fused tree, F: nodes expanded in each, C: children of each. A free dimension is a string.

Every graph is a plain pass from `pass_inputs` to `pass_outputs`. Graphs for ONNX Runtime also compute probabilities
(`SAMPLING_INPUTS`, `PROBS`), and their drafters also draft chains and trees in the same call (`FUSED_INPUTS`,
`CHAIN_TOKENS`, `TREE_OUTPUTS`). Graphs for TensorRT have only the plain pass.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from underpaint.artifacts.decoder_config import DecoderConfig, Precision

ElementType: TypeAlias = Literal["float32", "float16", "bfloat16", "float64", "int64", "bool"]

PRECISION_TYPES: Final[dict[Precision, ElementType]] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The type of weights and of cached keys and values, by a graph's precision."""

POSITION_BUCKETS: Final = (1, 8, 16, 32, 64)
"""Numbers of new positions that engines with static shapes are built for, in addition to prefill."""

MASKED_SCORE: Final = np.float32(-1e9)
"""Added to the attention score of a masked position, whose weight after the softmax is then exactly 0.

It is finite, so that a fully masked row does not become NaN. It is far below every score: those of a drafter without an
input norm exceed 30,000. Scores are added in float32 at every precision, so it need not be a float16 number.
"""


class TensorSpec(NamedTuple):
    """An input or an output of a graph."""

    name: str
    dtype: ElementType
    shape: tuple[int | str, ...]


TOKENS: Final = "tokens"
"""[B, T] int64: image codes, or condition ids, which start at V."""
CELLS: Final = "cells"
"""[B, T] int64: the raster cell of each position; negative in the condition."""
BIAS: Final = "bias"
"""[B, T, S + T] float32: 0 where a position attends to a slot or a new position, `MASKED_SCORE` where it does not."""
FEATURES: Final = "features"
"""[B, T, D] float32. For a target: its output, which the head reads. For a drafter: its input, the feature of the token
before each."""
EXTERNAL_COND_ROWS: Final = "external_cond_rows"
"""[C, D] float32: the embedded condition, if it is an input of the graph; row i is id V + i."""
LOGITS: Final = "logits"
"""[B, T, V] float32."""
PREDICTED_FEATURES: Final = "predicted_features"
"""[B, T, D] float32: the feature of each token as a drafter predicts it."""

GUIDANCE_MIX: Final = "guidance_mix"
"""[1, B] float32: weights that sum the B rows' logits to one row; (s, 1 - s) for guidance s of a pair."""
INVERSE_TEMPERATURE: Final = "inverse_temperature"
"""[] float32."""
TOP_K: Final = "top_k"
"""[1] int64: k of the top-k, 1 to V; ties with the k-th are kept."""
TOP_K_OFFSET: Final = "top_k_offset"
"""[] float32: added to the k-th logit before the others are compared with it; a large negative keeps every token."""
TOP_P: Final = "top_p"
"""[] float32: the smallest set of tokens with at least this probability mass is kept; 1 keeps all."""
PROBS: Final = "probs"
"""[T, V] float32: the distributions that `algos.rows.sampling_probs` computes from the logits with these inputs. Not
computed if chain_levels is more than 1."""

CHAIN_LEVELS: Final = "chain_levels"
"""[] int64, at least 1: number of tokens of the greedy chain after the last new position."""
TREE_FRONTIER: Final = "tree_frontier"
"""[L, F] int64: the candidates of level l that level l + 1 expands, row * C + column. L = 0: no tree."""
TREE_UNIFORMS: Final = "tree_uniforms"
"""[L, F, C] float64: the uniforms for drawing children, if `tree_drawn` is true."""
TREE_RANKED: Final = "tree_ranked"
"""[] bool: expand the F candidates with the largest product of probabilities along their paths instead."""
TREE_DRAWN: Final = "tree_drawn"
"""[] bool: draw children one after another without replacement; false takes the most likely ones."""
CHAIN_TOKENS: Final = "chain_tokens"
"""[max(1, chain_levels)] int64: the most likely token after the last new position, then the one after that, ..."""

TREE_ROOT_TOKENS: Final = "tree_root_tokens"
"""[1, C] int64: the root's children."""
TREE_ROOT_PROBS: Final = "tree_root_probs"
"""[1, C] float64: the probability of each child in the root's distribution when it was taken; 0 if nothing was left."""
TREE_NEXT_FRONTIER: Final = "tree_next_frontier"
"""[L - 1, F] int64: the candidates of the level above that each level expands."""
TREE_TOKENS: Final = "tree_tokens"
"""[L - 1, F, C] int64: children of the nodes of each level below the root's."""
TREE_TOKEN_PROBS: Final = "tree_token_probs"
"""[L - 1, F, C] float64; see `TREE_ROOT_PROBS`."""
TREE_PROBS: Final = "tree_probs"
"""[L - 1, F, V] float32: the distributions of those children."""

SAMPLING_INPUTS: Final = (
    TensorSpec(GUIDANCE_MIX, "float32", (1, "B")),
    TensorSpec(INVERSE_TEMPERATURE, "float32", ()),
    TensorSpec(TOP_K, "int64", (1,)),
    TensorSpec(TOP_K_OFFSET, "float32", ()),
    TensorSpec(TOP_P, "float32", ()),
)
"""Additional inputs of a graph that computes `PROBS`."""

FUSED_INPUTS: Final = (
    TensorSpec(CHAIN_LEVELS, "int64", ()),
    TensorSpec(TREE_FRONTIER, "int64", ("L", "F")),
    TensorSpec(TREE_UNIFORMS, "float64", ("L", "F", "C")),
    TensorSpec(TREE_RANKED, "bool", ()),
    TensorSpec(TREE_DRAWN, "bool", ()),
)
"""Additional inputs of a drafter that drafts chains and trees in one call."""


def tree_outputs(vocab_size: int) -> tuple[TensorSpec, ...]:
    """The tree outputs of such a drafter, in the order of the fields of the runtime's fused tree."""
    return (
        TensorSpec(TREE_ROOT_TOKENS, "int64", ("1", "C")),
        TensorSpec(TREE_ROOT_PROBS, "float64", ("1", "C")),
        TensorSpec(TREE_NEXT_FRONTIER, "int64", ("L-1", "F")),
        TensorSpec(TREE_TOKENS, "int64", ("L-1", "F", "C")),
        TensorSpec(TREE_TOKEN_PROBS, "float64", ("L-1", "F", "C")),
        TensorSpec(TREE_PROBS, "float32", ("L-1", "F", vocab_size)),
    )


TREE_OUTPUTS: Final = tuple(spec.name for spec in tree_outputs(0))
"""The names of `tree_outputs`."""


def past_key(layer: int) -> str:
    """The name of a layer's cached keys [B, H, hd, S], in the graph's precision."""
    return f"past_key_{layer}"


def past_value(layer: int) -> str:
    """The name of a layer's cached values [B, H, S, hd], in the graph's precision."""
    return f"past_value_{layer}"


def new_key(layer: int) -> str:
    """The name of a layer's keys [B, H, T, hd] of the new positions, in the graph's precision."""
    return f"new_key_{layer}"


def new_value(layer: int) -> str:
    """The name of a layer's values [B, H, T, hd] of the new positions, in the graph's precision."""
    return f"new_value_{layer}"


def pass_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The inputs of a plain pass, in the order of the graph."""
    kind = PRECISION_TYPES[config.precision]
    specs = [
        TensorSpec(TOKENS, "int64", ("B", "T")),
        TensorSpec(CELLS, "int64", ("B", "T")),
        TensorSpec(BIAS, "float32", ("B", "T", "S+T")),
    ]
    if config.drafter:
        specs.append(TensorSpec(FEATURES, "float32", ("B", "T", config.dim)))
    if config.external_cond_rows:
        specs.append(TensorSpec(EXTERNAL_COND_ROWS, "float32", ("C", config.dim)))
    for layer in range(config.layers):
        specs.append(TensorSpec(past_key(layer), kind, ("B", config.kv_heads, config.head_dim, "S")))
        specs.append(TensorSpec(past_value(layer), kind, ("B", config.kv_heads, "S", config.head_dim)))
    return tuple(specs)


def pass_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The outputs of a plain pass, in the order of the graph."""
    kind = PRECISION_TYPES[config.precision]
    specs = [
        TensorSpec(LOGITS, "float32", ("B", "T", config.vocab_size)),
        TensorSpec(PREDICTED_FEATURES if config.drafter else FEATURES, "float32", ("B", "T", config.dim)),
    ]
    for layer in range(config.layers):
        specs.append(TensorSpec(new_key(layer), kind, ("B", config.kv_heads, "T", config.head_dim)))
        specs.append(TensorSpec(new_value(layer), kind, ("B", config.kv_heads, "T", config.head_dim)))
    return tuple(specs)
