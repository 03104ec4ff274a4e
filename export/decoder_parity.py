"""Compares an exported decoder with its torch module: errors by output, and where greedy decoding diverges.

The module runs one dense pass over a picture, with attention for a block of queries at a time. The graph runs passes
of several sizes with a cache, like an engine. Logits are compared pass by pass, to save memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from underpaint.algos.arrays import IntArray
from underpaint.algos.draft.tree_builder import point_tree
from underpaint.artifacts.decoder_config import DecoderConfig, Precision
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.export.graph_rewrites import rounded_graph
from underpaint.export.parity import MOST, Errors, ErrorSum, Parting, Report, errors
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.layers import DenseAttention
from underpaint.models.typed import call
from underpaint.runtime.engines.context import EngineContext, open_capturing
from underpaint.runtime.engines.engine import PassOutput
from underpaint.runtime.engines.onnx_engine import OnnxDecoder, OnnxEngine
from underpaint.runtime.engines.pass_inputs import causal, hide
from underpaint.runtime.engines.providers import gpu_backend

LARGE: Final[Mapping[str, tuple[float, ...]]] = {"fp32": (30.0, 10.0, 3.0), "fp16": (3.0,), "bf16": (3.0,)}
"""Scales of a drafter's features, largest first; float16 can still square and multiply 3 with any weights."""
QUERY_BLOCK: Final = 64
"""Number of queries that attend at a time in the dense pass."""
_CHUNKS: Final = (1, 2, 1, 8, 5, 16, 1)
"""New positions per pass, in turn: one token, small trees, large trees."""
_PARENTS: Final = (-1, 0, 0, 1, 1, 2, 3, 5, 0, 8, 4)
"""Parents of the compared tree's nodes: forks, chains, and a child of a late node."""
_JUNK: Final = 1e3
"""Value of cache slots that no position may see."""
_ULP: Final = 2.0**-23
_OWN_THREADS: Final = EngineContext()


class ParityCase(NamedTuple):
    """A decoder's graph and float32 module, and a random condition for two rows that all cases share."""

    graph: OnnxDecoder
    decoder: Decoder
    prefix: IntArray
    cond_rows: NDArray[np.float32] | None

    def engine(self, rows: int, unseen: int = 0) -> "ParityEngine":
        """An engine of the graph on `rows` rows; the second does not see the condition's first `unseen` positions."""
        engine = ParityEngine(self.graph, rows)
        engine.begin((0, unseen)[:rows] if unseen else (), self.cond_rows)
        return engine


class ParityEngine(OnnxEngine):
    """An engine that fills uncommitted cache slots with junk, to reveal any read of hidden positions."""

    def run(self, *args: Any, **kwargs: Any) -> PassOutput:
        """See `Engine`."""
        self.memory.keys[..., self.cache.length :] = _JUNK
        self.memory.values[:, :, :, self.cache.length :] = _JUNK
        return super().run(*args, **kwargs)


def graph_of(
    path: Path,
    precision: Precision,
    config: DecoderConfig,
    content: bytes | None = None,
    context: EngineContext = _OWN_THREADS,
) -> OnnxDecoder:
    """Open the graph at `path`, or `content` with its weights, for engines. ONNX Runtime's CPU provider lacks
    bfloat16, so a bfloat16 graph runs there as its `rounded_graph`."""
    gpu = gpu_backend(context.backend)
    rounded = precision == "bf16" and gpu is None
    graph_bytes = rounded_graph(path) if rounded else content
    graph_config = replace(config, precision="fp32" if rounded else precision, capacity=config.slots)
    session, options = open_capturing(
        path, context, graph_bytes, None if gpu is None or precision == "fp32" else graph_config
    )
    return OnnxDecoder(session, graph_config, path.stem, gpu, options)


