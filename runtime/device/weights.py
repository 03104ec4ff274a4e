"""Decoders from a model folder: the weights next to an exported graph, loaded into a `models.decoder.Decoder`.

The export transposes matrices, joins tables and may store 8-bit values (`export.decoder_weights`); this module reverses
that. Options that weights do not show are in the manifest's settings. For the device's kernels the matrices of layers
keep the numbers that the file stores, or are quantised as the decoder asks for.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import Linear, Module

from underpaint.artifacts.arrays import read_tensor_header
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.scaled_rows import SCALE, ScaledRows
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.weight_only import MATRICES, QUANTISED_TYPES, WeightOnlyLinear, quantised
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.device_memory import TYPES, aligned
from underpaint.zoo.load import Located

_STORED: Final = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I64": torch.int64,
}
_ZERO: Final = 128
"""Value that stands for 0 in an 8-bit matrix."""
_SCALES: Final = ("q_scale", "q_shift", "k_scale", "k_shift")


class StoredWeights:
    """A safetensors file, memory-mapped and read tensor by tensor. Raises EngineError for any other file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._entries, self._start = read_tensor_header(path)
            self._bytes = np.memmap(path, dtype=np.uint8, mode="c")
        except ValueError as error:
            raise EngineError(f"{path}: expected a safetensors file ({error}); export the model again") from error

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def names(self) -> tuple[str, ...]:
        """Return the names of the tensors, without scales and padding."""
        return tuple(name for name in self._entries if not name.endswith(".scale") and not name.startswith("_pad_"))

    def numbers(self) -> int:
        """Return how many numbers the file holds, without scales and padding."""
        return sum(self.size(name)[0] for name in self.names())

    def size(self, name: str) -> tuple[int, int]:
        """Return how many numbers a tensor has, and the bytes of each in the file."""
        return prod(self._entries[name]["shape"]), _STORED[self._entries[name]["dtype"]].itemsize

    def place(self, name: str) -> tuple[int, int] | None:
        """Return the offset and number of a tensor's bytes in the file; None if it is stored in 8 bits."""
        first, last = (self._start + place for place in self._entries[name]["data_offsets"])
        return None if self._entries[name]["dtype"] in ("U8", "I8") else (first, last - first)

    def in_blocks(self, name: str) -> bool:
        """Whether a matrix is stored in 8-bit blocks, the last of which may be padded."""
        return bool(self._entries[name]["dtype"] == "U8")

    def shape(self, name: str, config: DecoderConfig) -> tuple[int, ...]:
        """Return the shape of a tensor as graphs use it in products."""
        shape = tuple(self._entries[name]["shape"])
        return (matrix_depths(config)[name.rpartition(".")[2]], shape[0]) if self.in_blocks(name) else shape

    def on_device(
        self, types: Mapping[str, torch.dtype], config: DecoderConfig, device: torch.device
    ) -> dict[str, Tensor]:
        """Return the tensors that `types` names, in those types, in buffers that an engine can be bound to."""
        tensors = {}
        for name in self.names():
            if name in types:
                shape = self.shape(name, config)
                tensors[name] = aligned(shape, types[name], device)
                tensors[name].copy_(self[name][: shape[0]])
        return tensors

    def embeddings(self, config: DecoderConfig, device: torch.device) -> Tensor:
        """Return the embeddings [V + conditions, D] of codes and the ids after them, in the decoder's precision.

        For a drafter, each row is a code's embedding after the embedding part of the input layer.
        """
        table = self["embedding"]
        if "fc_embedding" in self:
            table = table.float() @ self["fc_embedding"].float()
        elif "conditions" in self:
            table = torch.cat([table.float(), self["conditions"].float()])
        return table.to(device, TYPES[config.precision])

    def _raw(self, name: str) -> Tensor:
        if name not in self._entries:
            raise EngineError(f"{self._path}: there is no tensor '{name}' in it; export the model again")
        entry = self._entries[name]
        first, last = (self._start + place for place in entry["data_offsets"])
        return torch.from_numpy(self._bytes[first:last]).view(_STORED[entry["dtype"]]).reshape(entry["shape"])

    def as_stored(self, name: str, config: DecoderConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor | None] | None:
        """Return a matrix with the numbers of the file; None if these have no fewer bits than `dtype`.

        Args:
            name: A matrix that is stored as [K, N] or in 8-bit blocks.
            config: The decoder's sizes.
            dtype: Type of the inputs that it is multiplied with.

        Returns:
            Weights [N, K] and scales [N, G] or None, as `weight_only.WeightOnlyLinear` has them.
        """
        tensor, depth = self._raw(name), matrix_depths(config)[name.rpartition(".")[2]]
        if tensor.dtype == torch.int8:
            return tensor[:depth].t().contiguous(), self._raw(name + SCALE).float().view(-1, 1)
        if tensor.dtype == torch.uint8:
            signed = (tensor ^ _ZERO).view(torch.int8)  # the same numbers less 128
            scales = self._raw(name + SCALE).float().view(tensor.shape[0], tensor.shape[1])
            return signed.flatten(1)[:, :depth].contiguous(), scales
        return (tensor[:depth].t().contiguous(), None) if tensor.element_size() < dtype.itemsize else None

    def __getitem__(self, name: str) -> Tensor:
        """Return a tensor; 8-bit values become the numbers of the stored matrix [K, N], with K up to a whole block."""
        tensor = self._raw(name)
        if tensor.dtype == torch.int8:
            return torch.from_numpy(ScaledRows(tensor.numpy(), self._raw(name + SCALE).numpy()).widened())
        if tensor.dtype != torch.uint8:
            return tensor
        width, blocks, _ = tensor.shape
        scale = self._raw(name + SCALE).reshape(width, blocks, 1)
        columns = ((tensor.float() - _ZERO) * scale).reshape(width, -1)
        return columns.t()


