"""Does an exported decoder compute what the torch module does? Errors by output, and where greedy decoding parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.artifacts import decoder_graph as graph_names
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.export.parity import MOST, Errors, Parting, Report, chunks, draft_tree, errors
from underpaint.export.rounded_graph import rounded_graph
from underpaint.models.decoder import Conditioner, Decoder, StepOutput
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.masks import causal, hide

LARGE: Final[Mapping[str, tuple[float, ...]]] = {"fp32": (30.0, 10.0, 3.0), "fp16": (3.0,), "bf16": (3.0,)}
"""Sizes of a drafter's features, the largest first; float16 can still square and multiply 3, with any weights."""
_JUNK: Final = 1e3
"""What slots hold that no position may see."""
_ULP: Final = 2.0**-23


class Outputs(NamedTuple):
    """logits [B, T, V], features [B, T, D]; key, value [B, H, T, hd] of the last layer."""

    logits: NDArray[np.float32]
    features: NDArray[np.float32]
    key: NDArray[Any]
    value: NDArray[Any]


class Runner:
    """A decoder graph on ONNX Runtime's CPU provider, with its own static cache; of bfloat16 its `rounded_graph`."""

    def __init__(self, session: Any, config: DecoderConfig, precision: str, batch: int) -> None:
        self._session = session
        self._given = {each.name for each in session.get_inputs()}
        self.config = config
        kind = np.float16 if precision == "fp16" else np.float32
        slots = config.slots
        shape = (batch, config.kv_heads, slots, config.head_dim)
        # What no position may see must not leak.
        self._values = [np.full(shape, _JUNK, dtype=kind) for _ in range(config.layers)]
        self._keys = [np.full((*shape[:2], shape[3], slots), _JUNK, dtype=kind) for _ in range(config.layers)]
        self._slots = slots
        self._batch = batch
        self._new: dict[str, NDArray[Any]] = {}
        self.length = 0
        self.rows: NDArray[np.float32] | None = None
        self.unseen = np.zeros(batch, dtype=np.int64)
        """[B]: how many of the first slots a row does not see."""

    def run(
        self, tokens: IntArray, cells: IntArray, bias: NDArray[np.float32], features: NDArray[np.float32] | None = None
    ) -> Outputs:
        """One pass over [T] or [B, T] tokens; `bias` [T, T] is among them."""
        count = len(cells)
        whole = np.full((self._batch, count, self._slots + count), MASKED_SCORE, dtype=np.float32)
        for row, unseen in enumerate(self.unseen):
            whole[row, :, unseen : self.length] = 0
        whole[:, :, self._slots :] = bias
        feed: dict[str, NDArray[Any]] = {
            graph_names.TOKENS: np.broadcast_to(tokens, (self._batch, count)).copy(),
            graph_names.CELLS: np.broadcast_to(cells, (self._batch, count)).copy(),
            graph_names.BIAS: whole,
        }
        for index in range(self.config.layers):
            feed[graph_names.past_key(index)] = self._keys[index]
            feed[graph_names.past_value(index)] = self._values[index]
        if self.rows is not None:
            feed[graph_names.EXTERNAL_COND_ROWS] = self.rows
        if features is not None:
            feed[graph_names.FEATURES] = features
        if graph_names.GUIDANCE_MIX in self._given:
            feed |= _plain_sampling(self._batch)
        if graph_names.CHAIN_LEVELS in self._given:
            feed |= _NO_TREE
        last = self.config.layers - 1
        name = graph_names.PREDICTED_FEATURES if self.config.drafter else graph_names.FEATURES
        wanted = [graph_names.LOGITS, name]
        for index in range(self.config.layers):
            wanted += [graph_names.new_key(index), graph_names.new_value(index)]
        self._new = dict(zip(wanted, self._session.run(wanted, feed), strict=True))
        shown = (graph_names.LOGITS, name, graph_names.new_key(last), graph_names.new_value(last))
        return Outputs(*(self._new[each] for each in shown))

    def commit(self) -> None:
        """Take every position of the last pass into the cache."""
        count = self._new[graph_names.LOGITS].shape[1]
        place = slice(self.length, self.length + count)
        for index in range(self.config.layers):
            self._keys[index][..., place] = self._new[graph_names.new_key(index)].swapaxes(2, 3)
            self._values[index][:, :, place] = self._new[graph_names.new_value(index)]
        self.length += count

    def begin(self, prefix: IntArray) -> Outputs:
        """Take in a condition [B, P]; the pass over it."""
        count = prefix.shape[1]
        out = self.run(prefix, np.arange(-count, 0), causal(count))
        self.commit()
        return out


_NO_TREE: Final[Mapping[str, NDArray[Any]]] = {
    graph_names.CHAIN_LEVELS: np.array(1),
    graph_names.TREE_FRONTIER: np.zeros((0, 1), dtype=np.int64),
    graph_names.TREE_UNIFORMS: np.zeros((0, 1, 1)),
    graph_names.TREE_RANKED: np.array(False),
    graph_names.TREE_DRAWN: np.array(False),
}


