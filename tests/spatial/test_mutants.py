"""Planted bugs in the spatial rules: each must be caught by a check that passes on the real code."""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.mutants.harness import caught
from tests.spatial import checks
from underpaint.algos.protocols import Grid


def regions() -> None:
    for mask in checks.masks(40):
        checks.check_regions(mask, min(1, max(mask.shape) - 1))


def islands() -> None:
    for mask in checks.masks(40):
        checks.check_islands(mask)


def fronts() -> None:
    for mask in checks.masks(40):
        checks.check_fronts(mask, min(2, mask.shape[1]))
    checks.check_whole_grid(Grid(4, 5), 2)


def repair() -> None:
    for seed, mask in enumerate(checks.masks(12)):
        for keys in ("stale", "recompute"):
            checks.check_repair(mask, checks.Repair("local", 0, "islands", keys=keys), 1, seed)
            checks.check_repair(mask, checks.Repair("local", 0, "serial", window=1, keys=keys), mask.shape[0], seed)


def jacobi() -> None:
    for seed in range(12):
        checks.check_jacobi(Grid(3, 4), checks.JacobiFronts(1, 2), seed)


def adaptive() -> None:
    for seed in range(5):
        checks.check_adaptive_distribution(seed)


def thresholds() -> None:
    for seed in range(5):
        checks.check_neutral_thresholds(Grid(2, 3), 1, None, seed)


def dense() -> None:
    checks.check_distributions_are_dense(Grid(2, 3), 0)


MUTANTS: list[tuple[str, str, str, Callable[[], None]]] = [
    ("neighbourhood", "places + radius + 1", "places + radius + 2", regions),  # radius off by one
    ("neighbourhood", " & _from(grid, _first(rejected))\n", "\n", regions),  # accepted cells before t_0 repaired
    ("neighbourhood", ">= first", "> first", regions),
    ("neighbourhood", "_rejected_near(rejected, radius) - rejected", "_rejected_near(rejected, radius)", regions),
    (
        "islands",
        "if near in inside:",
        "if near in inside and (near_row == row or near_column == column):",  # 4 for 8 neighbours
        islands,
    ),
    ("row_front", "np.arange(height) * (window - 1)", "np.arange(height) * window", fronts),
    ("row_front", "reach < above", "reach <= above", fronts),
    ("canvas", "own = (~proxied).nonzero()[0]", "own = np.arange(cells.size)", jacobi),  # a proxy's key is kept
    ("canvas", " & ~self.cached[cells]\n        if kept", "\n        if kept", repair),  # stale keys refreshed
    ("canvas", "(groups[cells] == groups[after])", "(groups[cells] >= 0)", jacobi),  # a row starts behind a draft
    ("canvas", " & fresh[cells][None, :]", " & False", dense),
    ("canvas", "self.cached[cells] = False", "self.cached[cells[2:]] = False", repair),  # a key stays stale
    (
        "mulo",
        "from_residual = refused & ~redrawn_anyway",
        "from_residual = ~refused & ~redrawn_anyway",
        checks.check_raster_is_exact,
    ),
    (
        "mulo",
        "from_residual = refused & ~redrawn_anyway(refused, repair.radius)",
        "from_residual = refused",
        checks.check_independent_cells_are_exact,
    ),
    ("mulo", "At(Role.CELL, cell)", "At(Role.BONUS, cell)", thresholds),  # other noise than plain decoding
    ("mulo", "distributions[first - cells[0]]", "distributions[0]", checks.check_raster_is_exact),
    ("adaptive_window", "excess(distribution, held.distribution)", "excess(held.distribution, distribution)", adaptive),
    ("adaptive_window", "out_of=float(held.distribution[held.token])", "out_of=1.0", adaptive),
    (
        "jacobi_front",
        "drafts.distributions[cell] = distributions[cell]",
        "drafts.distributions[cell] = np.full_like(distributions[cell], 1 / distributions[cell].size)",
        checks.check_one_row_of_jacobi_is_exact,
    ),
    (
        "jacobi_front",
        "excess(distribution, drafted)",
        "np.array(distribution)",
        checks.check_one_row_of_jacobi_is_exact,
    ),
    ("jacobi_front", "min(self.window, above - count)", "min(self.window, width - count)", jacobi),
    (
        "jacobi_front",
        "above < self.lead",
        "above < self.lead - 1",
        lambda: checks.check_jacobi(Grid(2, 4), checks.JacobiFronts(3, 4), 0),
    ),
]


def planted(monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Put a mutated copy of `algos.spatial.name` in the place of the original, wherever it was imported."""
    original = importlib.import_module(f"underpaint.algos.spatial.{name}")
    assert original.__file__ is not None
    with open(original.__file__, encoding="utf-8") as file:
        source = file.read()
    assert source.count(old) == 1, f"{name}: {old!r} occurs {source.count(old)} times"
    mutant = ModuleType(original.__name__)
    monkeypatch.setitem(sys.modules, original.__name__, mutant)
    exec(compile(source.replace(old, new), original.__file__, "exec"), mutant.__dict__)
    own = {key: part for key, part in vars(original).items() if getattr(part, "__module__", "") == original.__name__}
    users = [module for key, module in sys.modules.items() if key.startswith("underpaint.algos.spatial.")] + [checks]
    for module in users:
        for key, part in own.items():
            if vars(module).get(key) is part:
                monkeypatch.setattr(module, key, vars(mutant)[key])


@pytest.mark.parametrize(("name", "old", "new", "check"), MUTANTS, ids=[f"{m[0]}-{i}" for i, m in enumerate(MUTANTS)])
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, check: Callable[[], None]
) -> None:
    planted(monkeypatch, name, old, new)
    with caught():
        check()


def test_the_checks_pass_on_the_real_code() -> None:
    for check in {id(mutant[3]): mutant[3] for mutant in MUTANTS}.values():
        check()
