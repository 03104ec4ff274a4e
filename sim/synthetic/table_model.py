"""Table models: synthetic models that look up a distribution by the cell, the left token and the upper token.

The decoding loop (one image at a time) and the vectorised path (many images) use the same tables.
"""

from dataclasses import dataclass, field

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.batched.sparse_table import SparseTable, Table, Tables
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.target import Feed
from underpaint.algos.step import Scored
from underpaint.algos.tree import NO_TOKEN, DraftTree, Verdict


@dataclass(frozen=True, slots=True, eq=False)
class TableModel:
    """A target and a drafter as tables of distributions, for a pool of I images.

    Attributes:
        name: Name of the model, for messages.
        grid: Rows and columns of an image.
        target: [R, V] distributions of the target.
        draft: [D, R, V] distributions of the drafter, by tokens past the root; the last table serves deeper tokens too.
        starts: [I, cells] int64, the first row of each cell's block of rows.
        classes: [V + 1] int64, the class of each token; the last entry is for "no token" (outside the image).
        stride: A cell's row is starts + classes[left] * stride + classes[upper]; if all are 0, there is no context.
        codebook: [V, E], the embeddings of the codes.
    """

    name: str
    grid: Grid
    target: Table
    draft: Tables
    starts: IntArray
    classes: IntArray
    stride: int
    codebook: FloatArray
    left_terms: IntArray = field(init=False, repr=False)
    """[V + 1] int64, what the token before a cell adds to its row; the last entry is for "no token"."""

    def __post_init__(self) -> None:
        rows, vocab_size = self.target.shape
        shapes = [table.shape for table in self.draft]
        if any(shape != (rows, vocab_size) for shape in shapes):
            raise ValueError(f"table model: expected draft distributions [D, {rows}, {vocab_size}], got {shapes}")
        if self.starts.ndim != 2 or self.starts.shape[1] != self.grid.cells:
            raise ValueError(f"table model: expected starts [images, {self.grid.cells}], got {self.starts.shape}")
        if self.classes.shape != (vocab_size + 1,) or self.codebook.shape[0] != vocab_size:
            raise ValueError(
                f"table model: expected classes [{vocab_size + 1}] and a codebook [{vocab_size}, E], got "
                f"{self.classes.shape} and {self.codebook.shape}"
            )
        object.__setattr__(self, "left_terms", self.classes * self.stride)
        largest = int(self.starts.max()) + int(self.classes.max()) * (self.stride + 1)
        if int(self.starts.min()) < 0 or largest >= rows:
            raise ValueError(f"table model: contexts reach row {largest}, the tables hold {rows}")
        for what, table in (("target", self.target), *(("draft", table) for table in self.draft)):
            if isinstance(table, SparseTable):  # its rows are valid by construction
                continue
            if not np.all(np.abs(table.sum(axis=-1) - 1.0) < 1e-4) or float(table.min(initial=0.0)) < 0.0:
                raise ValueError(f"table model: the {what} distributions must be non-negative rows that sum to 1")

    @property
    def vocab_size(self) -> int:
        """V, the size of the vocabulary."""
        return int(self.target.shape[1])

    @property
    def images(self) -> int:
        """I, the number of images."""
        return int(self.starts.shape[0])

    @property
    def nbytes(self) -> int:
        """Memory of the tables in bytes."""
        return self.target.nbytes + sum(table.nbytes for table in self.draft) + self.starts.nbytes

    def rows(self, images: IntArray, cells: IntArray, tokens: IntArray, upper: IntArray) -> IntArray:
        """Return the table rows of cells; the shapes of the arguments broadcast.

        Args:
            images: Indices of images in the pool.
            cells: Cells in raster order.
            tokens: Tokens before the cells in raster order; NO_TOKEN before the first cell. Ignored at the start of a
                row.
            upper: Tokens above the cells; NO_TOKEN in the first row.
        """
        left = np.where(cells % self.grid.width == 0, NO_TOKEN, tokens)
        rows: IntArray = self.starts[images, cells] + self.classes[left] * self.stride + self.classes[upper]
        return rows