def prepare(
    path: Path,
    precision: Precision,
    decoder: Decoder,
    conditioner: Conditioner | None,
    seed: int,
    context: EngineContext = _OWN_THREADS,
) -> ParityCase:
    """Open a graph and draw a random condition for two rows."""
    rng, config = np.random.default_rng(seed), decoder.config
    graph = graph_of(path, precision, config, context=context)
    if config.condition == "none":
        return ParityCase(graph, decoder, np.empty((2, 0), dtype=np.int64), None)
    if conditioner is not None:
        features = rng.standard_normal((config.prefix, conditioner.absent.shape[1])).astype(np.float32)
        with torch.no_grad():
            rows = conditioner(torch.from_numpy(features)).numpy()
        prefix = config.vocab_size + np.arange(2 * config.prefix).reshape(2, -1)
        return ParityCase(graph, decoder, prefix, rows)
    prefix = config.vocab_size + rng.integers(0, config.cond_ids, (2, config.prefix))
    return ParityCase(graph, decoder, prefix, None)


def with_eol_tokens(config: DecoderConfig, codes: IntArray) -> IntArray:
    """Return an image's first codes as a target reads them: with end-of-line tokens, if the model has any."""
    if config.eol_id is None:
        return codes
    ends = [end for end in range(config.width, config.cells, config.width) if end <= len(codes)]
    return np.insert(codes, ends, config.eol_id)


def places(config: DecoderConfig, tokens: IntArray) -> IntArray:
    """Return the cells [T] of an image's tokens [T], including its end-of-line tokens."""
    ends = np.zeros(len(tokens), np.bool_) if config.eol_id is None else tokens >= config.vocab_size
    return np.where(ends, ends.cumsum() - 1 - config.prefix - config.eol_tokens, (~ends).cumsum() - 1)


class CausalBlocks(DenseAttention):
    """Causal attention among new positions, a block of queries at a time; keeps only the last layer's keys."""

    def __init__(self, config: DecoderConfig, turns: Tensor | None, layers: int, hidden: tuple[int, int]) -> None:
        """Prepare; positions from hidden[1] on do not see the first hidden[0] positions of the second row."""
        empty = [torch.zeros(1, config.kv_heads, 0, config.head_dim)] * layers
        super().__init__(config, turns, torch.zeros(1, 1), empty, empty)
        self._hidden = hidden

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keys, self.values = self.keys[-1:], self.values[-1:]
        unseen, first = self._hidden
        blocks = []
        for start in range(0, query.shape[2], QUERY_BLOCK):
            block = query[:, :, start : start + QUERY_BLOCK]
            asking = torch.arange(start, start + block.shape[2])[:, None]
            stop = start + block.shape[2]
            seen = (torch.arange(stop) <= asking).repeat(len(query), 1, 1)
            seen[1:, asking[:, 0] >= first, :unseen] = False
            bias = torch.where(seen, 0.0, float(MASKED_SCORE))[:, None]
            blocks.append(self.mix_under(block, key[:, :, :stop], value[:, :, :stop], bias))
        return torch.cat(blocks, dim=2)


class Expected(NamedTuple):
    """Results of a dense pass: features [B, N, D], and the last layer's key and value [B, K, N, hd]."""

    decoder: Decoder
    features: Tensor
    key: Tensor
    value: Tensor

    @torch.no_grad()
    def logits(self, part: slice | list[int] | NDArray[Any]) -> Tensor:
        """Return the logits [B, n, V] at the positions `part`."""
        return call(self.decoder.head, self.features[:, part])


@torch.no_grad()
def dense(
    case: ParityCase, tokens: IntArray, batch: int, features: NDArray[np.float32] | None = None, unseen: int = 0
) -> Expected:
    """Run condition and tokens [T] in one torch pass; results leave out the condition, except its last position.

    Args:
        case: The decoder and its condition.
        tokens: Tokens [T] of the image, the same for all rows.
        batch: Number of rows.
        features: [B, T, D] float32 for a drafter; None for a target.
        unseen: Number of condition positions that the tokens of the second row do not see.
    """
    decoder, count = case.decoder, case.prefix.shape[1]
    config = decoder.config
    whole = np.concatenate([case.prefix[:batch], np.broadcast_to(tokens, (batch, len(tokens)))], axis=1)
    cells = torch.from_numpy(np.concatenate([np.arange(-count, 0), places(config, tokens)]))
    rows = None if case.cond_rows is None else torch.from_numpy(case.cond_rows)
    hidden = decoder.embed(torch.from_numpy(whole), rows)
    if features is not None:
        hidden = decoder.read_features(torch.from_numpy(features), hidden)
    attention = CausalBlocks(config, decoder.turns(cells), config.layers, (unseen, count))
    all_features = decoder.through_layers(decoder.add_positions(hidden, cells), attention)
    first = max(count - 1, 0)
    return Expected(
        decoder, all_features[:, first:], attention.keys[0][:, :, first:], attention.values[0][:, :, first:]
    )


