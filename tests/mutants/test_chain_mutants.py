"""Planted bugs in how roofline foresees chains: each is caught by a second reading of what it should do."""

from collections.abc import Callable
from math import ceil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import algos
from algos.chance import sampling
from algos.draft import Budget, Grid
from algos.tree import Verdict
from tests.draft.drafters import ChainingDrafter

DRAFT = Path(algos.__file__).parent / "draft"
CURVE = ((1, 1.0), (2, 1.05), (3, 1.1), (20, 2.0))
CHAIN = ((1, 0.1), (3, 0.2), (6, 0.4))
GRID, PRIOR, DECAY, ABOVE, LEVEL_PRIOR = Grid(9, 5), 2.0, 0.6, 0.5, 4.0

Told = tuple[int, int, bool]


def load(name: str, old: str = "", new: str = "") -> ModuleType:
    """The module algos/draft/`name` with `old` replaced by `new`, kept out of the registry; `old` must be there."""
    source = (DRAFT / name).read_text()
    assert old in source, f"{name} no longer has {old!r}: point the mutant at the new code"
    source = source.replace(old, new).replace("POLICIES.register(", "(lambda spec: spec)(")
    module = ModuleType(f"mutant_of_{Path(name).stem}")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def chance(told: list[Told], place: int, level: int) -> float:
    """Of the likeliest token, drafted at `level` for `place`, to be kept: from the whole history at once."""
    image = 0.5
    for one in range(level + 1):
        here = [kept for _, at, kept in told if at == one]
        image = (LEVEL_PRIOR * image + sum(here)) / (LEVEL_PRIOR + len(here))
    tried, stood = PRIOR, PRIOR * image
    for cell, _, kept in told:
        rows, columns = place // GRID.width - cell // GRID.width, abs(place % GRID.width - cell % GRID.width)
        weight = DECAY ** (place - cell - 1) + ABOVE * (rows == 1 and columns <= 1)
        tried, stood = tried + weight, stood + weight * kept
    return stood / tried


def check_kept(module: ModuleType) -> None:
    """Chances at every place of a made-up image, some cells of which were never tried."""
    known, told = module.Kept(GRID, PRIOR, DECAY, ABOVE, LEVEL_PRIOR), list[Told]()
    for cell in range(1, 38):
        if cell % 4 == 3 or cell % 11 == 5:
            continue
        told.append((cell, cell % 3, cell % 5 != 0))
        known.learn(*told[-1])
        for ahead in (1, 2):
            by_hand = [chance(told, cell + ahead + level, level) for level in range(5)]
            np.testing.assert_allclose(known.chances(cell + ahead, 5), by_hand, rtol=1e-12)


def check_best(module: ModuleType) -> None:
    verify = np.interp(np.arange(1, 8), *zip(*CURVE, strict=True))
    call = np.interp(np.arange(1, 7), *zip(*CHAIN, strict=True))
    for chances in ([0.9] * 6, [0.5] * 6, [0.1, 0.9], [0.95, 0.9, 0.2, 0.9], [0.0, 0.0], [1.0]):
        rates = [
            (1 + sum(float(np.prod(chances[:level])) for level in range(1, levels + 1)))
            / (call[levels - 1] + verify[levels])
            for levels in range(1, len(chances) + 1)
        ]
        found = module.best_chain(chances, call, verify)
        assert found.levels == 1 + int(np.argmax(rates))
        assert found.rate == pytest.approx(max(rates))


