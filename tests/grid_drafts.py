"""What tests draft on grids with, and the exact distribution of small pictures."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.chance import At, Chance, Role
from underpaint.algos.spatial.mulo import RowDraft
from underpaint.sim.synthetic.grid_model import GridWeights, dense_distributions


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
        drawn = [chance.draw(self.distributions[cell], At(Role.DRAFT, cell)) for cell in cells]
        return RowDraft(
            np.array(drawn, dtype=np.int64), None if self.points else self.distributions[cells.start : cells.stop]
        )