def chunks(length: int) -> Iterator[slice]:
    """Passes of several sizes over `length` positions."""
    start = turn = 0
    while start < length:
        stop = min(length, start + _CHUNKS[turn % len(_CHUNKS)])
        yield slice(start, stop)
        start, turn = stop, turn + 1


def compare_image(
    case: ParityCase,
    tokens: IntArray,
    expected: Expected,
    features: NDArray[np.float32] | None = None,
    unseen: int = 0,
) -> dict[str, Errors]:
    """Compare a whole image of `with_eol_tokens`, in passes of several sizes until the cache is full.

    Args:
        case: The graph and its condition.
        tokens: Tokens [T] of the image, the same for all rows.
        expected: The result of `dense` on the same batch.
        features: As for `dense`.
        unseen: As for `dense`.

    Returns:
        The errors of logits and features, and of the last layer's key and value.
    """
    batch, sums = len(expected.features), {name: ErrorSum() for name in ("logits", "features", "key", "value")}
    engine, cells = case.engine(batch, unseen), places(case.decoder.config, tokens)

    def judge(out: PassOutput, part: slice, out_part: slice = slice(None)) -> None:
        sums["logits"].add(out.logits[:, out_part], expected.logits(part))
        sums["features"].add(out.features[:, out_part], expected.features[:, part])
        sums["key"].add(engine.memory.new_keys[-1][:, :, out_part], expected.key[:, :, part])
        sums["value"].add(engine.memory.new_values[-1][:, :, out_part], expected.value[:, :, part])
        engine.cache.commit(slice(None))

    before = 0
    if case.prefix.size:
        judge(take_condition(engine, case.prefix[:batch]), slice(0, 1), slice(-1, None))
        before = 1
    for chunk in chunks(len(tokens)):
        chunk_features = None if features is None else features[:, chunk]
        out = engine.run(tokens[chunk], cells[chunk], causal(chunk.stop - chunk.start), None, chunk_features)
        judge(out, slice(before + chunk.start, before + chunk.stop))
    return {name: error_sum.errors() for name, error_sum in sums.items()}


def take_condition(engine: OnnxEngine, prefix: IntArray) -> PassOutput:
    """Run the pass over a condition [B, P]; it is not committed yet."""
    count = prefix.shape[1]
    return engine.run(prefix, engine.config.first_cells(count), causal(count))


def compare_tree(case: ParityCase, tokens: IntArray) -> dict[str, Errors]:
    """Compare a draft tree under a full tree mask; each node must match a dense pass over its own path."""
    engine, before = case.engine(2), len(tokens) // 4
    take_condition(engine, case.prefix)
    engine.cache.commit(slice(None))
    image_tokens = with_eol_tokens(case.decoder.config, tokens[:before])
    engine.run(image_tokens, places(case.decoder.config, image_tokens), causal(len(image_tokens)))
    engine.cache.commit(slice(None))
    tree = point_tree(tokens[before:][: len(_PARENTS)], np.array(_PARENTS), case.decoder.config.vocab_size)
    out = engine.run(tree.tokens, before + tree.depths(), hide(tree.visible()))
    path_errors = []
    for leaf in sorted(set(range(len(_PARENTS))) - set(_PARENTS)):
        # A dense pass over a leaf's path gives the expected result of every node on it.
        path = np.flatnonzero(tree.visible()[leaf])
        expected = dense(case, np.concatenate([image_tokens, tree.tokens[path]]), 2)
        path_errors.append(errors(out.logits[:, path], expected.logits(slice(-len(path), None))))
    return {
        "logits": Errors(
            max(each.largest for each in path_errors), sum(each.mean for each in path_errors) / len(path_errors)
        )
    }


