"""The two graphs by which an engine serves the device, as a contract: a decoder's layers, and its head.

Everything is per row, so that images of unequal progress fit one pass. R: rows, the conditional ones of all images
first; T: new positions; P: places of a cache; H: heads of keys and values; hd: head width; D: hidden width; V: image
codes; W: `cached_width`. "P" as a type stands for the graph's precision.

A pass writes its keys and values into the cache that it reads, at the places that `WRITE_AT` names, and attends to the
cache alone. The first M places are the slots of a cycle's new positions; committed positions lie behind them. So what a
row sees ends with its committed positions, and places behind those are never read (`READ_PLACES`). In half precision
heads of the cache have `cached_width` numbers, the last of which are 0. Tokens are looked up outside, so that one graph
takes conditions in too. The head is a graph of its own: who reads fewer positions than a pass holds pays for no more.
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
"""Part of a decoder's name that its layers' files carry."""
HEAD: Final = "head"
"""Part of a decoder's name that its head's files carry."""
EMBEDDINGS: Final = "embeddings"
"""[R, T, D] P: embedded tokens or conditions; of a drafter, what its input layer makes of a token's embedding."""
SEES: Final = "sees"
"""[R, 1, T, P] bool: whether a new position sees a place; each sees at least itself, so that no row turns into NaN."""
WRITE_AT: Final = "write_at"
"""[R] int64: the place of a row's first new position; the others follow it."""
READ_PLACES: Final = "read_places"
"""[R] int64: leading places that a row may see; engines leave out the others."""
WEIGHTS_SHA256: Final = "weights_sha256"
"""What a graph's metadata says of the file that it points into."""


class PassSize(NamedTuple):
    """A pass of `least` to `most` new positions into a cache of `places`; 0 where it reads none."""

    least: int
    most: int
    places: int

    def holds(self, other: "PassSize") -> bool:
        """Whether an engine of this size takes the other; the cache may be smaller, as it is filled up."""
        return self.least <= other.least and other.most <= self.most and other.places <= self.places

    def __str__(self) -> str:
        """In words."""
        behind = f" in a cache of {self.places} places" if self.places else ""
        return f"passes of {self.most} positions{behind}"


class DecoderPasses(NamedTuple):
    """What a decoder's layers and its head have to take, without a number twice, in order."""

    layers: tuple[PassSize, ...]
    head: tuple[PassSize, ...]

    def joined(self, other: "DecoderPasses") -> "DecoderPasses":
        """Those of both."""
        return DecoderPasses(*(tuple(sorted({*ours, *theirs})) for ours, theirs in zip(self, other, strict=True)))


def graph_file(folder: Path, name: str, part: str) -> Path:
    """Where the graph of a decoder's `LAYERS` or `HEAD` lies: beside its weights."""
    return folder / f"{name}.{part}.onnx"


def written_key(layer: int) -> str:
    """The output that is `past_key` of a layer with the new keys in it: the same memory."""
    return f"written_key_{layer}"


def written_value(layer: int) -> str:
    """The output that is `past_value` of a layer with the new values in it: the same memory."""
    return f"written_value_{layer}"


def made_features(drafter: bool) -> str:
    """The output that is the features."""
    return PREDICTED_FEATURES if drafter else FEATURES


def layers_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The inputs of a pass through the layers.

    `CELLS` [R, T] int64: those below 0 count from the last condition position.
    """
    kind = PRECISION_TYPES[config.precision]
    found = [
        TensorSpec(EMBEDDINGS, kind, ("R", "T", config.dim)),
        TensorSpec(CELLS, "int64", ("R", "T")),
        TensorSpec(SEES, "bool", ("R", 1, "T", "P")),
        TensorSpec(WRITE_AT, "int64", ("R",)),
        TensorSpec(READ_PLACES, "int64", ("R",)),
    ]
    if config.drafter:
        found.append(TensorSpec(FEATURES, kind, ("R", "T", config.dim)))
    return (*found, *(spec for pair in cache_specs(config) for spec in pair[:1]))


def layers_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The outputs of a pass through the layers: features, and the caches."""
    kind = PRECISION_TYPES[config.precision]
    features = TensorSpec(made_features(config.drafter), kind, ("R", "T", config.dim))
    return (features, *(spec for pair in cache_specs(config) for spec in pair[1:]))


def cached_width(config: DecoderConfig) -> int:
    """Numbers of a head in the cache: a multiple of 8 in half precision, as fused attention asks for."""
    return config.head_dim if config.precision == "fp32" else -(-config.head_dim // 8) * 8


def cache_specs(config: DecoderConfig) -> tuple[tuple[TensorSpec, TensorSpec], ...]:
    """The keys [R, H, P, W] of each layer, then its values: as they are read, and as they are written."""
    kind, shape = PRECISION_TYPES[config.precision], ("R", config.kv_heads, "P", cached_width(config))
    names = [
        pair
        for layer in range(config.layers)
        for pair in ((past_key(layer), written_key(layer)), (past_value(layer), written_value(layer)))
    ]
    return tuple((TensorSpec(read, kind, shape), TensorSpec(written, kind, shape)) for read, written in names)


def head_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The input of the head: features, of whichever decoder."""
    return (TensorSpec(FEATURES, PRECISION_TYPES[config.precision], ("R", "T", config.dim)),)


def head_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The output of the head: logits, float32 whatever the precision is."""
    return (TensorSpec(LOGITS, "float32", ("R", "T", config.vocab_size)),)
