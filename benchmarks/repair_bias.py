"""The exact bias of local repair, row fronts and Jacobi fronts on small grids, by enumerating every outcome.

`python -m benchmarks.repair_bias` prints the table; its last line is JSON. Local repair is not lossless
even under an exact acceptance rule: a cell kept behind a rejected one was judged beside a token that is gone.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from underpaint.algos.accept import RULES
from underpaint.algos.arrays import FloatArray
from underpaint.algos.chance import Chance, enumerate_outcomes
from underpaint.algos.enumeration import marginal, mean, total_variation
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.cell_rule import CellRule, PooledCells, TreeRuleOnCells
from underpaint.algos.spatial.jacobi_front import JacobiFronts, jacobi_fronts
from underpaint.algos.spatial.mulo import Repair, draft_and_repair
from underpaint.algos.spatial.zipar import raster, zipar
from underpaint.sim.synthetic.grid_model import FixedRows, GridWeights, SyntheticGridTarget, image_distribution

Image: TypeAlias = tuple[int, ...]
Decode: TypeAlias = Callable[[Chance], tuple[Image, int]]
"""A decoding of one image: its tokens and the number of target passes."""
Drafts: TypeAlias = Literal["iid", "points"]


class Bias(NamedTuple):
    """One method on one grid. total_variation: of the image's distribution to the target's; passes: their exact
    mean."""

    method: str
    total_variation: float
    passes: float


@dataclass(frozen=True, slots=True)
class BiasSetting:
    """What the table is made for.

    drafts: "iid", each cell from its marginal under the target; "points", the likeliest token of that marginal.
    coupling: how much the target's cells mind each other. tau: threshold of the MuLo-SD rows.
    """

    grid: Grid
    vocab_size: int = 2
    seed: int = 0
    coupling: float = 0.7
    drafts: Drafts = "iid"
    tau: float = 0.6

    def __post_init__(self) -> None:
        if min(self.grid) < 1 or self.vocab_size < 2 or self.vocab_size**self.grid.cells > 1024:
            raise ValueError(
                f"repair bias: expected at most 1,024 images, got {self.vocab_size} tokens on "
                f"{self.grid.height} x {self.grid.width} cells; the outcomes are enumerated one by one"
            )
        if self.drafts not in get_args(Drafts):
            raise ValueError(f"repair bias: drafts must be one of {', '.join(get_args(Drafts))}, got {self.drafts!r}")


def bias_of(method: str, decode: Decode, target_distribution: Mapping[Image, float]) -> Bias:
    """Enumerate `decode` and compare."""
    outcomes = enumerate_outcomes(decode)
    images = marginal(outcomes, lambda outcome: outcome[0])
    passes = mean(outcomes, lambda outcome: outcome[1])
    return Bias(method, total_variation(images, target_distribution), passes)


def marginals(distribution: Mapping[Image, float], cells: int, vocab_size: int) -> FloatArray:
    """[cells, V]: the distribution of each cell alone."""
    found = np.zeros((cells, vocab_size))
    for image, weight in distribution.items():
        found[np.arange(cells), list(image)] += weight
    return found


def methods(
    setting: BiasSetting, world: SyntheticGridTarget, target_distribution: Mapping[Image, float]
) -> dict[str, Decode]:
    """The decodings that the table compares, by name."""
    grid = setting.grid
    distributions = marginals(target_distribution, grid.cells, setting.vocab_size)
    exact: CellRule = TreeRuleOnCells(RULES["chain"].make())
    if setting.drafts == "points":
        distributions = np.eye(setting.vocab_size)[distributions.argmax(axis=1)]
        exact = TreeRuleOnCells(RULES["point"].make())
    drafter = FixedRows(distributions, grid.width, points=setting.drafts == "points")
    pooled = PooledCells(np.empty((setting.vocab_size, 0), dtype=np.int64), setting.tau)

    def repaired(rule: CellRule, repair: Repair, rows: int) -> Decode:
        def decode(chance: Chance) -> tuple[Image, int]:
            done = draft_and_repair(world, drafter, rule, repair, rows, chance)
            return tuple(done.tokens.tolist()), len(done.passes)

        return decode

    def fronts(window: int, adaptive: bool) -> Decode:
        def decode(chance: Chance) -> tuple[Image, int]:
            done = zipar(world, window, chance, adaptive=adaptive)
            return tuple(done.tokens.tolist()), len(done.passes)

        return decode

    def jacobi(settings: JacobiFronts) -> Decode:
        def decode(chance: Chance) -> tuple[Image, int]:
            done = jacobi_fronts(world, settings, chance)
            return tuple(done.tokens.tolist()), len(done.passes)

        return decode

    def plain(chance: Chance) -> tuple[Image, int]:
        done = raster(world, chance)
        return tuple(done.tokens.tolist()), len(done.passes)

    every = grid.height
    table: dict[str, Decode] = {"plain autoregression": plain}
    for name, rule in (("exact", exact), (f"tau {setting.tau:g}", pooled)):
        table |= {
            f"{name}, raster": repaired(rule, Repair("raster", 0, "serial"), every),
            f"{name}, local, serial": repaired(rule, Repair("local", 0, "serial"), every),
            f"{name}, local, islands": repaired(rule, Repair("local", 0, "islands"), every),
            f"{name}, radius 1, serial": repaired(rule, Repair("local", 1, "serial"), every),
            f"{name}, radius 1, islands": repaired(rule, Repair("local", 1, "islands"), every),
            f"{name}, radius 1, row fronts": repaired(rule, Repair("local", 1, "islands", window=1), every),
            f"{name}, local, row by row, stale keys": repaired(rule, Repair("local", 0, "serial"), 1),
            f"{name}, local, row by row, recomputed keys": repaired(
                rule, Repair("local", 0, "serial", keys="recompute"), 1
            ),
        }
    for window in range(1, grid.width):
        table[f"ZipAR, window {window}"] = fronts(window, False)
        table[f"ZipAR, adaptive from {window}"] = fronts(window, True)
    width = min(2, grid.width)
    table["Jacobi fronts, others wait"] = jacobi(JacobiFronts(1, width))
    table["Jacobi fronts, all redraw"] = jacobi(JacobiFronts(1, width, redraw="all"))
    table["Jacobi, one row at a time"] = jacobi(JacobiFronts(grid.width, width))
    return table


def bias_table(setting: BiasSetting, only: str = "") -> Iterator[Bias]:
    """The exact bias of every method whose name holds `only`, for one synthetic target, enumerated as it is asked for.

    Raises ValueError, at once, on settings out of range and where no name holds `only`.
    """
    weights = GridWeights.random(setting.grid, setting.vocab_size, setting.seed, setting.coupling)
    target_distribution = image_distribution(weights)
    table = methods(setting, SyntheticGridTarget(weights), target_distribution)
    chosen = {name: decode for name, decode in table.items() if only in name}
    if not chosen:
        raise ValueError(f"repair bias: no method's name holds {only!r}; known: {'; '.join(table)}")
    return (bias_of(name, decode, target_distribution) for name, decode in chosen.items())


def main(arguments: list[str] | None = None) -> None:
    """Print the table, a line as soon as it is enumerated."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.repair_bias", description=main.__doc__)
    parser.add_argument("--height", type=int, default=2)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coupling", type=float, default=0.7)
    parser.add_argument("--tau", type=float, default=0.6)
    parser.add_argument("--drafts", choices=get_args(Drafts), default="points")
    parser.add_argument("--only", default="", help="methods whose name holds this")
    asked = parser.parse_args(arguments)
    try:
        setting = BiasSetting(
            Grid(asked.height, asked.width), 2, asked.seed, asked.coupling, drafts=asked.drafts, tau=asked.tau
        )
        table = bias_table(setting, asked.only)
    except ValueError as error:
        parser.error(str(error))
    print(f"{'method':<44} {'total variation':>16} {'target passes':>14}")
    rows = []
    for row in table:
        print(f"{row.method:<44} {row.total_variation:>16.3e} {row.passes:>14.3f}", flush=True)
        rows.append(row)
    print(json.dumps({"grid": list(setting.grid), "drafts": setting.drafts, "rows": [row._asdict() for row in rows]}))


if __name__ == "__main__":
    main()