def embed_ids(table: Tensor, codes: int, tokens: Tensor, outside: Tensor | None) -> Tensor:
    """Embed ids of codes, and of a condition's rows, whose ids follow those of the codes.

    Args:
        table: Embeddings [V + conditions, D], see `StoredWeights.embeddings`.
        codes: Number of codes, V.
        tokens: Ids [R, T] int64.
        outside: Rows [C, D] of a condition from outside the model; None if the table has them.

    Returns:
        Embeddings [R, T, D].
    """
    if outside is None:
        return table[tokens]
    rows = outside.to(table.dtype)[(tokens - codes).clamp(min=0)]
    return torch.where((tokens >= codes)[..., None], rows, table[tokens.clamp(max=codes - 1)])


@torch.no_grad()
def read_decoder(decoder: ConfigOnlyDecoder, device: torch.device, narrow: bool = False) -> Decoder:
    """Read a folder's decoder to a device, in its manifest's precision.

    Args:
        decoder: The decoder, which may name a quantisation.
        device: Device for the weights.
        narrow: Keep matrices of layers that are quantised, or stored in fewer bits than the precision, for the
            device's kernels; False widens them.

    Raises:
        EngineError: Something is missing, or the weights to quantise are not finite.
    """
    name, stored = decoder.located.manifest.name, stored_weights(decoder.located)
    # The export adds a drafter's bias to its embeddings.
    config = replace(decoder.config, fc_bias=False)
    with torch.device("meta"):
        model = Decoder(config).requires_grad_(not narrow)
    dtype = TYPES[config.precision]
    state = {key: value.to(device, dtype) for key, value in _state(stored, config).items()}
    scales = dict[str, Tensor | None]()
    for place, part in product(range(config.layers), MATRICES):
        key = f"layers.{place}.{part}"
        kept = _narrow(decoder, stored, key, device) if narrow or decoder.quantization is not None else None
        if kept is None:
            state[f"{key}.weight"] = _matrix(stored, config, key).to(device, dtype)
        elif narrow:
            state[f"{key}.weight"], scales[key] = kept
        else:
            state[f"{key}.weight"] = WeightOnlyLinear(*kept, None).widened().to(dtype)
    try:
        load_state(model, state)
    except ValueError as error:
        raise EngineError(f"{name}: {error}; its manifest and its weights differ: export the model again") from error
    for key, scale in scales.items():
        layer, _, part = key.rpartition(".")
        linear = model.get_submodule(key)
        assert isinstance(linear, Linear)
        setattr(model.get_submodule(layer), part, WeightOnlyLinear(linear.weight, scale, linear.bias))
    return model.eval()


def _narrow(
    decoder: ConfigOnlyDecoder, stored: StoredWeights, key: str, device: torch.device
) -> tuple[Tensor, Tensor | None] | None:
    """Return a matrix and its scales on a device, quantised or as it is stored; None if it is stored in full."""
    config = decoder.config
    kept = None if _rescaled(config, key) else stored.as_stored(key, config, TYPES[config.precision])
    if decoder.quantization is not None:
        kind = QUANTISED_TYPES[decoder.quantization]
        if kept is None or kept[0].dtype != kind or kept[1] is None or kept[1].shape[1] > 1:
            weight, scale = quantised(_matrix(stored, config, key).to(device), kind)
            if not scale.isfinite().all():
                raise EngineError(
                    f"{decoder.located.path}: {key}: expected finite weights to quantise, got infinity or NaN; export "
                    "the checkpoint again, or leave --quantization out"
                )
            kept = weight, scale
    return kept if kept is None else (kept[0].to(device), None if kept[1] is None else kept[1].to(device))


