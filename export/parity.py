"""Do the decoder graphs compute what the torch modules compute? Through the runtime's own engine."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.export.differences import chunks, draft_tree, errors
from underpaint.export.store import Differences
from underpaint.models.drafter import BoundDrafter
from underpaint.models.text import WordEncoder, caption_features
from underpaint.models.transformer import Transformer
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.masks import causal, hide
from underpaint.runtime.engines.onnx_engine import OnnxDecoder, OnnxEngine
from underpaint.runtime.engines.shape import PREFIX_CELL, DecoderShape


def _engine(path: Path, shape: DecoderShape, rows: int) -> OnnxEngine:
    engine = OnnxEngine(OnnxDecoder(open_session(path, EngineContext(threads=1)), shape, path.stem), rows)
    # What no position may see must not leak: fill the hidden slots with large numbers.
    engine.memory.key_memory[:], engine.memory.value_memory[:] = 1e3, 1e3
    return engine


@torch.no_grad()
def compare_target(
    path: Path, shape: DecoderShape, transformer: Transformer, words: WordEncoder | None, seed: int = 0
) -> Differences:
    """Whole images in passes of several sizes, to the last cell; and a draft tree, path by path."""
    rng = np.random.default_rng(seed)
    cells, vocab = shape.grid.cells, shape.vocab_size
    ids = rng.integers(1 if words else 0, shape.cond_ids - 1, shape.prefix)
    prefix = np.stack([ids + vocab, np.array(shape.uncond_ids)])
    if words is None:
        cond = transformer.embed_condition(torch.tensor([int(ids[0]), shape.cond_ids - 1]))
    else:
        pair = torch.from_numpy(np.stack([ids, np.zeros_like(ids)]))
        cond = transformer.embed_condition(caption_features(words, transformer, pair))
    images = {
        "random": rng.integers(0, vocab, cells),
        "first_code": np.zeros(cells, dtype=np.int64),
        "last_code": np.full(cells, vocab - 1),
    }
    found = {
        case: _compare_image(_engine(path, shape, 2), prefix, tokens, transformer, cond)
        for case, tokens in images.items()
    }
    found["tree"] = _compare_tree(_engine(path, shape, 2), prefix, images["random"], transformer, cond)
    found["one_row"] = _compare_image(_engine(path, shape, 1), prefix[:1], images["random"], transformer, cond[:1])
    return found


def _dense(transformer: Transformer, tokens: IntArray, cond: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of a whole sequence [T] under each condition, by `Transformer.step` with an empty cache."""
    rows = torch.from_numpy(np.broadcast_to(tokens, (cond.shape[0], len(tokens))).copy())
    embeddings = torch.cat([cond, transformer.embed_tokens(rows)], dim=1)
    length = embeddings.shape[1]
    empty = transformer.empty_cache(cond.shape[0])
    bias = torch.tensor(causal(length))
    out = transformer.step(embeddings, transformer.cells(len(tokens)), bias, empty, empty, torch.zeros(0))
    first = cond.shape[1] - 1
    return out.logits[:, first:], out.features[:, first:]


def _prefill(engine: OnnxEngine, prefix: IntArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    count = prefix.shape[1]
    result = engine.run(prefix, np.full(count, PREFIX_CELL), causal(count))
    engine.commit(slice(None))
    return result.logits[:, -1:].copy(), result.features[:, -1:].copy()


def _compare_image(
    engine: OnnxEngine, prefix: IntArray, tokens: IntArray, transformer: Transformer, cond: torch.Tensor
) -> float:
    parts = [_prefill(engine, prefix)]
    for chunk in chunks(len(tokens)):
        count = chunk.stop - chunk.start
        result = engine.run(tokens[chunk], np.arange(chunk.start, chunk.stop), causal(count))
        engine.commit(slice(None))
        parts.append((result.logits.copy(), result.features.copy()))
    logits, features = _dense(transformer, tokens, cond)
    return max(
        errors(np.concatenate([part[0] for part in parts], axis=1), logits).largest,
        errors(np.concatenate([part[1] for part in parts], axis=1), features).largest,
    )


def _compare_tree(
    engine: OnnxEngine, prefix: IntArray, tokens: IntArray, transformer: Transformer, cond: torch.Tensor
) -> float:
    _prefill(engine, prefix)
    before = len(tokens) // 4
    engine.run(tokens[:before], np.arange(before), causal(before))
    engine.commit(slice(None))
    tree = draft_tree()
    drafted = tokens[before : before + len(tree.paths)]
    logits = engine.run(drafted, before + tree.depths, hide(tree.visible)).logits.copy()
    worst = 0.0
    for node, path in enumerate(tree.paths):
        expected, _ = _dense(transformer, np.concatenate([tokens[:before], drafted[list(path)]]), cond)
        worst = max(worst, errors(logits[:, node], expected[:, -1]).largest)
    return worst


@torch.no_grad()
def compare_drafter(path: Path, shape: DecoderShape, drafter: BoundDrafter, seed: int = 0) -> Differences:
    """Whole images in passes of several sizes, with unit features and with large ones."""
    rng = np.random.default_rng(seed)
    cells = shape.grid.cells
    found = {}
    for case, scale in (("random", 1.0), ("large_features", 30.0)):
        tokens = rng.integers(0, shape.vocab_size, cells)
        features = (scale * rng.standard_normal((2, cells, shape.dim))).astype(np.float32)
        found[case] = _compare_draft(_engine(path, shape, 2), tokens, features, drafter)
    return found


def _compare_draft(engine: OnnxEngine, tokens: IntArray, features: NDArray[np.float32], drafter: BoundDrafter) -> float:
    cells = len(tokens)
    empty = drafter.empty_cache(2)
    embeddings = drafter.embed_tokens(torch.from_numpy(np.stack([tokens, tokens])))
    bias = torch.tensor(causal(cells))
    given = torch.from_numpy(features)
    out = drafter.step(given, embeddings, torch.arange(cells), bias, empty, empty, torch.zeros(0))
    logits, predicted = [], []
    for chunk in chunks(cells):
        count = chunk.stop - chunk.start
        places = np.arange(chunk.start, chunk.stop)
        result = engine.run(tokens[chunk], places, causal(count), features=features[:, chunk])
        engine.commit(slice(None))
        logits.append(result.logits.copy())
        predicted.append(result.features.copy())
    return max(
        errors(np.concatenate(logits, axis=1), out.logits).largest,
        errors(np.concatenate(predicted, axis=1), out.features).largest,
    )