def _plain_sampling(rows: int) -> dict[str, NDArray[Any]]:
    """Inputs that a graph of probabilities needs whatever is read of it."""
    return {
        graph_names.GUIDANCE_MIX: np.full((1, rows), 1 / rows, dtype=np.float32),
        graph_names.INVERSE_TEMPERATURE: np.ones((), dtype=np.float32),
        graph_names.TOP_K: np.ones(1, dtype=np.int64),
        graph_names.TOP_K_OFFSET: np.zeros((), dtype=np.float32),
        graph_names.TOP_P: np.ones((), dtype=np.float32),
    }


class ParityCase(NamedTuple):
    """A decoder's session, its float32 module and what every case shares."""

    session: Any
    precision: str
    decoder: Decoder
    prefix: IntArray
    rows: NDArray[np.float32] | None


def prepare(path: Path, precision: str, decoder: Decoder, conditioner: Conditioner | None, seed: int) -> ParityCase:
    """A random condition for a pair of rows. ONNX Runtime's CPU provider has no bfloat16: see `rounded_graph`."""
    rng, config = np.random.default_rng(seed), decoder.config
    session = open_session(path, EngineContext(), rounded_graph(path) if precision == "bf16" else None)
    if config.condition == "none":
        return ParityCase(session, precision, decoder, np.empty((2, 0), dtype=np.int64), None)
    if conditioner is not None:
        features = rng.standard_normal((config.prefix, conditioner.absent.shape[1])).astype(np.float32)
        with torch.no_grad():
            rows = conditioner(torch.from_numpy(features)).numpy()
        prefix = config.vocab_size + np.arange(2 * config.prefix).reshape(2, -1)
        return ParityCase(session, precision, decoder, prefix, rows)
    prefix = config.vocab_size + rng.integers(0, config.cond_ids, (2, config.prefix))
    return ParityCase(session, precision, decoder, prefix, None)


def with_eol_tokens(config: DecoderConfig, codes: IntArray) -> IntArray:
    """The first codes of an image as a target reads them: with end-of-line tokens, where the model has any."""
    if config.eol_token is None or config.drafter:
        return codes
    ends = [end for end in range(config.width, config.cells, config.width) if end <= len(codes)]
    return np.insert(codes, ends, config.vocab_size + config.eol_token)


def places(config: DecoderConfig, tokens: IntArray) -> IntArray:
    """The cells [T] of tokens [T] of an image, the end-of-line tokens among them included."""
    ends = np.zeros(len(tokens), np.bool_) if config.eol_token is None else tokens >= config.vocab_size
    return np.where(ends, ends.cumsum() - 1 - config.prefix - config.eol_tokens, (~ends).cumsum() - 1)


@torch.no_grad()
def dense(
    case: ParityCase, tokens: IntArray, batch: int, features: NDArray[np.float32] | None = None, unseen: int = 0
) -> StepOutput:
    """Condition and tokens [T] in one pass of torch; the condition's positions, but the last, left out.

    unseen: how many of the condition's positions the tokens of the second row do not see.
    """
    decoder, count = case.decoder, case.prefix.shape[1]
    whole = np.concatenate([case.prefix[:batch], np.broadcast_to(tokens, (batch, len(tokens)))], axis=1)
    cells = torch.from_numpy(np.concatenate([np.arange(-count, 0), places(decoder.config, tokens)]))
    empty = decoder.empty_cache(batch)
    bias = torch.tensor(causal(whole.shape[1])).repeat(batch, 1, 1)
    bias[1:, count:, :unseen] = float(MASKED_SCORE)
    rows = None if case.rows is None else torch.from_numpy(case.rows)
    given = None if features is None else torch.from_numpy(features)
    out = decoder.step(torch.from_numpy(whole), cells, bias, empty, empty, rows, given)
    first = max(count - 1, 0)
    keys, values = [each[:, :, first:] for each in out.keys], [each[:, :, first:] for each in out.values]
    return StepOutput(out.logits[:, first:], out.features[:, first:], keys, values)


def _runner(case: ParityCase, batch: int) -> Runner:
    runner = Runner(case.session, case.decoder.config, case.precision, batch)
    runner.rows = case.rows
    return runner


def compare_image(
    case: ParityCase,
    tokens: IntArray,
    expected: StepOutput,
    features: NDArray[np.float32] | None = None,
    unseen: int = 0,
) -> dict[str, Errors]:
    """A whole image of `with_eol_tokens` in passes of several sizes, until the cache is full.

    expected: of `dense`, whose rows are the batch.
    """
    batch = expected.logits.shape[0]
    runner, parts = _runner(case, batch), []
    if case.prefix.size:
        parts.append(
            Outputs(
                *(each[:, :, -1:] if each.ndim == 4 else each[:, -1:] for each in runner.begin(case.prefix[:batch]))
            )
        )
    runner.unseen[1:] = unseen
    cells = places(case.decoder.config, tokens)
    for chunk in chunks(len(tokens)):
        given = None if features is None else features[:, chunk]
        parts.append(runner.run(tokens[chunk], cells[chunk], causal(chunk.stop - chunk.start), given))
        runner.commit()
    return _against(parts, expected)


