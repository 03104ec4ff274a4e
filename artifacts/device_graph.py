"""The contract of the two graphs with which an engine serves the device: a decoder's layers, and its head.

Everything is per row, so that images with unequal progress share one pass. R: rows, the conditional ones of all images
first; T: new positions; P: cache places; H: heads of keys and values; hd: head width; D: hidden width; V: image codes;
W: `cached_width`. "P" as a type means the graph's precision.

A pass writes keys and values to the cache that it reads, at the places in `WRITE_AT`, and attends only to the cache.
The first M places are for a cycle's new positions; committed positions follow. So the places that a row sees end with
its committed positions, and later places are never read (`READ_PLACES`). In half precision, heads of the cache have
`cached_width` numbers, the last of which are 0. Tokens are embedded outside, so that the same graph reads conditions.
The head is a separate graph, so that a caller pays only for the positions whose logits it needs.
"""

from pathlib import Path
from typing import Final, NamedTuple

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import (
    CELLS,
    FEATURES,
    LOGITS,
    PRECISION_TYPES,
    PREDICTED_FEATURES,
    TensorSpec,
    past_key,
    past_value,
)

LAYERS: Final = "layers"
"""Part of the file names of a decoder's layers."""
HEAD: Final = "head"
"""Part of the file names of a decoder's head."""
EMBEDDINGS: Final = "embeddings"
"""[R, T, D] P: embedded tokens or conditions; for a drafter, the result of its input layer for a token's embedding."""
SEES: Final = "sees"
"""[R, 1, T, P] bool: whether a new position sees a place; each sees at least itself, so that no row becomes NaN."""
WRITE_AT: Final = "write_at"
"""[R] int64: the place of a row's first new position; the others follow it."""
READ_PLACES: Final = "read_places"
"""[R] int64: number of leading places that a row may see; engines skip the others."""
WEIGHTS_SHA256: Final = "weights_sha256"
"""Metadata key of a graph for the hash of the file that it points into."""


class PassSize(NamedTuple):
    """A pass of `least` to `most` new positions with a cache of `places`; 0 if it reads none."""

    least: int
    most: int
    places: int

    def holds(self, other: "PassSize") -> bool:
        """Whether an engine of this size can run the other; the cache may be smaller, as it is filled up."""
        return self.least <= other.least and other.most <= self.most and other.places <= self.places

    def __str__(self) -> str:
        """Describe the size in words."""
        behind = f" in a cache of {self.places} places" if self.places else ""
        return f"passes of {self.most} positions{behind}"


class DecoderPasses(NamedTuple):
    """Passes that a decoder's layers and its head must support, in order and without duplicates."""

    layers: tuple[PassSize, ...]
    head: tuple[PassSize, ...]

    def joined(self, other: "DecoderPasses") -> "DecoderPasses":
        """The passes of both."""
        return DecoderPasses(*(tuple(sorted({*ours, *theirs})) for ours, theirs in zip(self, other, strict=True)))


def graph_file(folder: Path, name: str, part: str) -> Path:
    """Path of the graph of a decoder's `LAYERS` or `HEAD`, next to its weights."""
    return folder / f"{name}.{part}.onnx"


def written_key(layer: int) -> str:
    """Name of the output with a layer's `past_key` after the new keys were written; it shares the memory."""
    return f"written_key_{layer}"


def written_value(layer: int) -> str:
    """Name of the output with a layer's `past_value` after the new values were written; it shares the memory."""
    return f"written_value_{layer}"


def features_output(drafter: bool) -> str:
    """Name of the output with the features."""
    return PREDICTED_FEATURES if drafter else FEATURES


def layers_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The inputs of a pass through the layers.

    `CELLS` [R, T] int64: negative cells count back from the last condition position.
    """
    kind = PRECISION_TYPES[config.precision]
    specs = [
        TensorSpec(EMBEDDINGS, kind, ("R", "T", config.dim)),
        TensorSpec(CELLS, "int64", ("R", "T")),
        TensorSpec(SEES, "bool", ("R", 1, "T", "P")),
        TensorSpec(WRITE_AT, "int64", ("R",)),
        TensorSpec(READ_PLACES, "int64", ("R",)),
    ]
    if config.drafter:
        specs.append(TensorSpec(FEATURES, kind, ("R", "T", config.dim)))
    return (*specs, *(spec for pair in cache_specs(config) for spec in pair[:1]))


def layers_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The outputs of a pass through the layers: features, and the caches."""
    kind = PRECISION_TYPES[config.precision]
    features = TensorSpec(features_output(config.drafter), kind, ("R", "T", config.dim))
    return (features, *(spec for pair in cache_specs(config) for spec in pair[1:]))


def cached_width(config: DecoderConfig) -> int:
    """Numbers per head in the cache: a multiple of 8 in half precision, as fused attention requires."""
    return config.head_dim if config.precision == "fp32" else -(-config.head_dim // 8) * 8


def cache_specs(config: DecoderConfig) -> tuple[tuple[TensorSpec, TensorSpec], ...]:
    """The keys [R, H, P, W] and then the values of each layer: as read, and as written."""
    kind, shape = PRECISION_TYPES[config.precision], ("R", config.kv_heads, "P", cached_width(config))
    names = [
        pair
        for layer in range(config.layers)
        for pair in ((past_key(layer), written_key(layer)), (past_value(layer), written_value(layer)))
    ]
    return tuple((TensorSpec(read, kind, shape), TensorSpec(written, kind, shape)) for read, written in names)


def head_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The input of the head: the features of either decoder."""
    return (TensorSpec(FEATURES, PRECISION_TYPES[config.precision], ("R", "T", config.dim)),)


def head_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The output of the head: logits, float32 at every precision."""
    return (TensorSpec(LOGITS, "float32", ("R", "T", config.vocab_size)),)
