"""Attention equals a plain softmax, however its keys are split among programs."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from underpaint.runtime.device.kernels.attention import Filled, attention, most_programs, splits_of

CPU = torch.device("cpu")
SIZE, WIDTH = 160, 8


@dataclass
class Case:
    """Two images of unequal length, each a pair of rows of `kv_heads` heads of keys."""

    positions: int
    heads: int = 2
    kv_heads: int = 2
    sparse: bool = False

    def __post_init__(self) -> None:
        torch.manual_seed(self.positions + 10 * self.heads)
        rows, new = 4, self.positions + 2
        self.query = torch.randn(rows, self.heads, self.positions, WIDTH)
        self.cache = torch.randn(2, rows, self.kv_heads, SIZE, WIDTH)
        self.cache[0, :, :, 65:70] = self.cache[0, :, :, :5]  # ties of two tiles
        self.slots = torch.randn(2, rows, self.kv_heads, new, WIDTH)
        self.lengths = torch.tensor([150, 3])  # the second leaves all but one split without a key
        self.unseen = torch.tensor([0, 0, 66, 3])
        self.seen = torch.rand(2, self.positions, new) < 0.6
        self.seen[:, :, 0] = True
        self.filled = torch.rand(2, SIZE) < 0.7
        self.bounds = torch.randint(1, 150, (2, self.positions))
        if self.sparse:  # what an earlier batch left
            for image in range(2):
                self.cache[:, image::2, :, ~self.filled[image]] = float("nan")

    def by_kernel(self, splits: int) -> Tensor:
        bits = (self.seen.to(torch.int64) << torch.arange(self.seen.shape[2])).sum(dim=2, keepdim=True)
        out = torch.full((4, self.positions, self.heads * WIDTH), 9.0)
        arrivals = torch.zeros(4, most_programs(self.heads, self.kv_heads, self.positions), dtype=torch.int32)
        filled = Filled(self.filled.to(torch.int32), self.bounds) if self.sparse else None
        args = (self.query, self.cache, self.slots, self.lengths, self.unseen, bits, out, arrivals, 77)
        attention(*args, filled, splits)
        assert not arrivals.any()
        return out

    def by_softmax(self) -> Tensor:
        place, group = torch.arange(SIZE), self.heads // self.kv_heads
        outs = []
        for row in range(4):
            image = row % 2
            old = (place >= self.unseen[row]) & (place < self.lengths[image])
            old = old.expand(self.positions, SIZE)
            if self.sparse:
                old = old & self.filled[image] & (place < self.bounds[image][:, None])
            sees = torch.cat([old, self.seen[image]], dim=1)
            keys, values = torch.cat([self.cache[:, row], self.slots[:, row]], dim=2).nan_to_num()
            keys, values = (part.repeat_interleave(group, dim=0) for part in (keys, values))
            scores = self.query[row] @ keys.transpose(1, 2) * WIDTH**-0.5
            mixed = scores.masked_fill(~sees, float("-inf")).softmax(dim=2) @ values
            outs.append(mixed.transpose(0, 1).flatten(1))
        return torch.stack(outs)


CASES = {
    "one query": Case(1),
    "one query of filled cells": Case(1, sparse=True),
    "one position of grouped heads": Case(1, heads=4),
    "a tree": Case(5),
    "a tree of filled cells": Case(5, sparse=True),
    "two blocks of queries": Case(19, heads=2, kv_heads=1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("splits", [1, 2, 5])
def test_attention_is_a_softmax_however_it_is_split(case: str, splits: int) -> None:
    torch.testing.assert_close(CASES[case].by_kernel(splits), CASES[case].by_softmax(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "queries", "splits"), [(2, 1, 6), (2, 6, 3), (2, 16, 3), (2, 32, 1), (4, 1, 3), (32, 1, 1), (8, 6, 1)]
)
def test_keys_are_split_where_multiprocessors_would_be_idle(rows: int, queries: int, splits: int) -> None:
    """LlamaGen-XL's 20 heads at half of 1,024 cells on an H100; with 16 images nothing is split."""
    assert splits_of(20 * rows, 513, queries, CPU) == splits


def test_short_caches_are_not_split() -> None:
    assert splits_of(4, 60, 1, CPU) == 1