def _against(parts: list[Outputs], expected: StepOutput) -> dict[str, Errors]:
    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts], axis=2 if name in ("key", "value") else 1)

    wanted = {"logits": expected.logits, "features": expected.features}
    wanted |= {"key": expected.keys[-1], "value": expected.values[-1]}
    return {name: errors(joined(name), tensor) for name, tensor in wanted.items()}


def compare_tree(case: ParityCase, tokens: IntArray) -> dict[str, Errors]:
    """A draft tree under a full tree mask, each node held against its own path."""
    runner, tree = _runner(case, 2), draft_tree()
    runner.begin(case.prefix)
    before = len(tokens) // 4
    told = with_eol_tokens(case.decoder.config, tokens[:before])
    runner.run(told, places(case.decoder.config, told), causal(len(told)))
    runner.commit()
    drafted = tokens[before : before + len(tree.paths)]
    out = runner.run(drafted, before + tree.depths, hide(tree.visible))
    found = []
    for leaf in tree.leaves():
        # A dense pass over a leaf's path says what every node on it should say.
        path = list(tree.paths[leaf])
        wanted = dense(case, np.concatenate([told, drafted[path]]), 2).logits[:, -len(path) :]
        found.append(errors(out.logits[:, path], wanted))
    return {"logits": Errors(max(each.largest for each in found), sum(each.mean for each in found) / len(found))}


def parting(case: ParityCase) -> Parting | None:
    """Draw greedily on the graph, then ask torch for its choice after the same tokens, cell by cell."""
    runner, config = _runner(case, 1), case.decoder.config
    logits = runner.begin(case.prefix[:1]).logits[0, -1]
    drawn, fed = [int(logits.argmax())], 0
    while len(drawn) < config.cells:
        told = with_eol_tokens(config, np.array(drawn))
        out = runner.run(told[fed:], places(config, told)[fed:], causal(len(told) - fed))
        runner.commit()
        fed = len(told)
        drawn.append(int(out.logits[0, -1].argmax()))
    # What follows a position is a code unless the next one is an end-of-line token.
    codes = np.append(with_eol_tokens(config, np.array(drawn[:-1])) < config.vocab_size, True)
    wanted = dense(case, with_eol_tokens(config, np.array(drawn[:-1])), 1).logits[0, codes]
    differs = (wanted.argmax(dim=-1).numpy() != np.array(drawn)).nonzero()[0]
    if not differs.size:
        return None
    best = wanted[differs[0]].topk(2).values
    return Parting(int(differs[0]), float(best[0] - best[1]))


def compare(
    path: Path, precision: str, decoder: Decoder, conditioner: Conditioner | None, greedy: bool, seed: int = 0
) -> Report:
    """Hold the graph at `path` against `decoder` (in float32): random and adversarial inputs, by output.

    greedy: also draw a picture greedily (targets only).
    """
    case = prepare(path, precision, decoder, conditioner, seed)
    rng, config = np.random.default_rng(seed), decoder.config
    random = rng.integers(0, config.vocab_size, config.cells)
    if config.drafter:
        found = {}
        for name, scales in (("random", (1.0,)), ("large_features", LARGE[precision])):
            features, expected = _told_apart(case, random, scales, rng)
            found[name] = compare_image(case, random, expected, features)
        return Report(found, None)
    image = with_eol_tokens(config, random)
    expected = dense(case, image, 2)
    found = {"random": compare_image(case, image, expected)}
    for name, code in (("first_code", 0), ("last_code", config.vocab_size - 1)):
        tokens = with_eol_tokens(config, np.full(config.cells, code))
        found[name] = compare_image(case, tokens, dense(case, tokens, 2))
    found["tree"] = compare_tree(case, random)
    first = StepOutput(*(_first_row(part) for part in expected))
    found["one_row"] = compare_image(case, image, first)
    if config.uncond_keep:
        unseen = config.prefix - sum(config.uncond_keep)
        found["unseen"] = compare_image(case, image, dense(case, image, 2, unseen=unseen), unseen=unseen)
    return Report(found, parting(case) if greedy else None)


def _told_apart(
    case: ParityCase, tokens: IntArray, scales: tuple[float, ...], rng: np.random.Generator
) -> tuple[NDArray[np.float32], StepOutput]:
    """Random features of the first of `scales` at which float32 can tell a wrong graph from its own rounding.

    Attention without a norm before it squares them, and one rounding of such numbers can turn a close choice: there,
    torch's own answer moves as far as an error would.
    """
    config = case.decoder.config
    drawn = rng.standard_normal((2, config.cells, config.dim))
    rounded = 1 + _ULP * rng.choice([-1.0, 1.0], drawn.shape)
    for scale in scales:
        features = (scale * drawn).astype(np.float32)
        expected = dense(case, tokens, 2, features)
        moved = dense(case, tokens, 2, (features * rounded).astype(np.float32))
        if errors(moved.logits.numpy(), expected.logits).largest < MOST["fp32"] / 10:
            break
    return features, expected


def _first_row(part: Any) -> Any:
    return part[:1] if isinstance(part, torch.Tensor) else [each[:1] for each in part]
