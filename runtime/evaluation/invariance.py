"""Checks whether a token's distribution depends on the other tokens in its pass.

Speculative decoding assumes that a pass over k + 1 positions gives each position the same result as a pass over that
position alone. This holds only approximately, because kernels sum in different orders for different sizes. If two
tokens are nearly equally likely, greedy decoding may then draw another picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.artifacts.arrays import read_tensor_header
from underpaint.artifacts.decoder_graph import POSITION_BUCKETS
from underpaint.artifacts.manifest import DRAFT_TARGET, ManifestError
from underpaint.artifacts.model_index import read_index
from underpaint.artifacts.scaled_rows import SCALE
from underpaint.runtime.engines.context import CPU, SHARED, load_decoder
from underpaint.runtime.engines.engine import Engine, LoadedDecoder
from underpaint.runtime.engines.pass_inputs import alone, causal
from underpaint.runtime.evaluation.pass_comparison import Arithmetic, PassComparison, RowDifferences, softmax
from underpaint.zoo.load import manifest

COUNTS: Final = tuple(sorted({*range(1, 9), *POSITION_BUCKETS}))
"""Numbers of new positions in the compared passes: small drafts one by one, then the buckets of static engines."""
ROWS: Final = (1, 2, 4)
"""Numbers of rows in the compared passes: one picture, a guidance pair, two pairs."""
_STEPS: Final = 64
"""Number of tokens in a sequence: the largest count fills one pass."""
_SEQUENCES: Final = max(ROWS)


class DecoderSequence(NamedTuple):
    """The inputs and logits of one row. prefix [P]: condition ids. tokens [N]: codes.

    features [N, D]: before each token, for drafters. logits [N, V]: after each token, from passes of 1 with one row.
    """

    prefix: IntArray
    tokens: IntArray
    features: NDArray[np.float32] | None
    logits: NDArray[np.float32]


def check_invariance(
    folder: Path,
    models: Sequence[str] = (),
    backend: str = CPU,
    seed: int = 0,
    report: Callable[[str], None] = lambda message: None,
) -> Iterator[PassComparison]:
    """Compare every target and drafter of a folder, or only those in `models`.

    Targets that only draft, with 8-bit products, are included if the backend runs them.

    Args:
        folder: Folder of the models.
        models: Names of the targets and drafters to compare; empty for all.
        backend: The backend that runs the passes.
        seed: Seed of the sampled sequences.
        report: Called with a description of the next comparison.

    Returns:
        The comparisons, each as it is made.

    Raises:
        ManifestError: A model is unknown, or the folder has none.
        EngineError: The backend cannot run a model.
    """
    pairs: list[tuple[str, str, str | None]] = []
    for entry in read_index(folder).resolutions:
        pairs.append((entry.target, "target", entry.drafter))
        if entry.draft_target is not None and backend == CPU:
            pairs.append((entry.draft_target, DRAFT_TARGET, None))
    names = [name for target, _, drafter in pairs for name in (target, drafter) if name is not None]
    unknown = sorted(set(models) - set(names))
    if unknown or not names:
        raise ManifestError(
            f"{folder}: expected targets or drafters, got {', '.join(unknown) or 'none'}; it holds "
            f"{', '.join(names) or 'no decoder'}"
        )
    for target, kind, drafter in pairs:
        compared = [name for name in (target, drafter) if name is not None and (not models or name in models)]
        if not compared:
            continue
        loaded = load_decoder(target, kind, folder, SHARED, backend)
        report(f"{target}: passes of 1")
        rng = np.random.default_rng(seed)
        sequences, features = _draw(loaded, rng)
        if target in compared:
            yield from _compare(loaded, _arithmetic(folder, loaded), sequences, report)
        if drafter in compared and drafter is not None:
            other = load_decoder(drafter, "drafter", folder, SHARED, backend)
            report(f"{drafter}: passes of 1")
            yield from _compare(other, _arithmetic(folder, other), _redrawn(other, sequences, features), report)


def compare_passes(
    target: LoadedDecoder,
    arithmetic: Arithmetic,
    prefix: IntArray,
    seed: int = 0,
    report: Callable[[str], None] = lambda message: None,
) -> Iterator[PassComparison]:
    """Compare the passes of one target, which must return logits, after the tokens [P] of a prompt."""
    report(f"{target.name}: passes of 1")
    sequences, _ = _draw(target, np.random.default_rng(seed), prefix)
    yield from _compare(target, arithmetic, sequences, report)


def _draw(
    target: LoadedDecoder, rng: np.random.Generator, prompt: IntArray | None = None
) -> tuple[list[DecoderSequence], list[NDArray[np.float32]]]:
    """Sample sequences from the target token by token, and return the features [N, D] before each token too.

    prompt: tokens [P] of a prompt; None uses random conditions.
    """
    engine, config = target.open(1), target.config
    sequences, features = [], []
    for _ in range(_SEQUENCES):
        prefix = _prefix(target, rng) if prompt is None else prompt
        out = _begin(engine, prefix[None])
        steps = min(_STEPS, config.cells)
        tokens, logits, seen = [], [], []
        for cell in range(steps):
            tokens.append(int(rng.choice(config.vocab_size, p=softmax(out[0][-1]))))
            seen.append(out[1][-1])
            out = _pass(engine, np.array([[tokens[-1]]]), np.array([cell]), causal(1), None)
            engine.cache.commit(slice(None))
            logits.append(out[0][-1])
        sequences.append(DecoderSequence(prefix, np.array(tokens), None, np.stack(logits)))
        features.append(np.stack(seen))
    engine.close()
    return sequences, features


def _redrawn(
    drafter: LoadedDecoder, sequences: Sequence[DecoderSequence], features: Sequence[NDArray[np.float32]]
) -> list[DecoderSequence]:
    """The target's sequences as read by the drafter, token by token, each with the target's feature before it."""
    engine = drafter.open(1)
    read = []
    for sequence, seen in zip(sequences, features, strict=True):
        engine.begin()
        logits = []
        for cell, token in enumerate(sequence.tokens.tolist()):
            out = _pass(engine, np.array([[token]]), np.array([cell]), causal(1), seen[None, cell : cell + 1])
            engine.cache.commit(slice(None))
            logits.append(out[0][-1])
        read.append(DecoderSequence(np.zeros(0, dtype=np.int64), sequence.tokens, seen, np.stack(logits)))
    engine.close()
    return read


def _arithmetic(folder: Path, decoder: LoadedDecoder) -> Arithmetic:
    """The precision of a decoder's manifest, or "int8" if it multiplies in 8 bits."""
    stored = manifest(decoder.name, folder)
    weights = stored.weights
    if stored.kind == DRAFT_TARGET:
        return "int8"
    if weights is None:
        return decoder.config.precision
    header, _ = read_tensor_header(folder / weights.file)
    # Matrices in blocks (U8) are multiplied in 8 bits; those with one scale per row (I8) are widened on loading.
    blocks = any(entry["dtype"] == "U8" for name, entry in header.items() if f"{name}{SCALE}" in header)
    return "int8" if blocks else decoder.config.precision