class _Canvas:
    """The committed tokens of one image, and the contexts of draft nodes after them."""

    def __init__(self, model: TableModel, image: int) -> None:
        self._model, self._width, self._last = model, model.grid.width, model.grid.cells - 1
        self._starts: IntArray = model.starts[image % model.images]
        # A row of NO_TOKEN is stored above the image, so that the token above cell c is at index c.
        self._tokens: IntArray = np.full(self._width + model.grid.cells, NO_TOKEN)
        self._root_cell = 0

    def first_row(self) -> int:
        """The table row of cell 0."""
        none = int(self._model.classes[NO_TOKEN])
        return int(self._starts[0]) + none * self._model.stride + none

    def level_rows(self, tokens: IntArray, depth: int) -> IntArray:
        """[F] the table rows of the cell after nodes at one `depth` (0: the root), if the cell above is committed."""
        cell = min(self._root_cell + 1 + depth, self._last)
        base = self._starts[cell] + self._model.classes[self._tokens[cell]]
        if cell % self._width == 0:
            return np.full(tokens.size, base + self._model.left_terms[NO_TOKEN])
        rows: IntArray = self._model.left_terms.take(tokens)
        rows += base
        return rows

    def node_rows(self, tokens: IntArray, parents: IntArray, depths: IntArray) -> IntArray:
        """[N] the table rows of the cells after N nodes, which must include all their ancestors."""
        cells = np.minimum(depths + (self._root_cell + 1), self._last)
        upper = self._tokens.take(cells)
        # Depth of the node above the cell; negative if that is committed.
        above = cells - (self._root_cell + self._width)
        for node in (above >= 0).nonzero()[0].tolist():
            ancestor = node
            for _ in range(int(depths[node] - above[node])):
                ancestor = int(parents[ancestor])
            upper[node] = tokens[ancestor]
        left = np.where(cells % self._width == 0, NO_TOKEN, tokens)
        rows: IntArray = self._starts.take(cells) + self._model.left_terms[left] + self._model.classes[upper]
        return rows

    def has_above(self, depth: int) -> bool:
        """Whether the cell above the one after nodes at `depth` is committed."""
        return depth + 1 < self._width

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        """Commit the root and the accepted nodes."""
        end = self._root_cell + 1 + len(verdict.path)
        self._tokens[self._width + self._root_cell : self._width + end] = tree.tokens[verdict.committed()]
        self._root_cell = end


@dataclass(slots=True)
class TableModelImage:
    """A target or a drafter of a table model for image `image`; the pool of images repeats."""

    model: TableModel
    image: int

    @property
    def vocab_size(self) -> int:
        """V, the size of the vocabulary."""
        return self.model.vocab_size

    @property
    def grid(self) -> Grid:
        """Rows and columns of the image."""
        return self.model.grid


@dataclass(slots=True)
class TableTarget(TableModelImage):
    """A `Target` that reads the tables of a model."""

    passes: list[int] = field(default_factory=list)
    """Number of nodes of each pass since `begin`, including the first."""
    _canvas: _Canvas = field(init=False)

    def begin(self) -> Scored:
        self._canvas = _Canvas(self.model, self.image)
        self.passes = [1]
        return Scored(self.model.target[[self._canvas.first_row()]])

    def score(self, tree: DraftTree) -> Scored:
        self.passes.append(tree.size)
        rows = self._canvas.node_rows(tree.tokens, tree.parents, tree.depths())
        return Scored(self.model.target.take(rows, axis=0))

    def commit(self, tree: DraftTree, verdict: Verdict) -> None:
        self._canvas.commit(tree, verdict)


