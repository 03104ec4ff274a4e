"""A policy that chooses what is drafted, on the device and on the host, from the same tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from tests.runtime.device.tables import TableForward, TableHost, Tables
from underpaint.algos.accept import RULES
from underpaint.algos.arrays import IntArray
from underpaint.algos.chance import sampling
from underpaint.algos.coupling import noise_of
from underpaint.algos.draft.choice import NOTHING, Choice
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.draft.shape import within
from underpaint.algos.protocols import Budget, Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import WindowDrafter, WindowedCycles, WindowPlan, WindowState
from underpaint.algos.spatial.jacobi_window import JacobiWindow
from underpaint.algos.step import decode
from underpaint.algos.tree import Shape
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.methods.trees.device import TreeForm

GRID, V, SEED = Grid(3, 4), 5, 11
TABLES = Tables(3, V, rows=2)
NEAR = TABLES.near(4, 0.5)
WINDOW = JacobiWindow(4, "maximal", "lookup", passes=True, beside=0.85, last_row=True)
COSTS = {"verify_ms": ((1, 1.0), (6, 1.2)), "draft_ms": 0.05, "chain_ms": ((1, 0.1), (3, 0.2)), "trees": False}
FORK: Shape = (-1, 0, 0, 1)


@dataclass
class InTurn(Roofline):
    """Drafts what it is told, in turn."""

    arms: Sequence[Choice] = ()

    def begin(self, grid: Grid) -> None:
        super().begin(grid)
        self._turn = 0

    def _choose(self, drafter: object, budget: Budget) -> Choice:
        arm, self._turn = self.arms[self._turn % len(self.arms)], self._turn + 1
        if arm.kind == "drawn":
            shape = within(arm.shape, budget)
            return Choice("drawn", shape=shape, drawn=self._drawn.drawn_as(shape)) if len(shape) > 1 else NOTHING
        levels = min(arm.levels, budget.max_depth)
        return arm._replace(levels=levels) if levels else NOTHING


class Made(NamedTuple):
    """Tokens by cell, and by cycle how many were accepted and drafted."""

    tokens: list[int]
    accepted: list[int]
    drafted: list[int]


class ChainHost(TableHost):
    """A drafter that drafts chains in one call."""

    fuses_chains = True

    def expand_chain(self, root: int, levels: int) -> IntArray:
        tokens = [root]
        for level in range(levels):
            tokens.append(int(self.expand(np.array(tokens[-1:]), np.array([level - 1]))[0].argmax()))
        self._nodes = []
        return np.array(tokens[1:])


def method(policy: Roofline, temperature: float, window: JacobiWindow = WINDOW, draws: bool = True) -> TreeForm:
    """At temperature 0 the likeliest tokens decide, and nothing is drawn."""
    greedy = temperature == 0
    rule = RULES["greedy" if greedy else "point"].make()
    of_window = rule if greedy else RULES["chain"].make()
    independent = "multi_round" if policy.with_replacement else "block"
    drawn_rules = {"iid": RULES[independent].make(), "without_replacement": RULES["without_replacement"].make()}
    beside = WindowPlan(window, of_window, greedy, drawn_rules if draws and not greedy else {})
    sampler = SamplingParams(guidance=2.0)
    return TreeForm(rule, sampler, policy=policy, beside=beside)


def on_device(how: TreeForm, image: int) -> Made:
    target, drafter = TableForward(TABLES, False), TableForward(NEAR, True)
    cycle = DeviceCycle(target, drafter, how, GRID, 1, 1, torch.device("cpu"))
    cycle.begin(target.embed(torch.tensor([[image % V]])), torch.tensor([SEED]), torch.tensor([image]))
    assert cycle.chooser is not None
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.chooser.choose()
        cycle.run()
        cycle.chooser.learn()
    assert cycle.state.verdicts.status.tolist() == [1]
    progress = cycle.state.progress
    history = progress.history[0, : int(progress.cycles[0])]
    return Made(progress.decided[0].tolist(), history[:, 0].tolist(), history[:, 2].tolist())


def on_host(how: TreeForm, image: int) -> Made:
    assert how.beside is not None
    assert how.policy is not None
    window, of_window, likeliest, drawn_rules = how.beside
    target, drafter = (
        TableHost(TABLES, GRID, how.sampler, False, image % V),
        ChainHost(NEAR, GRID, how.sampler, True, image % V),
    )
    chance = sampling(SEED, image)
    noise = noise_of(chance) if window.coupling == "gumbel" else None
    window_state = WindowState(window, GRID, V, "iid", noise, likeliest)
    verification = WindowedCycles(target, WindowDrafter(window_state, drafter), how.rule, of_window, drawn_rules)
    decoded = decode(target, drafter, how.policy, how.rule, chance, 64, verification)
    return Made(
        decoded.tokens.tolist(),
        [len(cycle.verdict.path) for cycle in decoded.cycles],
        [cycle.tree.size - 1 for cycle in decoded.cycles],
    )