def _rescaled(config: DecoderConfig, key: str) -> bool:
    """Return whether the file has other numbers than the matrix: the export of such models scales the queries' rows."""
    return config.rope == "none" and key.endswith("qkv")


def _matrix(stored: StoredWeights, config: DecoderConfig, key: str) -> Tensor:
    """Return a matrix of a layer [N, K] in a float type, by its name in the file."""
    part = key.rpartition(".")[2]
    matrix = stored[key][: matrix_depths(config)[part]].t().contiguous()
    if _rescaled(config, key):
        matrix = matrix.float()
        matrix[: config.heads * config.head_dim] *= config.head_dim**0.5
    return matrix


def load_state(model: Module, state: Mapping[str, Tensor]) -> None:
    """Load the parameters of a module on the meta device; ValueError if one is missing or has another shape."""
    for name, value in model.state_dict().items():
        if name not in state or state[name].shape != value.shape:
            got = list(state[name].shape) if name in state else "nothing"
            raise ValueError(f"expected {name} {list(value.shape)}, got {got}")
    model.load_state_dict(state, assign=True)


def _state(stored: StoredWeights, config: DecoderConfig) -> dict[str, Tensor]:
    """Return the parameters by their names in `models.decoder.Decoder`."""
    codes = stored["embedding"][: config.vocab_size]
    state = {"codes.weight": codes, "head.weight": stored["head"][: config.dim].t().contiguous()}
    if config.condition == "table":
        joined = "conditions" not in stored
        state["conditions.weight"] = stored["embedding"][config.vocab_size :] if joined else stored["conditions"]
    if config.final_norm:
        state["norm.weight"] = stored["norm"]
    if config.rope == "none":
        state["positions.weight"] = stored["positions"]
    if config.drafter:
        # If the graph stores embeddings after the input layer, the embedding part of that layer is the identity.
        feature = stored["fc_feature"]
        embedding = stored["fc_embedding"] if "fc_embedding" in stored else torch.eye(config.dim)
        state["fc.weight"] = torch.cat([feature.float(), embedding.float()]).t().contiguous()
    for place in range(config.layers):
        state |= {f"layers.{place}.{key}": value for key, value in _layer(stored, config, place).items()}
    return state


def _layer(stored: StoredWeights, config: DecoderConfig, place: int) -> dict[str, Tensor]:
    """Return the parameters of a layer other than its matrices."""
    here = f"layers.{place}."
    state = {"ffn_norm.weight": stored[here + "ffn_norm"]}
    if config.first_norm or place:
        state["attention_norm.weight"] = stored[here + "attention_norm"]
    if config.qkv_bias:
        state["qkv.bias"] = stored[here + "qkv_bias"]
        if _rescaled(config, "qkv"):
            state["qkv.bias"] = state["qkv.bias"].float()
            state["qkv.bias"][: config.heads * config.head_dim] *= config.head_dim**0.5
    if config.qk_norm:
        state |= {part: stored[here + part] for part in _SCALES}
    return state


def matrix_depths(config: DecoderConfig) -> dict[str, int]:
    """Return the rows of each stored matrix, by the last part of its name; storage in blocks may add more rows."""
    return {
        "qkv": config.dim,
        "out": config.heads * config.head_dim,
        "gate_up": config.dim,
        "down": config.hidden,
        "head": config.dim,
    }


def stored_weights(located: Located) -> StoredWeights:
    """Open the weights of a model; EngineError if they are not in a file of their own."""
    entry = located.manifest.weights
    if entry is None:
        raise EngineError(
            f"{located.manifest.name}: its graph has no weights in a file of their own; export the model again"
        )
    return StoredWeights(located.path.parent / entry.file)


def stored_numbers(located: Located) -> int:
    """Return how many numbers the weights of a model hold, without scales."""
    return 0 if located.manifest.weights is None else stored_weights(located).numbers()


def decoder_bytes(decoder: ConfigOnlyDecoder, narrow: bool = True) -> int:
    """Return the bytes of a decoder's weights on the device; a head in half precision is kept in float32 too.

    Args:
        decoder: The decoder, which may name a quantisation.
        narrow: Whether matrices of layers keep their narrow types, see `read_decoder`.
    """
    config, size = decoder.config, TYPES[decoder.config.precision].itemsize
    total = size * stored_numbers(decoder.located) + (size < 4) * 4 * config.dim * config.vocab_size
    if narrow and decoder.located.manifest.weights is not None:
        stored = stored_weights(decoder.located)
        for place, part in product(range(config.layers), MATRICES):
            key = f"layers.{place}.{part}"
            numbers, stored_size = stored.size(key)
            kept = 1 if decoder.quantization else size if _rescaled(config, key) else min(size, stored_size)
            total += prod(stored.shape(key, config)) * kept - numbers * size
    return total