@dataclass(slots=True)
class TableGridTarget(TableModelImage):
    """A `GridTarget` that reads the tables of a model: a distribution depends on the visible left and upper tokens."""

    _tokens: IntArray = field(init=False)
    _last: Feed | None = None

    def __post_init__(self) -> None:
        self._tokens = np.full(self.model.grid.cells, NO_TOKEN, dtype=np.int64)

    def begin(self) -> FloatArray:
        self._tokens[:] = NO_TOKEN
        none = np.array([NO_TOKEN])
        first: FloatArray = self.model.target[self._rows(np.array([0]), none, none)][0]
        return first

    def score(self, feed: Feed) -> FloatArray:
        self._last = feed
        width, last = self.grid.width, self.grid.cells - 1
        upper = np.full(feed.cells.size, NO_TOKEN, dtype=np.int64)
        for row, cell in enumerate(feed.cells.tolist()):
            above = cell + 1 - width
            if above < 0:
                continue
            new = np.flatnonzero((feed.cells == above) & feed.visible[row])
            if new.size:
                upper[row] = feed.tokens[new[0]]
            elif feed.cached[row, above]:
                upper[row] = self._tokens[above]
        distributions: FloatArray = self.model.target[self._rows(np.minimum(feed.cells + 1, last), feed.tokens, upper)]
        return distributions

    def commit(self, rows: IntArray) -> None:
        if self._last is None:
            raise RuntimeError("grid target: commit without a pass")
        self._tokens[self._last.cells[rows]] = self._last.tokens[rows]

    def _rows(self, cells: IntArray, before: IntArray, upper: IntArray) -> IntArray:
        return self.model.rows(np.array(self.image % self.model.images), cells, before, upper)


@dataclass(slots=True)
class TableDrafter(TableModelImage):
    """A `Drafter` that reads the tables of a model.

    Attributes:
        model: The table model.
        image: Number of the image; the pool of images repeats.
        fuses_chains: Whether it drafts a chain in one call.
    """

    fuses_chains: bool = False
    passes: list[int] = field(default_factory=list)
    """Number of nodes of each pass since `begin`; each level of a chain is a pass over one node."""
    chained: list[int] = field(default_factory=list)
    """Number of levels of each chain that was drafted in one call."""
    _canvas: _Canvas = field(init=False)
    _tokens: list[int] = field(default_factory=list)
    _parents: list[int] = field(default_factory=list)
    _depths: list[int] = field(default_factory=list)

    def begin(self, scored: Scored) -> None:
        self._canvas = _Canvas(self.model, self.image)
        self.passes, self.chained = [], []
        self._forget()

    def expand_chain(self, root: int, levels: int) -> IntArray:
        self.chained.append(levels)
        tokens = [root]
        for level in range(levels):
            distribution = self.expand(np.array(tokens[-1:]), np.array([level - 1]))
            tokens.append(int(distribution.argmax()))
        return np.array(tokens[1:], dtype=np.int64)

    def expand(self, tokens: IntArray, parents: IntArray) -> FloatArray:
        count = tokens.size
        self.passes.append(count)
        self._tokens += tokens.tolist()
        self._parents += parents.tolist()
        for parent in self._parents[-count:]:
            self._depths.append(0 if parent < 0 else self._depths[parent] + 1)
        depth, deepest = self._depths[-1], len(self.model.draft) - 1
        distributions: FloatArray
        if depth == self._depths[-count] == max(self._depths[-count:]) and self._canvas.has_above(depth):
            rows = self._canvas.level_rows(tokens, depth)
            distributions = self.model.draft[min(depth, deepest)].take(rows, axis=0)
            return distributions
        rows = self._canvas.node_rows(np.array(self._tokens), np.array(self._parents), np.array(self._depths))
        new_nodes = zip(self._depths[-count:], rows[-count:].tolist(), strict=True)
        return np.stack([self.model.draft[min(depth, deepest)][row] for depth, row in new_nodes])

    def commit(self, tree: DraftTree, verdict: Verdict, scored: Scored) -> None:
        self._canvas.commit(tree, verdict)
        self._forget()

    def _forget(self) -> None:
        self._tokens, self._parents, self._depths = [], [], []
