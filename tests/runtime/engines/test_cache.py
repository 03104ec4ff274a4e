"""The key-value cache against a list of what every row committed."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.engines import cache as cache_module
from underpaint.runtime.engines.cache import HostMemory, KeyValueCache
from underpaint.runtime.engines.context import EngineError

LAYERS, HEADS, HEAD_DIM, CAPACITY = 2, 3, 2, 11
CONFIG = DecoderConfig(
    7, LAYERS, 2 * HEADS, 1, 7, 2, 1, rope="none", kv_heads=HEADS, head_dim=HEAD_DIM, capacity=CAPACITY
)


@dataclass
class Checked:
    """A cache beside the rows that it should hold: [L, H, hd] of every committed position."""

    rows: int
    hidden: tuple[int, ...] = ()
    memory: HostMemory = field(init=False)
    cache: KeyValueCache = field(init=False)
    keys: list[list[np.ndarray]] = field(init=False)
    turn: int = 0

    def __post_init__(self) -> None:
        self.memory = HostMemory(CONFIG, self.rows)
        self.cache = KeyValueCache(self.memory, self.rows)
        self.cache.clear(self.hidden)
        self.keys = [[] for _ in range(self.rows)]

    def run(self, count: int) -> np.ndarray:
        """A pass of `count` new positions; its keys, which are the negative of its values."""
        self.turn += 1
        rng = np.random.default_rng(self.turn)
        self.memory.new_keys = rng.standard_normal((LAYERS, self.rows, HEADS, count, HEAD_DIM)).astype(np.float32)
        self.memory.new_values = -self.memory.new_keys
        return self.memory.new_keys

    def commit(self, count: int, positions: np.ndarray | slice, counts: tuple[int, ...] | None) -> None:
        """Commit, to the cache and to the lists."""
        keys = self.run(count)
        self.cache.commit(positions, counts)
        for row, row_keys in enumerate(self.keys):
            chosen = np.arange(count)[positions] if isinstance(positions, slice) else positions
            chosen = chosen[row] if chosen.ndim == 2 else chosen
            row_keys += [keys[:, row, :, at] for at in chosen[: None if counts is None else counts[row]]]

    def check(self) -> None:
        """Everything committed is there and visible, and nothing else is visible."""
        assert self.cache.lengths.tolist() == [len(row_keys) for row_keys in self.keys]
        bias = self.cache.past_bias
        assert bias.shape == (self.rows, 1, self.cache.slots)
        for row, row_keys in enumerate(self.keys):
            hidden = self.hidden[row] if self.hidden else 0
            visible = (np.arange(self.cache.slots) >= hidden) & (np.arange(self.cache.slots) < len(row_keys))
            np.testing.assert_array_equal(bias[row, 0], np.where(visible, 0, MASKED_SCORE))
            for slot, key in enumerate(row_keys):
                np.testing.assert_array_equal(self.memory.keys[:, row, :, :, slot], key)
                np.testing.assert_array_equal(self.memory.values[:, row, :, slot], -key)


@st.composite
def commits(draw: st.DrawFn, rows: int) -> tuple[int, np.ndarray | slice, tuple[int, ...] | None]:
    count = draw(st.integers(1, 3))
    chosen = st.lists(st.integers(0, count - 1), max_size=count, unique=True)
    counts = st.none() | st.tuples(*[st.integers(0, count)] * rows)
    kind = draw(st.sampled_from(["slice", "shared", "own"]))
    if kind == "slice":
        return count, slice(draw(st.integers(0, count)), count), draw(counts)
    if kind == "shared":
        return count, np.array(draw(chosen), dtype=np.int64), draw(counts)
    positions = [draw(st.permutations(range(count))) for _ in range(rows)]
    return count, np.array(positions), draw(counts)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 3), block=st.sampled_from([2, 5, 64]))
def test_rows_of_any_progress_hold_what_they_committed(data: st.DataObject, rows: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_module, "BLOCK", block)
        hidden = data.draw(st.just(()) | st.tuples(*[st.integers(0, 4)] * rows))
        checked = Checked(rows, hidden)
        for _ in range(3):
            checked.commit(*data.draw(commits(rows)))
            checked.check()


def test_scratch_and_what_is_written_over_change_no_length() -> None:
    checked = Checked(2)
    checked.commit(3, slice(None), (3, 1))
    keys = checked.run(2)
    assert checked.cache.write_scratch(1) == 2
    checked.check()
    for row, length in enumerate((3, 1)):
        scratch_keys = checked.memory.keys[:, row, :, :, length + 1 : length + 3]
        np.testing.assert_array_equal(scratch_keys, keys[:, row].swapaxes(2, 3))
    keys = checked.run(3)
    checked.cache.write_at(np.array([2, 0, 1]), np.array([0, 8, 9]))
    assert checked.cache.lengths.tolist() == [3, 1]
    for at, slot in ((2, 0), (0, 8), (1, 9)):
        np.testing.assert_array_equal(checked.memory.values[:, :, :, slot], -keys[:, :, :, at])


def test_rows_of_different_lengths_have_no_one_length() -> None:
    checked = Checked(2)
    checked.commit(2, slice(None), (2, 1))
    with pytest.raises(EngineError, match=r"rows of one length, got \[2, 1\]"):
        _ = checked.cache.length
    checked.commit(1, slice(None), (0, 1))
    assert checked.cache.length == 2
    with pytest.raises(EngineError, match="hidden slots of 2 rows"):
        checked.cache.clear((1,))


def test_a_full_cache_refuses_and_keeps_what_it_has() -> None:
    checked = Checked(1)
    checked.commit(CAPACITY, slice(None), None)
    checked.run(1)
    with pytest.raises(EngineError, match="expected at most 11 positions, got 12"):
        checked.cache.commit(slice(None))
    checked.check()
