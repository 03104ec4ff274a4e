"""End-of-line tokens: what some models put behind every line of codes but the last; algorithms see cells alone.

An end-of-line token is no choice, so it is fed with the cell that it follows: such a cell takes two positions of a
pass, the second of which gives what comes after it, and both are committed together.
"""

from typing import NamedTuple

import numpy as np

from underpaint.algos.arrays import BoolArray, IntArray
from underpaint.artifacts.decoder_config import DecoderConfig


class PassLayout(NamedTuple):
    """A pass over T nodes as the engine runs it, over P >= T positions.

    tokens, cells: [P]; visible: [P, P]. outputs: [T], the position whose output is each node's. node: [P], the node
    that a position belongs to; None where each node has one position.
    """

    tokens: IntArray
    cells: IntArray
    visible: BoolArray
    outputs: IntArray | slice = slice(None)
    node: IntArray | None = None

    def positions(self, nodes: IntArray | slice) -> IntArray | slice:
        """The positions of `nodes`, end-of-line tokens included."""
        if self.node is None:
            return nodes
        return np.isin(self.node, np.arange(self.node[-1] + 1)[nodes]).nonzero()[0]


class EolLayout:
    """How the cells of an image lie among its end-of-line tokens, if it has any."""

    def __init__(self, config: DecoderConfig) -> None:
        self._config = config
        self._token = config.eol_id
        cells = np.arange(config.cells)
        self.cell_of: IntArray | None = None if self._token is None else cells.repeat(1 + self._ends(cells))
        """[places]: the cell at each place of the image, which an end-of-line token shares with the cell before it."""

    def _ends(self, cells: IntArray) -> BoolArray:
        """Whether an end-of-line token follows each of `cells`."""
        ends: BoolArray = (cells % self._config.width == self._config.width - 1) & (cells < self._config.cells - 1)
        return ends

    def drawn(self, places: int) -> int:
        """How many cells the first `places` of the image hold."""
        return places if self.cell_of is None else places - places // (self._config.width + 1)

    def places(self, cells: IntArray) -> IntArray:
        """The places in the image of `cells`, those of end-of-line tokens included."""
        if self.cell_of is None:
            return cells
        width = self._config.width
        return np.where(cells < 0, (cells - self._config.first_eol_cell + 1) * (width + 1) - 1, cells + cells // width)

    def lay(self, tokens: IntArray, cells: IntArray, visible: BoolArray) -> PassLayout:
        """A pass over nodes `tokens` [T] at `cells` [T] that see each other by `visible` [T, T].

        Who sees a node sees its end-of-line token, which sees what its node sees.
        """
        if self._token is None or not (ends := self._ends(cells)).any():
            return PassLayout(tokens, cells, visible)
        node = np.arange(cells.size).repeat(1 + ends)
        outputs = np.arange(cells.size) + ends.cumsum()
        eol = outputs[ends]
        laid_tokens, laid_cells, seen = tokens[node], cells[node], visible[np.ix_(node, node)]
        laid_tokens[eol] = self._token
        laid_cells[eol] = self._config.first_eol_cell + cells[ends] // self._config.width
        seen[eol - 1, eol] = False
        return PassLayout(laid_tokens, laid_cells, seen, outputs, node)