def _prefix(target: LoadedDecoder, rng: np.random.Generator) -> IntArray:
    """Random ids [P] of a condition."""
    config = target.config
    if config.external_cond_rows:
        return config.vocab_size + rng.permutation(config.external_cond_rows)[: config.prefix]
    return config.vocab_size + rng.integers(max(1, config.prompt_ids), size=config.condition_positions)


def _begin(engine: Engine, prefixes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Run the first pass over conditions [B, P]; returns logits [P, V] and features [P, D] of the first row."""
    config = engine.config
    count = prefixes.shape[1]
    rows = None
    if config.external_cond_rows:
        rows = np.random.default_rng(1).standard_normal((config.external_cond_rows, config.dim)).astype(np.float32)
    engine.begin((), rows)
    if not count:
        return np.zeros((1, config.vocab_size)), np.zeros((1, config.dim))
    out = _pass(engine, prefixes, config.first_cells(count), causal(count), None)
    engine.cache.commit(slice(None))
    return out


def _pass(
    engine: Engine,
    tokens: IntArray,
    cells: IntArray,
    bias: NDArray[np.float32],
    features: NDArray[np.float32] | None,
) -> tuple[FloatArray, FloatArray]:
    """Logits and features [T, ...] of the first row, as copies."""
    output = engine.run(tokens, cells, bias, features=features)
    return output.logits[0].copy(), output.features[0].copy()


def _compare(
    decoder: LoadedDecoder,
    arithmetic: Arithmetic,
    sequences: Sequence[DecoderSequence],
    report: Callable[[str], None],
) -> Iterator[PassComparison]:
    steps = sequences[0].tokens.size
    built = decoder.row_counts
    for rows in ROWS if built is None else sorted(set(ROWS) & set(built)):
        most = decoder.max_positions(rows) or steps
        counts = [count for count in COUNTS if count <= min(steps, most)]
        engine, row_sequences = decoder.open(rows), sequences[:rows]
        for count in counts:
            report(f"{decoder.name}: {rows} rows, paths of {count}")
            for row, seen in enumerate(_chain(engine, row_sequences, count)):
                yield seen.result(decoder.name, arithmetic, "chain", rows, row, count)
        report(f"{decoder.name}: {rows} rows, tokens beside others")
        for count, every in _beside(engine, row_sequences, counts[1:]).items():
            for row, seen in enumerate(every):
                yield seen.result(decoder.name, arithmetic, "beside", rows, row, count)
        engine.close()


def _opened(engine: Engine, sequences: Sequence[DecoderSequence]) -> None:
    _begin(engine, np.stack([one.prefix for one in sequences]))


def _features(sequences: Sequence[DecoderSequence], part: slice) -> NDArray[np.float32] | None:
    if sequences[0].features is None:
        return None
    return np.stack([one.features[part] for one in sequences if one.features is not None])


def _chain(engine: Engine, sequences: Sequence[DecoderSequence], count: int) -> list[RowDifferences]:
    """Run whole sequences in passes of `count`; each pass is a path whose keys are cached as computed."""
    _opened(engine, sequences)
    seen = [RowDifferences() for _ in sequences]
    steps = sequences[0].tokens.size
    for start in range(0, steps - count + 1, count):
        part = slice(start, start + count)
        tokens = np.stack([one.tokens[part] for one in sequences])
        out = engine.run(tokens, np.arange(start, start + count), causal(count), features=_features(sequences, part))
        for row, one in enumerate(sequences):
            for place in range(count):
                seen[row].add(start + place, out.logits[row, place], one.logits[start + place])
        engine.cache.commit(slice(None))
    return seen


def _beside(
    engine: Engine, sequences: Sequence[DecoderSequence], counts: Sequence[int]
) -> dict[int, list[RowDifferences]]:
    """By count: every eighth token among `count` - 1 others at its cell, in first, middle and last position."""
    _opened(engine, sequences)
    differences = {count: [RowDifferences() for _ in sequences] for count in counts}
    rng = np.random.default_rng(0)
    for cell in range(sequences[0].tokens.size):
        cell_tokens = np.stack([one.tokens[cell : cell + 1] for one in sequences])
        features = _features(sequences, slice(cell, cell + 1))
        for count in counts if cell % 8 == 0 else ():
            among = None if features is None else np.repeat(features, count, axis=1)
            for place in sorted({0, count // 2, count - 1}):
                tokens = rng.integers(engine.config.vocab_size, size=(len(sequences), count))
                tokens[:, place] = cell_tokens[:, 0]
                out = engine.run(tokens, np.full(count, cell), alone(count), features=among)
                for row, one in enumerate(sequences):
                    differences[count][row].add(cell, out.logits[row, place], one.logits[cell])
        engine.run(cell_tokens, np.array([cell]), causal(1), features=features)
        engine.cache.commit(slice(None))
    return differences
