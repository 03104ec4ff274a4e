"""The two graphs by which an engine serves the device runtime, as a contract: a decoder's layers, and its head.

Everything is per row, so that images of unequal progress fit one pass. R: rows, the conditional ones of all images
first; T: new positions; S: committed positions of a cache; M: slots of a cycle's new positions, which a drafter's later
levels see; H: heads of keys and values; hd: head width; D: hidden width; V: image codes. "P" stands for the graph's
precision.

A cache has the layout of the device's state ([R, H, S, hd], not `decoder_graph`'s), so that an engine is bound to the
state's own addresses. Tokens are looked up outside, so that one graph takes conditions in too. The head is a graph of
its own: who reads fewer positions than a pass holds pays for no more.
"""

from pathlib import Path
from typing import Final, NamedTuple

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import (
    BIAS,
    CELLS,
    FEATURES,
    LOGITS,
    PRECISION_TYPES,
    PREDICTED_FEATURES,
    TensorSpec,
    new_key,
    new_value,
    past_key,
    past_value,
)

LAYERS: Final = "layers"
"""Part of a decoder's name that its layers' files carry."""
HEAD: Final = "head"
"""Part of a decoder's name that its head's files carry."""
EMBEDDINGS: Final = "embeddings"
"""[R, T, D] P: embedded tokens or conditions; of a drafter, what its input layer makes of a token's embedding."""
WEIGHTS_SHA256: Final = "weights_sha256"
"""What a graph's metadata says of the file that it points into."""


class PassSize(NamedTuple):
    """A pass of `least` to `most` new positions over `committed` positions and `slots` earlier ones; 0 for none."""

    least: int
    most: int
    committed: int
    slots: int

    def holds(self, other: "PassSize") -> bool:
        """Whether an engine of this size takes the other."""
        return self.least <= other.least and other.most <= self.most and self[2:] == other[2:]

    def told(self, rows: int) -> str:
        """In words."""
        behind = f" behind {self.committed} + {self.slots}" if self.committed else ""
        return f"passes of {self.most} positions{behind} in {rows} rows"


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


def slot_key(layer: int) -> str:
    """The name of a layer's keys [R, H, M, hd] of this cycle's earlier passes, of a drafter."""
    return f"slot_key_{layer}"


def slot_value(layer: int) -> str:
    """The name of a layer's values [R, H, M, hd] of this cycle's earlier passes, of a drafter."""
    return f"slot_value_{layer}"


def made_features(drafter: bool) -> str:
    """The output that is the features."""
    return PREDICTED_FEATURES if drafter else FEATURES


def layers_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The inputs of a pass through the layers.

    `CELLS` [R, T] int64: those below 0 count from the last condition position.
    `BIAS` [R, T, N] float32 with N = S + T, or S + M + T of a drafter: 0 where a position sees another, `MASKED_SCORE`
    where it does not; finite, so that no row turns into NaN.
    """
    kind, heads, width = PRECISION_TYPES[config.precision], config.kv_heads, config.head_dim
    found = [
        TensorSpec(EMBEDDINGS, kind, ("R", "T", config.dim)),
        TensorSpec(CELLS, "int64", ("R", "T")),
        TensorSpec(BIAS, "float32", ("R", "T", "N")),
    ]
    if config.drafter:
        found.append(TensorSpec(FEATURES, kind, ("R", "T", config.dim)))
    for layer in range(config.layers):
        found += [TensorSpec(name, kind, ("R", heads, "S", width)) for name in (past_key(layer), past_value(layer))]
        if config.drafter:
            held = slot_key(layer), slot_value(layer)
            found += [TensorSpec(name, kind, ("R", heads, "M", width)) for name in held]
    return tuple(found)


def layers_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The outputs of a pass through the layers: features, and keys and values [R, H, T, hd] of the new positions."""
    kind, heads, width = PRECISION_TYPES[config.precision], config.kv_heads, config.head_dim
    found = [TensorSpec(made_features(config.drafter), kind, ("R", "T", config.dim))]
    for layer in range(config.layers):
        found += [TensorSpec(name, kind, ("R", heads, "T", width)) for name in (new_key(layer), new_value(layer))]
    return tuple(found)


def head_inputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The input of the head: features, of whichever decoder."""
    return (TensorSpec(FEATURES, PRECISION_TYPES[config.precision], ("R", "T", config.dim)),)


def head_outputs(config: DecoderConfig) -> tuple[TensorSpec, ...]:
    """The output of the head: logits, float32 whatever the precision is."""
    return (TensorSpec(LOGITS, "float32", ("R", "T", config.vocab_size)),)
