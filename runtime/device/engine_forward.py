"""Forward passes on an engine, bound to the addresses of the device state; `decoder.DecoderForward` does this in torch.

The engine runs the layers and the head. PyTorch looks up tokens, and one kernel turns lengths and masks into the inputs
of the graph. Addresses are bound once for each cache and number of new positions. A pass in a captured graph then
copies its inputs to those addresses and runs: the engine writes new keys and values to their slots.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import embedding

from underpaint.artifacts import device_graph as names
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import CELLS, FEATURES, LOGITS
from underpaint.runtime.device.forwards import Attend, Cache, CachedPass, Fill, Prefill
from underpaint.runtime.device.kernels.draft_inputs import draft_inputs
from underpaint.runtime.device.kernels.sees import write_sees
from underpaint.runtime.device.weights import embed_ids
from underpaint.runtime.engines.config_only import ConfigOnlyDecoder
from underpaint.runtime.engines.context import EngineContext, EngineError, open_session
from underpaint.runtime.engines.device_memory import aligned, bind_layers

_KINDS: Final = {torch.float32: "float32", torch.int64: "int64", torch.bool: "bool"}
"""NumPy type names for the inputs and outputs of ONNX Runtime graphs."""


class DeviceGraph(Protocol):
    """A graph of `artifacts.device_graph` on an engine."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        """Return a function that runs the graph on the current stream, reading and writing these tensors' buffers.

        The tensors must outlive that function. Raises EngineError for sizes that the engine was not built for.
        """
        ...


class EngineGraphs(NamedTuple):
    """A decoder on an engine.

    Attributes:
        layers: Graph of the layers.
        head: Graph of the head.
        places: Positions of the cache that the layers read; 0 for any number.
    """

    layers: DeviceGraph
    head: DeviceGraph
    places: int = 0


class _Bound(NamedTuple):
    """A pass over T new positions: the buffers that it reads, and the features [R, T, F] that it writes."""

    inputs: dict[str, Tensor]
    features: Tensor
    run: Callable[[], None]


class EngineForward:
    """A `DeviceDecoder` whose layers and head run on an engine; `rows` is 1, or 2 for a guidance pair.

    The next call of a method with the same size overwrites what the method returned.
    """

    def __init__(self, config: DecoderConfig, embeddings: Tensor, rows: int, engine: EngineGraphs) -> None:
        """Wrap an engine.

        Args:
            config: The decoder's sizes and options.
            embeddings: [V + conditions, D], see `StoredWeights.embeddings`.
            rows: Rows per image: 1, or 2 for a guidance pair.
            engine: Graphs of the layers and the head.
        """
        self.config, self.rows, self.places = config, rows, engine.places
        self.dtype, self.engine = embeddings.dtype, engine
        self.embeddings, self.codes = embeddings, embeddings[: config.vocab_size]
        self.line_token: int | None = None
        if config.eol_id is not None and config.condition == "table":
            self.line_token = config.vocab_size
            self.codes = torch.cat([self.codes, embeddings[config.eol_id : config.eol_id + 1]])
        self._passes: WeakKeyDictionary[Cache, dict[tuple[bool, int], _Bound]] = WeakKeyDictionary()
        self._heads: dict[tuple[int, int], tuple[Tensor, Tensor, Callable[[], None]]] = {}

    def embed(self, tokens: Tensor) -> Tensor:
        """See `DeviceDecoder`; a drafter's embeddings already include its input layer."""
        return embedding(tokens.repeat(self.rows, 1), self.codes)

    def embed_condition(self, tokens: Tensor, outside: Tensor | None) -> Tensor:
        """Embed ids [R, T] of codes or a condition as [R, T, D]; `outside` [C, D] are rows of an outside condition."""
        return embed_ids(self.embeddings, self.config.vocab_size, tokens, outside)

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        rows, count, _ = embeddings.shape
        if isinstance(attend, Fill):
            raise ValueError("device: an engine makes no pass over a whole picture; let torch make it")
        bound = self._bound(attend, rows, count)
        bound.inputs[names.EMBEDDINGS].copy_(embeddings)
        return self._run(bound, positions, attend)

    def draft_hidden(
        self, tokens: Tensor, features: Tensor, parents: Tensor | None, positions: Tensor, attend: Attend
    ) -> Tensor:
        if not self.config.drafter or not isinstance(attend, CachedPass):
            raise ValueError("device: expected a drafter and a pass over new positions")
        bound = self._bound(attend, features.shape[0], tokens.shape[1])
        draft_inputs(tokens, self.codes, features, parents, bound.inputs[FEATURES], bound.inputs[names.EMBEDDINGS])
        return self._run(bound, positions, attend)

    def _run(self, bound: _Bound, positions: Tensor, attend: CachedPass | Prefill) -> Tensor:
        """Run a bound pass whose embeddings (and a drafter's features) are in place; return its features."""
        count, cache = positions.shape[1], attend.cache
        bound.inputs[CELLS].view(self.rows, *positions.shape).copy_(positions)
        sees, write_at, read = (bound.inputs[name] for name in (names.SEES, names.WRITE_AT, names.READ_PLACES))
        slots = cache.slots.shape[4]
        if isinstance(attend, Prefill):  # its positions are committed at once
            sees.zero_()
            sees[..., slots : slots + count] = attend.sees(count)
            write_at.fill_(slots)
            read.fill_(slots + count)
        else:
            passed = (attend.lengths, cache.unseen, attend.masks)
            write_sees(*passed, sees, write_at, read, slots, attend.first, attend.filled)
        bound.run()
        return bound.features

    def logits(self, features: Tensor) -> Tensor:
        rows, count, width = features.shape
        if (rows, count) not in self._heads:
            read = aligned((rows, count, width), self.dtype, features.device)
            logits = aligned((rows, count, self.config.vocab_size), torch.float32, features.device)
            self._heads[rows, count] = read, logits, self.engine.head.bind({FEATURES: read}, {LOGITS: logits})
        read, logits, run = self._heads[rows, count]
        read.copy_(features)
        run()
        return logits

    def _bound(self, attend: CachedPass | Prefill, rows: int, count: int) -> _Bound:
        """Return the bound pass of this size over this cache; the first call binds it."""
        prefill = isinstance(attend, Prefill)
        passes = self._passes.setdefault(attend.cache, {})
        if (prefill, count) not in passes:
            if prefill:  # conditions vary in length: only the last one's buffers are kept
                for other in [size for size in passes if size[0]]:
                    del passes[other]
            passes[prefill, count] = self._bind(attend, rows, count)
        return passes[prefill, count]

    def _bind(self, attend: CachedPass | Prefill, rows: int, count: int) -> _Bound:
        cache, config = attend.cache, self.config
        if cache.joined is None:
            raise ValueError("device: an engine is bound to a joined cache; make it with the engine's places")

        def zeros(*sizes: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return aligned(sizes, dtype, cache.committed.device)

        wide = (rows, count, config.dim)
        inputs = {
            names.EMBEDDINGS: zeros(*wide),
            CELLS: zeros(rows, count, dtype=torch.int64),
            names.SEES: zeros(rows, 1, count, cache.joined.shape[4], dtype=torch.bool),
            names.WRITE_AT: zeros(rows, dtype=torch.int64),
            names.READ_PLACES: zeros(rows, dtype=torch.int64),
        }
        if config.drafter:
            inputs[FEATURES] = zeros(*wide)
        features = zeros(*wide)
        run = bind_layers(self.engine.layers.bind, config, inputs, features, cache.joined.flatten(0, 1))
        return _Bound(inputs, features, run)


class OnnxGraph:
    """A graph in ONNX Runtime on the CPU, which is bound to the tensors' own addresses, so nothing is copied."""

    def __init__(self, path: Path, weights_sha256: str, again: str, context: EngineContext | None = None) -> None:
        """Open a graph that the command `again` writes; EngineError if it is missing, or has other weights."""
        if not path.is_file():
            raise EngineError(f"no graph {path} for --forward; write it with `{again}`")
        self._session = open_session(path, context)
        sha256 = self._session.get_modelmeta().custom_metadata_map.get(names.WEIGHTS_SHA256)
        if sha256 != weights_sha256:
            raise EngineError(f"{path}: expected the graph of weights {weights_sha256}, got {sha256}; `{again}`")

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Callable[[], None]:
        binding = self._session.io_binding()
        for put, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, tensor in tensors.items():
                assert tensor.is_contiguous()
                put(name, "cpu", 0, _KINDS[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())
        bound = (dict(inputs), dict(outputs))

        def run() -> None:
            assert bound  # keeps the tensors alive as long as this function
            self._session.run_with_iobinding(binding)

        return run


def onnx_graphs(decoder: ConfigOnlyDecoder, context: EngineContext | None = None) -> EngineGraphs:
    """Open a decoder in ONNX Runtime. EngineError if its graphs are missing, of other weights, or not in float32."""
    manifest = decoder.located.manifest
    if decoder.config.precision != "fp32":
        raise EngineError(
            f"{manifest.name}: expected a float32 export for ONNX Runtime on the CPU, got {decoder.config.precision}; "
            "export with --precision fp32"
        )
    folder, sha256 = decoder.located.path.parent, "" if manifest.weights is None else manifest.weights.sha256
    again = f"underpaint engine {folder} --backend onnx"
    files = (names.graph_file(folder, manifest.name, part) for part in (names.LAYERS, names.HEAD))
    layers, head = (OnnxGraph(file, sha256, again, context) for file in files)
    return EngineGraphs(layers, head)
