"""A small synthetic grid target: attention in miniature, with keys that depend on what they were computed beside."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from underpaint.algos.arrays import BoolArray, FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.mulo import RowDraft
from underpaint.algos.spatial.target import Feed

_WIDTH = 4


@dataclass(frozen=True, slots=True, eq=False)
class GridWeights:
    """The numbers of a synthetic target over `grid` and V tokens.

    embed: [V, F]; place: [cells, F]; look: [cells, cells] positive, how much a cell looks at another; base: [cells, V]
    and head: [F, V] turn a state into logits. `condition` [F] is what every cell sees first.
    """

    grid: Grid
    embed: FloatArray
    place: FloatArray
    look: FloatArray
    base: FloatArray
    head: FloatArray
    condition: FloatArray

    @classmethod
    def random(cls, grid: Grid, vocab_size: int, seed: int, coupling: float = 0.7) -> "GridWeights":
        """Random weights; at coupling 0 no cell minds any other."""
        draws = np.random.default_rng(seed)
        return cls(
            grid,
            draws.normal(size=(vocab_size, _WIDTH)),
            0.5 * draws.normal(size=(grid.cells, _WIDTH)),
            draws.uniform(0.2, 1.0, size=(grid.cells, grid.cells)),
            draws.normal(size=(grid.cells, vocab_size)),
            coupling * draws.normal(size=(_WIDTH, vocab_size)),
            draws.normal(size=_WIDTH),
        )


class SyntheticGridTarget:
    """A `GridTarget` of two layers.

    Layer 1 keeps a token's embedding e; layer 2 keeps h = tanh(e + the weighted mean of the visible e). The
    distribution of the next cell is softmax(base + head (h + the weighted mean of the visible h)). So h depends on what
    was visible when it
    was computed: keys kept beside a changed cell are stale, as a transformer's are.
    """

    def __init__(self, weights: GridWeights) -> None:
        self._weights = weights
        self._embeds = np.zeros((weights.grid.cells, _WIDTH))
        self._states = np.zeros((weights.grid.cells, _WIDTH))
        self._held = np.zeros(weights.grid.cells, dtype=np.bool_)
        self._last: tuple[IntArray, FloatArray, FloatArray] | None = None

    @property
    def vocab_size(self) -> int:
        return int(self._weights.embed.shape[0])

    @property
    def grid(self) -> Grid:
        return self._weights.grid

    def begin(self) -> FloatArray:
        self._held[:] = False
        self._last = None
        first: FloatArray = self._distribution(np.array([0]), self._weights.condition[None])[0]
        return first

    def score(self, feed: Feed) -> FloatArray:
        """Raises RuntimeError on a feed that breaks the contract."""
        self._check(feed)
        weights = self._weights
        new = weights.look[np.ix_(feed.cells, feed.cells)] * feed.visible
        old = weights.look[feed.cells] * feed.cached
        total = 1.0 + new.sum(axis=1) + old.sum(axis=1)

        def mean(fresh: FloatArray, past: FloatArray) -> FloatArray:
            summed: FloatArray = (weights.condition + new @ fresh + old @ past) / total[:, None]
            return summed

        embeds = weights.embed[feed.tokens] + weights.place[feed.cells]
        states = np.tanh(embeds + mean(embeds, self._embeds))
        self._last = (feed.cells, embeds, states)
        return self._distribution(
            np.minimum(feed.cells + 1, weights.grid.cells - 1), states + mean(states, self._states)
        )

    def commit(self, rows: IntArray) -> None:
        if self._last is None:
            raise RuntimeError("synthetic grid target: commit without a pass")
        cells, embeds, states = self._last
        self._embeds[cells[rows]] = embeds[rows]
        self._states[cells[rows]] = states[rows]
        self._held[cells[rows]] = True

    def _distribution(self, cells: IntArray, states: FloatArray) -> FloatArray:
        logits = self._weights.base[cells] + states @ self._weights.head
        masses = np.exp(logits - logits.max(axis=1, keepdims=True))
        distributions: FloatArray = masses / masses.sum(axis=1, keepdims=True)
        return distributions

    def _check(self, feed: Feed) -> None:
        count = feed.cells.size
        broken = (
            (feed.tokens.shape, feed.visible.shape, feed.cached.shape)
            != ((count,), (count, count), (count, self.grid.cells))
            or np.any(np.diff(feed.cells) <= 0)
            or np.any(np.triu(feed.visible, 1))
            or not feed.visible.diagonal().all()
            or np.any(feed.cached & ~self._held)
            or np.any(feed.visible & feed.cached[:, feed.cells])
            or np.any(feed.cached & (np.arange(self.grid.cells) >= feed.cells[:, None]))
        )
        if broken:
            raise RuntimeError(f"synthetic grid target: the feed breaks its contract: {feed}")


def dense_distributions(weights: GridWeights, tokens: IntArray) -> FloatArray:
    """[cells, V]: the distribution of each cell given all `tokens` [cells] before it, in one causal pass without a
    cache."""
    target = SyntheticGridTarget(weights)
    first = target.begin()
    count = weights.grid.cells - 1
    if count == 0:
        return first[None]
    causal: BoolArray = np.tri(count, dtype=np.bool_)
    feed = Feed(np.arange(count), tokens[:count], causal, np.zeros((count, count + 1), dtype=np.bool_))
    return np.concatenate([first[None], target.score(feed)])


def image_distribution(weights: GridWeights) -> dict[tuple[int, ...], float]:
    """The exact distribution of whole images, in raster order; for tiny grids."""
    cells, vocab_size = weights.grid.cells, int(weights.embed.shape[0])
    distribution: dict[tuple[int, ...], float] = {}
    for image in product(range(vocab_size), repeat=cells):
        rows = dense_distributions(weights, np.array(image, dtype=np.int64))
        distribution[image] = float(np.prod(rows[np.arange(cells), list(image)]))
    return distribution


@dataclass(frozen=True, slots=True, eq=False)
class FixedRows:
    """A `RowDrafter` that draws each cell from a distribution of its own, [cells, V], whatever came before.

    points: say nothing of the distributions, as an up-sampler that returns tokens does.
    """

    distributions: FloatArray
    width: int
    points: bool = False

    def propose(self, tokens: IntArray, rows: range, chance: Chance) -> RowDraft:
        cells = range(rows.start * self.width, rows.stop * self.width)
        drawn_tokens = [chance.draw(self.distributions[cell], At(Role.DRAFT, cell)) for cell in cells]
        return RowDraft(
            np.array(drawn_tokens, dtype=np.int64),
            None if self.points else self.distributions[cells.start : cells.stop],
        )
