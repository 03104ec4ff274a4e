"""Row fronts for both runtimes: a target whose numbers are a hash of all that a position sees, the same to the bit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runtime.device.test_kernels import whole
from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, FromUniforms, sampling
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_fronts
from underpaint.algos.spatial.target import Feed
from underpaint.algos.spatial.zipar import zipar
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.runtime.device import cell_cycle
from underpaint.runtime.device.forms import BatchSizes
from underpaint.runtime.device.forwards import Attend, Prefill
from underpaint.runtime.device.kernels.probs import probs
from underpaint.runtime.methods.fronts import device as front_cycles
from underpaint.runtime.methods.fronts.device import FrontForm, JacobiFrontForm

PREFIX, LINES, SEED = 3, 97, 5
CPU = torch.device("cpu")


def told(tokens: Tensor | IntArray, cells: Tensor | IntArray) -> Tensor | IntArray:
    """What a position tells those that see it; a decode's numbers are sums of these."""
    return (tokens * 31 + (cells + PREFIX) * 7 + 1) % LINES


def condition(image: int, vocab_size: int) -> list[int]:
    return [(image + place) % vocab_size for place in range(PREFIX)]


class HashForward:
    """A `DeviceDecoder` on lines [rows, LINES, V]; what it tells stands in the cache in the place of keys."""

    def __init__(self, lines: Tensor) -> None:
        self._lines = lines
        self.config = DecoderConfig(1, 1, 1, 1, lines.shape[2], 1, 1, rope="none", head_dim=2)
        self.rows, self.dtype, self.places = lines.shape[0], torch.float32, None
        self.spoilt: Sequence[int] = ()

    def embed(self, tokens: Tensor) -> Tensor:
        return tokens.repeat(self.rows, 1)[:, :, None].float()

    def hidden(self, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        rows, count = self.rows, embeddings.shape[1]
        values = told(embeddings[:, :, 0].long(), positions.repeat(rows, 1))
        cache = attend.cache
        if isinstance(attend, Prefill):
            cache.committed[0, 0, :, 0, :count, 0] = values.float()
            return (values.cumsum(1) % LINES).float()[:, :, None]
        cache.slots[0, 0, :, 0, :count, 0] = values.float()
        among = (attend.masks[:, :, 0, None] >> torch.arange(count)) & 1
        slot = torch.arange(cache.committed.shape[4])
        there = (attend.filled.slots[:, None] == 1) & (slot < attend.lengths[:, None, None])
        there = (there & (slot < attend.filled.bounds[:, :, None])).repeat(rows, 1, 1)
        past = torch.where(there, cache.committed[0, 0, :, 0, :, 0].long()[:, None], 0).sum(2)
        return ((past + (among.repeat(rows, 1, 1) * values[:, None]).sum(2)) % LINES).float()[:, :, None]

    def logits(self, features: Tensor) -> Tensor:
        logits = self._lines[
            torch.arange(self.rows).repeat_interleave(features.shape[0] // self.rows)[:, None],
            features[:, :, 0].long(),
        ]
        logits[list(self.spoilt)] = float("nan")
        return logits


@dataclass
class HashGrid:
    """The same as a `GridTarget`. row: the distribution [V] of a line."""

    row: Callable[[int], FloatArray]
    grid: Grid
    vocab_size: int
    image: int
    _kept: IntArray = field(init=False)
    _values: IntArray = field(init=False)
    _cells: IntArray = field(init=False)

    def begin(self) -> FloatArray:
        first = np.array(condition(self.image, self.vocab_size))
        self._before = int(told(first, np.arange(-PREFIX, 0)).sum())
        self._kept = np.zeros(self.grid.cells, dtype=np.int64)
        return self.row(self._before % LINES)

    def score(self, feed: Feed) -> FloatArray:
        self._values, self._cells = told(feed.tokens, feed.cells), feed.cells
        sums = self._before + feed.cached @ self._kept + feed.visible @ self._values
        return np.stack([self.row(int(line)) for line in sums % LINES])

    def commit(self, rows: IntArray) -> None:
        self._kept[self._cells[rows]] = self._values[rows]


class Decoded(NamedTuple):
    """Tokens by cell, and target passes."""

    tokens: list[int]
    passes: int


def by_reference(method: FrontForm | JacobiFrontForm, target: HashGrid, chance: Chance) -> Decoded:
    if isinstance(method, FrontForm):
        decoded = zipar(target, method.window, chance, adaptive=method.adaptive)
    else:
        decoded = jacobi_fronts(target, method.fronts, chance)
    return Decoded(decoded.tokens.tolist(), len(decoded.passes))


def by_device(
    method: FrontForm | JacobiFrontForm, target: HashForward, grid: Grid, images: Sequence[int]
) -> list[Decoded]:
    """Every image, all in one batch, in buffers that a batch before has left full of rubbish."""
    cycle = method.cycle(target, None, BatchSizes(grid, PREFIX, len(images), CPU))
    first = torch.tensor([condition(image, target.config.vocab_size) for image in images])
    state = cycle.state
    for part in (state.tree.draft_probs, state.tree.probs, state.target_cache.slots):
        part.fill_(0.5)
    cycle.begin(target.embed(first), whole(*(SEED for _ in images)), whole(*images))
    state.target_cache.committed[:, :, :, :, PREFIX:] = 13.0
    for _ in range(grid.cells + 1):
        if bool((state.verdicts.status > 0).all()):
            break
        cycle.run()
    tokens, status = state.progress.decided.tolist(), state.verdicts.status.tolist()
    passes = state.progress.cycles.tolist()
    return [Decoded(one if ended == 1 else [], n) for one, ended, n in zip(tokens, status, passes, strict=True)]


@dataclass(frozen=True)
class Sampled:
    """Logits by line, for a guidance pair, and single decodes by them, through the device's own sampler."""

    lines: Tensor
    grid: Grid
    sampler: SamplingParams
    _made: dict[int, FloatArray] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: int, grid: Grid, temperature: float, vocab_size: int = 5) -> "Sampled":
        logits = np.round(1.5 * np.random.default_rng(seed).standard_normal((2, LINES, vocab_size)), 1)
        return cls(torch.from_numpy(logits.astype(np.float32)), grid, SamplingParams(2.0, temperature=temperature))

    def row(self, line: int) -> FloatArray:
        if line not in self._made:
            vocab_size = self.lines.shape[2]
            out, stats = torch.zeros(1, 1, vocab_size), torch.ones(2, 1, 1, dtype=torch.int32)
            probs(self.lines[:, line].clone()[:, None, None], out, stats[0], stats[1], whole(1), self.sampler)
            self._made[line] = out.numpy()[0, 0]
        return self._made[line]

    def alone(self, method: FrontForm | JacobiFrontForm, image: int) -> Decoded:
        target = HashGrid(self.row, self.grid, self.lines.shape[2], image)
        return by_reference(method, target, sampling(SEED, image))

    def batch(self, method: FrontForm | JacobiFrontForm, images: Sequence[int]) -> list[Decoded]:
        return by_device(method, HashForward(self.lines), self.grid, images)


class Given(NamedTuple):
    """Distributions [n, V] float32 that lines are picked from, and uniforms that every draw picks one of."""

    rows: FloatArray
    uniforms: tuple[float, ...]

    def line(self, line: int) -> FloatArray:
        row: FloatArray = self.rows[line * 5 % LINES % len(self.rows)]
        return row

    def uniform(self, image: int, cycle: int, role: int, node: int) -> float:
        return self.uniforms[(image * 3 + cycle * 5 + role * 7 + node * 11) % 103 % len(self.uniforms)]


def given_decodes_agree(method: FrontForm | JacobiFrontForm, grid: Grid, inputs: Given, images: Sequence[int]) -> bool:
    """Whether a batch is the reference's single decodes, where distributions and uniforms are these."""
    expected = []
    for image in images:

        def source(cycle: int, at: At, image: int = image) -> float:
            return inputs.uniform(image, cycle, at.role, at.node)

        target = HashGrid(inputs.line, grid, inputs.rows.shape[1], image)
        expected.append(by_reference(method, target, FromUniforms(source)))

    def fill(out: Tensor, seeds: Tensor, keys: Tensor, cycles: Tensor, cells: Tensor, roles: Tensor) -> None:
        for place, turn, column in np.ndindex(*out.shape):
            node = max(0, int(cells[place, column]))
            address = int(keys[place]), int(cycles[place]), int(roles[turn]), node
            out[place, turn, column] = inputs.uniform(*address)

    def as_they_are(logits: Tensor, out: Tensor, *_: object) -> None:
        out[:, : logits.shape[2]] = logits[0]

    lines = torch.from_numpy(np.stack([inputs.line(line) for line in range(LINES)]))[None]
    with pytest.MonkeyPatch.context() as patch:
        for module in (front_cycles,):
            patch.setattr(module, "cell_uniforms", fill)
        patch.setattr(cell_cycle, "probs", as_they_are)
        return by_device(method, HashForward(lines), grid, images) == expected


def adaptive(window: int, temperature: float = 1.0) -> FrontForm:
    return FrontForm(window, SamplingParams(2.0, temperature=temperature), adaptive=True)


def jacobi(lead: int, window: int, refill: str, redraw: str, temperature: float = 1.0) -> JacobiFrontForm:
    return JacobiFrontForm(JacobiFronts(lead, window, refill, redraw), SamplingParams(2.0, temperature=temperature))
