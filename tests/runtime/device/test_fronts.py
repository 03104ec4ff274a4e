"""Row fronts on the device: every pass feeds what the host's does, and a decode by a model is the host's."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device.test_kernels import CONFIG, model_of, whole
from tests.runtime.device.test_mutants import planted
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import GridDecoded, zipar
from underpaint.models.decoder import Decoder, StepOutput, causal_bias
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.kernels.fronts import FrontPass, lay_fronts
from underpaint.runtime.device.kernels.layout import Progress
from underpaint.runtime.methods.fronts.device import FrontCycle, FrontForm, front_envelope

PREFIX, GRID = 3, Grid(4, 4)


@dataclass
class Watched:
    """A `GridTarget` of even distributions that keeps what it was fed and told to commit."""

    grid: Grid
    vocab_size: int = 7
    feeds: list[Feed] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)

    def begin(self) -> FloatArray:
        return np.full(self.vocab_size, 1 / self.vocab_size)

    def score(self, feed: Feed) -> FloatArray:
        self.feeds.append(feed)
        self.kept.append([])
        return np.full((feed.cells.size, self.vocab_size), 1 / self.vocab_size)

    def commit(self, rows: IntArray) -> None:
        self.kept[-1] = self.feeds[-1].cells[rows].tolist()


def laid(decided: IntArray, step: int, grid: Grid, window: int) -> FrontPass:
    count, none = front_envelope(window, grid).nodes, torch.zeros(1, dtype=torch.int64)
    wide = (torch.full((1, count), 9, dtype=torch.int64) for _ in range(6))
    out = FrontPass(*wide, whole(0), torch.zeros(1, PREFIX + grid.cells, dtype=torch.int32))
    progress = Progress(none, whole(step), none, whole(PREFIX), none, none, torch.from_numpy(decided)[None], none)
    lay_fronts(whole(0), progress, out, grid, window)
    return out


def passes_agree(grid: Grid, window: int) -> bool:
    """Whether every pass of an image is laid out on the device as the host feeds it."""
    target = Watched(grid)
    decoded: GridDecoded = zipar(target, window, sampling(1, 2))
    cached, decided_tokens = np.zeros(grid.cells, dtype=np.bool_), np.full(grid.cells, 5)
    for step, (feed, committed_cells) in enumerate(zip(target.feeds, target.kept, strict=True), start=1):
        before = list(decoded.steps[step - 1])
        decided_tokens[before] = decoded.tokens[before]
        out = FrontPass(*(part[0].numpy() for part in laid(decided_tokens.copy(), step, grid, window)))
        lanes = np.flatnonzero((out.places >= 0) | (out.settled >= 0))
        lanes = lanes[out.positions[lanes].argsort()]
        seen = (out.masks[lanes, None] >> lanes[None, :]) & 1 == 1
        cells = np.arange(grid.cells)
        past = cached & (PREFIX + cells < np.minimum(out.bounds[lanes], out.extents)[:, None])
        if not (
            out.positions[lanes].tolist() == feed.cells.tolist()
            and out.tokens[lanes].tolist() == feed.tokens.tolist()
            and np.array_equal(seen, feed.visible)
            and np.array_equal(past, feed.cached)
            and sorted(out.places[out.places >= 0] - PREFIX) == sorted(committed_cells)
            and sorted(out.settled[out.settled >= 0]) == list(decoded.steps[step])
        ):
            return False
        cached[committed_cells] = True
    return True


@settings(max_examples=4)
@given(data=st.data())
def test_a_pass_feeds_what_the_reference_feeds(data: st.DataObject) -> None:
    grid = Grid(data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5)))
    assert passes_agree(grid, data.draw(st.integers(1, grid.width)))


class ModelGrid:
    """A `GridTarget` on a decoder of `models`, with no guidance."""

    def __init__(self, model: Decoder, condition: torch.Tensor, sampler: SamplingParams, grid: Grid = GRID) -> None:
        self.grid, self.vocab_size = grid, model.config.vocab_size
        self._model, self._condition, self._sampler = model, condition, sampler

    def _probs(self, logits: torch.Tensor) -> FloatArray:
        probs: FloatArray = sampling_probs(logits.numpy(), self._sampler)
        return probs

    @torch.no_grad()
    def begin(self) -> FloatArray:
        empty = self._model.empty_cache(1)
        prefill = self._model.step_rows(self._condition, torch.arange(-PREFIX, 0), causal_bias(PREFIX), empty, empty)
        self._keys, self._values = (self._model.empty_cache(1, PREFIX + self.grid.cells) for _ in range(2))
        for layer in range(self._model.config.layers):
            self._keys[layer][:, :, :PREFIX] = prefill.keys[layer]
            self._values[layer][:, :, :PREFIX] = prefill.values[layer]
        first: FloatArray = self._probs(prefill.logits[:, -1:])[0]
        return first

    @torch.no_grad()
    def score(self, feed: Feed) -> FloatArray:
        seen = np.concatenate([np.ones((feed.cells.size, PREFIX), dtype=np.bool_), feed.cached, feed.visible], axis=1)
        bias = torch.where(torch.from_numpy(seen), 0.0, -30000.0)
        tokens = torch.from_numpy(feed.tokens)[None]
        self._cells = feed.cells
        self._fed: StepOutput = self._model.step(tokens, torch.from_numpy(feed.cells), bias, self._keys, self._values)
        return self._probs(self._fed.logits)

    def commit(self, rows: IntArray) -> None:
        places = PREFIX + self._cells[rows]
        for layer in range(self._model.config.layers):
            self._keys[layer][:, :, places] = self._fed.keys[layer][:, :, rows]
            self._values[layer][:, :, places] = self._fed.values[layer][:, :, rows]


CONDITIONS = torch.tensor([[12, 13, 14], [13, 11, 12]])


def on_host(window: int, temperature: float) -> list[list[int]]:
    model, sampler = model_of(CONFIG), SamplingParams(temperature=temperature)
    with torch.no_grad():
        rows = model.embed(CONDITIONS, None)
    return [
        zipar(ModelGrid(model, row[None], sampler), window, sampling(5, image)).tokens.tolist()
        for image, row in enumerate(rows)
    ]


@torch.no_grad()
def on_device(window: int, temperature: float) -> list[list[int]]:
    model = model_of(CONFIG)
    how = FrontForm(window, SamplingParams(temperature=temperature))
    cycle = FrontCycle(DecoderForward(model, 1), how, GRID, PREFIX, 2, torch.device("cpu"))
    cycle.begin(model.embed(CONDITIONS, None), whole(5, 5), whole(0, 1))
    cycle.state.target_cache.committed[:, :, :, :, PREFIX:].normal_()
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    assert cycle.state.verdicts.status.tolist() == [1, 1]
    assert cycle.state.progress.cycles.tolist() == [GRID.width + (GRID.height - 1) * window] * 2
    return cycle.state.progress.decided.tolist()


@pytest.mark.parametrize(("window", "temperature"), [(2, 1), (3, 0)])
def test_a_decode_by_a_model_is_the_reference_s(window: int, temperature: float) -> None:
    assert on_device(window, temperature) == on_host(window, temperature)


WANTED = {}


def decodes_agree() -> bool:
    if not WANTED:
        WANTED[2] = on_host(2, 1)
    return on_device(2, 1) == WANTED[2]


def laid_alike() -> bool:
    return all(passes_agree(Grid(4, 5), window) for window in (2, 3, 5))


MUTANTS: dict[str, tuple[tuple[str, str, str], Callable[[], bool]]] = {
    "a proxy holds the token of the wrong row": (
        ("fronts", "(opened - 1) * W + w - 1", "opened * W + w - 1"),
        laid_alike,
    ),
    "a proxy is kept": (
        ("fronts", "tl.where(fresh, prefix + cell, -1)", "tl.where(fresh | proxy, prefix + cell, -1)"),
        laid_alike,
    ),
    "a cell sees cells behind its own": (
        ("fronts", "bounds + place, prefix + cell", "bounds + place, prefix + H * W"),
        laid_alike,
    ),
    "a cell sees new cells behind its own": (
        ("fronts", "(cell[None, :] < cell[:, None]) & fresh", "(cell[None, :] != cell[:, None]) & fresh"),
        laid_alike,
    ),
    "a row opens a step late": (("fronts", "opened = step // w", "opened = (step - 1) // w"), laid_alike),
    "attention sees slots that are not filled": (
        ("attention", "place, there, other=0) == 1", "place, there, other=0) >= 0"),
        decodes_agree,
    ),
    "attention sees slots behind its bound": (("attention", " & (place[None, :] < bound)", ""), decodes_agree),
    "keys go to another cell's slot": (
        ("commit", "(own * S + place[:, None])", "(own * S + place[:, None] - 1)"),
        decodes_agree,
    ),
    "every cell is drawn by the first one's noise": (
        ("fronts", "tl.load(uniforms + image * T + place)", "tl.load(uniforms + image * T)"),
        decodes_agree,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_seen(name: str) -> None:
    change, agree = MUTANTS[name]
    with planted(*change):
        assert not agree()
