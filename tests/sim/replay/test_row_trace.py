"""Rows drafted by a low-resolution model, recorded in a trace with the target's distributions along them."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.grid_model import FixedRows, GridWeights, SyntheticGridTarget, dense_distributions
from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import Chance, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.mulo import RowDraft
from underpaint.sim.replay.predict_rows import rows_for
from underpaint.sim.replay.recording import Recorder
from underpaint.sim.replay.row_trace import (
    DRAFTED_BY,
    RecordedGridTarget,
    RecordedRows,
    RowRecorder,
    RowTrace,
    drafting,
)
from underpaint.sim.replay.trace import Trace, dense, load, save
from underpaint.sim.synthetic.models import Blend, RandomDistribution, SyntheticDrafter, SyntheticTarget

GRID, VOCAB = Grid(4, 3), 5
WEIGHTS = GridWeights.random(GRID, VOCAB, seed=2, coupling=1.5)
SETTINGS = {
    **{"resampler": "latent", "ratio": 2, "rows": None, "draft_window": 1},
    **{"draft_adaptive": False, "draft_int8": None},
}
IMAGE = np.random.default_rng(1).integers(0, VOCAB, GRID.cells)


@dataclass
class Low:
    """Draws rows in passes of sizes that depend on where they start."""

    passes: tuple[int, ...] = ()

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        self.passes = (0, 1, 1 + rows.start)
        return FixedRows(np.full((GRID.cells, VOCAB), 1.0 / VOCAB), GRID.width, points=True).propose(
            tokens, rows, chance
        )


def drafted(rows_per_cycle: int, keep: int = VOCAB, images: int = 1) -> RowTrace:
    recorder = RowRecorder({**SETTINGS, "tau": 0.3}, keep)
    for image in range(images):
        recorder.add(SyntheticGridTarget(WEIGHTS), Low(), IMAGE, rows_per_cycle, sampling(5, image))
    return recorder.trace()


@pytest.mark.parametrize("rows_per_cycle", [4, 3, 1])
def test_each_block_is_drafted_after_the_plain_picture_and_read_in_one_pass(rows_per_cycle: int) -> None:
    row_trace = drafted(rows_per_cycle)
    distributions = dense(row_trace.distribution_tokens, row_trace.distribution_probs, VOCAB)[0]
    for start in range(0, GRID.height, rows_per_cycle):
        first, stop = start * GRID.width, min(start + rows_per_cycle, GRID.height) * GRID.width
        seen = np.concatenate([IMAGE[:first], row_trace.drafts[0, first:stop], IMAGE[stop:]])
        assert distributions[first:stop] == pytest.approx(dense_distributions(WEIGHTS, seen)[first:stop], abs=1e-6)
    blocks = range(0, GRID.height, rows_per_cycle)
    assert row_trace.low_passes[0, 1] == 2 * len(blocks) + 1
    assert all(row_trace.low_passes[0, 1 + start] == 1 for start in blocks[1:])
    assert row_trace.settings == SETTINGS
    assert tuple(row_trace.settings) == DRAFTED_BY


def test_rows_of_before_there_were_products_in_8_bits_are_of_float32() -> None:
    row_trace = drafted(4)
    settings = {name: value for name, value in SETTINGS.items() if name != "draft_int8"}
    assert drafting(settings) == {**SETTINGS, "draft_int8": False} != drafting(SETTINGS)
    earlier = dataclasses.replace(row_trace, settings=settings)
    trace = SimpleNamespace(rows=(row_trace, earlier))
    assert rows_for(trace, {**SETTINGS, "draft_int8": False}) is earlier
    assert rows_for(trace, settings) is earlier
    assert rows_for(trace, SETTINGS) is row_trace


def test_recorded_rows_and_distributions_stand_in_for_the_models() -> None:
    row_trace = drafted(4)
    target = RecordedGridTarget(GRID, dense(row_trace.distribution_tokens, row_trace.distribution_probs, VOCAB)[0])
    assert target.vocab_size == VOCAB
    assert target.begin() == pytest.approx(dense_distributions(WEIGHTS, IMAGE)[0], abs=1e-6)
    rows = RecordedRows(row_trace.drafts[0], GRID.width).propose(IMAGE, range(1, 3), sampling(0))
    assert rows.tokens.tolist() == row_trace.drafts[0, 3:9].tolist()
    assert rows.distributions is None


def whole(rows: tuple[RowTrace, ...]) -> Trace:
    distribution = RandomDistribution(VOCAB, seed=1)
    near = np.array([[(code + 1) % VOCAB] for code in range(VOCAB)])
    recorder = Recorder(np.random.default_rng(0).standard_normal((VOCAB, 2)), near, 2, VOCAB)
    for image in range(2):
        drafter = SyntheticDrafter(Blend(distribution, RandomDistribution(VOCAB, seed=2), 0.4))
        tokens = recorder.add(SyntheticTarget(distribution, GRID), drafter, sampling(5, image), greedy=False)
        assert tokens.shape == (GRID.cells,)
    return recorder.trace({}, rows)


def test_drafted_rows_come_back_from_a_trace_s_file(tmp_path: Path) -> None:
    rows = (drafted(4, images=2), dataclasses.replace(drafted(2, keep=2, images=2), settings={**SETTINGS, "rows": 1}))
    save(whole(rows), tmp_path / "one.npz")
    again = load(tmp_path / "one.npz").rows
    assert [one.settings["rows"] for one in again] == [None, 1]
    assert [one.rows_per_cycle for one in again] == [4, 2]
    for one, other in zip(rows, again, strict=True):
        for name in ("drafts", "distribution_tokens", "low_passes"):
            assert np.array_equal(getattr(one, name), getattr(other, name))
        assert one.distribution_probs == pytest.approx(other.distribution_probs, abs=1e-6)


def test_a_file_from_before_drafted_rows_is_a_trace_still(tmp_path: Path) -> None:
    save(whole(()), tmp_path / "one.npz")
    with np.load(tmp_path / "one.npz") as archive:
        arrays = dict(archive)
    head = str(arrays.pop("head"))
    assert ', "rows": []' in head
    np.savez(tmp_path / "old.npz", head=np.array(head.replace(', "rows": []', "")), **arrays)
    assert load(tmp_path / "old.npz").rows == ()
    np.savez(tmp_path / "torn.npz", head=np.array(head.replace('"rows": []', '"rows": [{}]')), **arrays)
    with pytest.raises(ValueError, match="is no trace"):
        load(tmp_path / "torn.npz")


def test_drafted_rows_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected drafted rows \(2, 12\), got \(1, 12\)"):
        whole((drafted(4),))
    with pytest.raises(ValueError, match=r"drafted rows: expected low_passes \(1, 13\), got \(1, 12\)"):
        dataclasses.replace(drafted(4), low_passes=np.zeros((1, 12), dtype=np.int64))
    with pytest.raises(ValueError, match="nothing was recorded"):
        RowRecorder(SETTINGS, 4).trace()