def check_policy(module: ModuleType) -> None:
    """What is learned of every verdict, and that it is forgotten with the image."""
    policy = module.Roofline(CURVE, 0.6, CHAIN, top_k=3)
    fresh = policy._kept.chances(1, 6)
    laws = np.full((5, 9), 0.02)
    laws[np.arange(5), np.arange(5)], laws[np.arange(5), np.arange(5) + 1] = 0.5, 0.36
    for share in (1.0, 0.5, 0.0):
        policy.begin(GRID)
        assert policy._kept.chances(1, 6) == fresh, "an image knows of the one before it"
        told, cell, drafter = list[Told](), 1, ChainingDrafter(laws)
        while cell < 33:
            drafter.held.clear()
            tree = policy.grow(drafter, 0, Budget(6, 64), sampling(0))
            path = tree.path_to(tree.size - 1) if tree.size > 1 else ()
            path = path[: ceil(share * len(path))]
            drafted = bool(drafter.held) or tree.size > 1
            before = (0,)
            for level, token in enumerate([*tree.tokens[list(path)].tolist(), 8]):
                levels = len({len(node) for node in drafter.held}) if drafter.held else tree.depth
                if drafted and level < levels:
                    told.append((cell + level, level, token == int(drafter.law(before).argmax())))
                before = (*before, token)
            policy.observe(tree, Verdict(path, 8), cell)
            cell += len(path) + 1
            by_hand = [chance(told, cell + level, level) for level in range(5)]
            np.testing.assert_allclose(policy._kept.chances(cell, 5), by_hand, rtol=1e-12)
        assert drafter.asked, "no chain was drafted"


CHECKS: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "kept": ("kept.py", check_kept),
    "best": ("kept.py", check_best),
    "policy": ("roofline.py", check_policy),
}
NEAR = "place - width - (column > 0), place - width + 1"
ABOVE_KEPT = "kept += self._above * sum(self._kept[near])"
OF_CHAIN = "self._kept.learn(cell + step, step, token == drafted)"
OF_TREE = "self._kept.learn(cell + step, step, token == tokens[0])"
PLANTED = {
    "the left neighbour never fades": ("kept", "** (cell - self._last)", "** 0"),
    "cells that were never tried do not widen the gap": ("kept", "** (cell - self._last - 1)", "** 0"),
    "the row's end is the first column's left": ("kept", NEAR, NEAR.replace("(column > 0)", "1")),
    "above is two rows up": ("kept", NEAR, "place - 2 * width, place - width"),
    "all that was tried above was kept": ("kept", ABOVE_KEPT, ABOVE_KEPT.replace("_kept", "_tried")),
    "a level knows nothing of the one before": ("kept", "_level_prior * image", "_level_prior * FIRST_CHANCE"),
    "all levels are one": ("kept", "self._level_kept[level] += kept", "self._level_kept[0] += kept"),
    "the root's place in the pass is free": ("best", "verify_ms[1 : count + 1]", "verify_ms[:count]"),
    "the extra token is forgotten": ("best", "1.0 + np.add.accumulate", "np.add.accumulate"),
    "tokens are kept whatever came before them": ("best", "np.multiply.accumulate(chances)", "np.array(chances)"),
    "a call costs nothing": ("best", "chain_ms[:count] + ", ""),
    "a chain is a level short": ("best", "Chain(best + 1,", "Chain(best,"),
    "a chain's rejected token says nothing": ("policy", "zip(committed, tree", "zip(committed[:-1], tree"),
    "every token of a chain was drafted first": ("policy", OF_CHAIN, OF_CHAIN.replace("step, step", "step, 0")),
    "a chain's cells are one off": ("policy", OF_CHAIN, OF_CHAIN.replace("cell +", "cell + 1 +")),
    "any sibling is the likeliest": ("policy", "token == tokens[0]", "token in offered"),
    "trees teach nothing of chains": ("policy", OF_TREE, "pass"),
    "an image is never forgotten": ("policy", "= Kept(grid,", "= getattr(self, '_kept', None) or Kept(grid,"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_code_as_it_is_passes(check: str) -> None:
    name, passes = CHECKS[check]
    passes(load(name))


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_caught(planted: str) -> None:
    check, old, new = PLANTED[planted]
    name, passes = CHECKS[check]
    with pytest.raises((AssertionError, IndexError)):
        passes(load(name, old, new))