def parting(case: ParityCase) -> Parting | None:
    """Draw greedily with the graph, and return the first cell where torch, given the same tokens, chooses another."""
    engine, config = case.engine(1), case.decoder.config
    out, drawn, fed = take_condition(engine, case.prefix[:1]), list[int](), 0
    while True:
        drawn.append(int(out.logits[0, -1].argmax()))
        if len(drawn) == config.cells:
            break
        engine.cache.commit(slice(None))
        image_tokens = with_eol_tokens(config, np.array(drawn))
        out = engine.run(image_tokens[fed:], places(config, image_tokens)[fed:], causal(len(image_tokens) - fed))
        fed = len(image_tokens)
    read = with_eol_tokens(config, np.array(drawn[:-1], dtype=np.int64))
    # Every position predicts a code, unless the next token is an end-of-line token.
    codes = np.flatnonzero(np.append(read < config.vocab_size, True))
    expected = dense(case, read, 1)
    for cell, place in enumerate(codes):
        logits = expected.logits([int(place)])[0, 0]
        if int(logits.argmax()) != drawn[cell]:
            best = logits.topk(2).values
            return Parting(cell, float(best[0] - best[1]))
    return None


def compare(
    path: Path,
    precision: Precision,
    decoder: Decoder,
    conditioner: Conditioner | None,
    greedy: bool,
    seed: int = 0,
    context: EngineContext = _OWN_THREADS,
) -> Report:
    """Compare the graph at `path` with `decoder` (in float32) on random and adversarial inputs.

    Args:
        path: File of the graph.
        precision: Precision of the graph.
        decoder: The torch module.
        conditioner: Embeds the features of a condition; None for other conditions.
        greedy: Whether to also draw a picture greedily (targets only).
        seed: Seed of the random inputs.
        context: Settings of ONNX Runtime for the graph.

    Returns:
        The errors by case, and where greedy decoding diverges.
    """
    case = prepare(path, precision, decoder, conditioner, seed, context)
    rng, config = np.random.default_rng(seed), decoder.config
    random = rng.integers(0, config.vocab_size, config.cells)
    if config.drafter:
        case_errors = {}
        for name, scales in (("random", (1.0,)), ("large_features", LARGE[precision])):
            features, expected = _distinguishable_features(case, random, scales, rng)
            case_errors[name] = compare_image(case, random, expected, features)
        return Report(case_errors)
    image = with_eol_tokens(config, random)
    expected = dense(case, image, 2)
    case_errors = {"random": compare_image(case, image, expected)}
    case_errors["one_row"] = compare_image(case, image, Expected(decoder, *(part[:1] for part in expected[1:])))
    for name, code in (("first_code", 0), ("last_code", config.vocab_size - 1)):
        tokens = with_eol_tokens(config, np.full(config.cells, code))
        case_errors[name] = compare_image(case, tokens, dense(case, tokens, 2))
    case_errors["tree"] = compare_tree(case, random)
    if config.uncond_keep:
        unseen = config.prefix - sum(config.uncond_keep)
        case_errors["unseen"] = compare_image(case, image, dense(case, image, 2, unseen=unseen), unseen=unseen)
    return Report(case_errors, parting(case) if greedy else None)


def _distinguishable_features(
    case: ParityCase, tokens: IntArray, scales: tuple[float, ...], rng: np.random.Generator
) -> tuple[NDArray[np.float32], Expected]:
    """Draw random features at the first of `scales` at which float32 distinguishes a wrong graph from rounding.

    Attention without a norm before it squares the features, and one rounding of large values can flip a close choice:
    torch's own result then changes as much as with an error.
    """
    config = case.decoder.config
    samples = rng.standard_normal((2, config.cells, config.dim))
    rounded = 1 + _ULP * rng.choice([-1.0, 1.0], samples.shape)
    for scale in scales:
        features = (scale * samples).astype(np.float32)
        expected = dense(case, tokens, 2, features)
        moved, error_sum = dense(case, tokens, 2, (features * rounded).astype(np.float32)), ErrorSum()
        for chunk in chunks(len(tokens)):
            error_sum.add(moved.logits(chunk).numpy(), expected.logits(chunk))
        if error_sum.errors().largest < MOST["fp32"] / 10:
            break
    return features, expected
