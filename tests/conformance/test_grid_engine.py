"""Cells in any order on the engine, against one dense pass over every row that was ever fed."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from tests.conformance.conftest import CAPTION, CONFIG, Models
from tests.grid_model import FixedRows
from tests.wrapped import Wrapped
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.algos.spatial.cell_rule import PooledCells
from underpaint.algos.spatial.mulo import Repair, draft_and_repair
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import zipar
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.pass_inputs import hide
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget

PAIR = SamplingParams(guidance=2.5)
PREFIX, VOCAB = CONFIG.prefix, CONFIG.vocab_size


@dataclass
class Recorded(Wrapped):
    """A `GridTarget` that notes every row fed: its cell, its token, which rows it saw, and the distribution it gave."""

    cells: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seen: list[set[int]] = field(default_factory=list)
    distributions: list[FloatArray] = field(default_factory=list)
    holds: dict[int, int] = field(default_factory=dict)
    """The row whose keys are in a cell's slot."""

    def score(self, feed: Feed) -> FloatArray:
        self.first = len(self.cells)
        distributions = self.inner.score(feed)
        for row, cell in enumerate(feed.cells.tolist()):
            fresh = {self.first + int(other) for other in np.flatnonzero(feed.visible[row])}
            self.seen.append(fresh | {self.holds[int(other)] for other in np.flatnonzero(feed.cached[row])})
            self.cells.append(cell)
            self.tokens.append(int(feed.tokens[row]))
            self.distributions.append(distributions[row].copy())
        return distributions

    def commit(self, rows: IntArray) -> None:
        self.inner.commit(rows)
        self.holds.update((self.cells[self.first + row], self.first + row) for row in rows.tolist())


@torch.no_grad()
def dense(models: Models, done: Recorded) -> FloatArray:
    """[rows, V]: the distribution behind every recorded row, all of them in one pass in torch, without a cache."""
    pair = torch.from_numpy(np.stack([CAPTION, np.zeros_like(CAPTION)]))
    decoder = models.target.decoder
    tokens = torch.tensor([done.tokens, done.tokens])
    embeddings = torch.cat([models.target.condition(pair), decoder.codes(tokens)], dim=1)
    cells = torch.cat([torch.full((PREFIX,), -1), torch.tensor(done.cells)])
    sees = np.zeros((len(cells), len(cells)), dtype=np.bool_)
    sees[:PREFIX, :PREFIX] = np.tri(PREFIX, dtype=np.bool_)
    sees[PREFIX:, :PREFIX] = True
    for row, others in enumerate(done.seen):
        sees[PREFIX + row, [PREFIX + other for other in others]] = True
    bias = torch.from_numpy(hide(sees))
    empty = decoder.empty_cache(2)
    out = decoder.step_rows(embeddings, cells, bias, empty, empty)
    return np.asarray(sampling_probs(out.logits[:, PREFIX:].numpy(), PAIR))


def recorded(models: Models) -> Recorded:
    target = EngineTarget.open("target", PAIR, models.folder, EngineContext(threads=1))
    models.condition(target)
    return Recorded(EngineGridTarget(target))


@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("adaptive", [False, True])
def test_row_fronts_read_the_dense_distributions(models: Models, window: int, adaptive: bool) -> None:
    target = recorded(models)
    engine = target.inner.engine
    memory = engine.memory.key_memory.ctypes.data, engine.memory.value_memory.ctypes.data
    zipar(target, window, sampling(window), adaptive=adaptive)
    np.testing.assert_allclose(target.distributions, dense(models, target), atol=1e-5)
    assert memory == (engine.memory.key_memory.ctypes.data, engine.memory.value_memory.ctypes.data)


@pytest.mark.parametrize("keys", ["stale", "recompute"])
@pytest.mark.parametrize("order", ["serial", "islands"])
@pytest.mark.parametrize("reject", ["raster", "local"])
def test_repair_reads_the_dense_distributions_of_what_its_keys_saw(
    models: Models, keys: str, order: str, reject: str
) -> None:
    """Rejected drafts are seen by the keys kept beside them; recomputed keys see what is there."""
    drafter = FixedRows(np.full((16, VOCAB), 1 / VOCAB), 4, points=True)
    rule = PooledCells(np.empty((VOCAB, 0), dtype=np.int64), 0.5 / VOCAB)
    for rows in (1, 2, 4):
        target = recorded(models)
        repair = Repair(reject, 0, order, 2, keys=keys)  # type: ignore[arg-type]
        picture = draft_and_repair(target, drafter, rule, repair, rows, sampling(rows))
        assert 0 < sum(int(cycle.rejected.sum()) for cycle in picture.cycles) < 16
        np.testing.assert_allclose(target.distributions, dense(models, target), atol=1e-5)
