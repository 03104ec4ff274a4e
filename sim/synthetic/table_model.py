"""Synthetic models made of tables: a distribution for every context, looked up by the cell, the left token and the
upper token.

The same tables serve the decoding loop, one image at a time, and the vectorised path over many images.
"""

from dataclasses import dataclass, field

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.step import Scored
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class TableModel:
    """A target and a drafter as tables of distributions, over a pool of I images.

    target: [R, V] distributions. draft: [D, R, V]; draft[d] is the drafter's distribution d tokens past the root (the
    last one holds
        deeper). starts: [I, cells] int64, the first row of the block of rows that a cell picks from.
    classes: [V + 1] int64, the class of each token; the last entry is for "no token" (outside the image).
    stride: a cell's row is starts + classes[left] * stride + classes[upper]; 0 with all classes 0: no context.
    codebook: [V, E], the codes that neighbours are taken from.
    """

    name: str
    grid: Grid
    target: FloatArray
    draft: FloatArray
    starts: IntArray
    classes: IntArray
    stride: int
    codebook: FloatArray

    def __post_init__(self) -> None:
        rows, vocab_size = self.target.shape
        if self.draft.ndim != 3 or self.draft.shape[1:] != (rows, vocab_size):
            raise ValueError(
                f"table model: expected draft distributions [D, {rows}, {vocab_size}], got {self.draft.shape}"
            )
        if self.starts.ndim != 2 or self.starts.shape[1] != self.grid.cells:
            raise ValueError(f"table model: expected starts [images, {self.grid.cells}], got {self.starts.shape}")
        if self.classes.shape != (vocab_size + 1,) or self.codebook.shape[0] != vocab_size:
            raise ValueError(
                f"table model: expected classes [{vocab_size + 1}] and a codebook [{vocab_size}, E], got "
                f"{self.classes.shape} and {self.codebook.shape}"
            )
        largest = int(self.starts.max()) + int(self.classes.max()) * (self.stride + 1)
        if int(self.starts.min()) < 0 or largest >= rows:
            raise ValueError(f"table model: contexts reach row {largest}, the tables hold {rows}")
        for what, distributions in (("target", self.target), ("draft", self.draft)):
            sums = distributions.sum(axis=-1)
            if not np.all(np.abs(sums - 1.0) < 1e-4) or float(distributions.min(initial=0.0)) < 0.0:
                raise ValueError(f"table model: the {what} distributions must be non-negative rows that sum to 1")

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.target.shape[1])

    @property
    def images(self) -> int:
        """I."""
        return int(self.starts.shape[0])

    def rows(self, images: IntArray, cells: IntArray, tokens: IntArray, upper: IntArray) -> IntArray:
        """The rows of `cells`, given the token before each in raster order and the one above it. Shapes broadcast.

        tokens: NO_TOKEN before the first cell; ignored at the start of a row. upper: NO_TOKEN in the first row.
        """
        left = np.where(cells % self.grid.width == 0, NO_TOKEN, tokens)
        found: IntArray = self.starts[images, cells] + self.classes[left] * self.stride + self.classes[upper]
        return found


class _Canvas:
    """The tokens of one image, and the context of any node on top of it."""

    __slots__ = ("committed", "image", "model")

    def __init__(self, model: TableModel, image: int) -> None:
        self.model, self.image = model, np.int64(image % model.images)
        self.committed: list[int] = []

    def row(self, path: list[int]) -> int:
        """The row of the cell after `path`, which stands on the committed tokens."""
        width = self.model.grid.width
        cell = min(len(self.committed) + len(path), self.model.grid.cells - 1)
        above = cell - width
        known = len(self.committed)
        upper = NO_TOKEN if above < 0 else self.committed[above] if above < known else path[above - known]
        before = path[-1] if path else self.committed[-1] if self.committed else NO_TOKEN
        image, cells, left, above_it = (np.asarray(one) for one in (self.image, cell, before, upper))
        return int(self.model.rows(image, cells, left, above_it))

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """Take in the root and the accepted nodes."""
        self.committed.extend(int(tree.tokens[node]) for node in (0, *verdict.path))


@dataclass(slots=True)
class TableModelImage:
    """A target or a drafter at image `image` of a table model; the pool of images repeats."""

    model: TableModel
    image: int

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.model.vocab_size

    @property
    def grid(self) -> Grid:
        """The image to draw."""
        return self.model.grid


@dataclass(slots=True)
class TableTarget(TableModelImage):
    """A `Target` of tables."""

    passes: list[int] = field(default_factory=list)
    """Nodes of every pass since `begin`, the first included."""
    _canvas: _Canvas = field(init=False)

    def begin(self) -> Scored:
        self._canvas = _Canvas(self.model, self.image)
        self.passes = [1]
        return Scored(self.model.target[[self._canvas.row([])]])

    def score(self, tree: DraftTree) -> Scored:
        paths: list[list[int]] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            paths.append([token] if parent < 0 else [*paths[parent], token])
        self.passes.append(tree.size)
        return Scored(self.model.target[[self._canvas.row(path) for path in paths]])

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        self._canvas.commit(tree, verdict)


@dataclass(slots=True)
class TableDrafter(TableModelImage):
    """A `Drafter` of tables. chains: whether it drafts a chain in one call, as a `ChainExpander` does."""

    fuses_chains: bool = False
    passes: list[int] = field(default_factory=list)
    """Nodes of every pass since `begin`; each level of a chain is a pass over one node."""
    chained: list[int] = field(default_factory=list)
    """Levels of every chain that was drafted in one call."""
    _canvas: _Canvas = field(init=False)
    _paths: list[list[int]] = field(default_factory=list)

    def begin(self, scored: Scored) -> None:
        self._canvas = _Canvas(self.model, self.image)
        self.passes, self.chained, self._paths = [], [], []

    def expand_chain(self, root: int, levels: int) -> IntArray:
        self.chained.append(levels)
        tokens = [root]
        for level in range(levels):
            distribution = self.expand(np.array(tokens[-1:]), np.array([level - 1]))
            tokens.append(int(distribution.argmax()))
        return np.array(tokens[1:], dtype=np.int64)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        first = len(self._paths)
        for token, parent in zip(tokens.tolist(), parents.tolist(), strict=True):
            self._paths.append([token] if parent < 0 else [*self._paths[parent], token])
        self.passes.append(tokens.size)
        deepest = self.model.draft.shape[0] - 1
        new = self._paths[first:]
        depths = [min(len(path) - 1, deepest) for path in new]
        distributions: FloatArray = self.model.draft[depths, [self._canvas.row(path) for path in new]]
        return distributions

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self._canvas.commit(tree, verdict)
        self._paths = []
