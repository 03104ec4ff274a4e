"""`roofline` on the device: before every cycle the host chooses what to draft, from the verdicts that it has read.

Each choice is a program of its own: a plain step, a chain of so many levels, a tree of sampled siblings of some shape,
or a Jacobi window, each with the rule that judges it. After the verdict one small copy goes to the host, which learns
from it and chooses again: one wait per cycle. A batch is one image, as another image would choose another program.

The reference is `algos.spatial.jacobi.WindowedCycles` under `algos.draft.roofline.Roofline`.
"""

from typing import Final, TypeAlias

import torch
from torch import Tensor

from underpaint.algos.draft.choice import NOTHING, Choice
from underpaint.algos.draft.roofline import Roofline
from underpaint.algos.draft.shape import chain_shape, within
from underpaint.algos.draft.tree_builder import point_tree
from underpaint.algos.protocols import Budget, Grid, Rule
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.jacobi import WindowPlan
from underpaint.algos.tree import Drawn, Shape, Verdict
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.growth import DraftPasses, Limits, Plan
from underpaint.runtime.device.kernels.walk import DONE, GOING, BatchTree, Decide, Verdicts
from underpaint.runtime.device.kernels.walk import Shape as TreeShape
from underpaint.runtime.device.rules import device_rule
from underpaint.runtime.device.state import Envelope, State
from underpaint.runtime.device.static_growth import StaticGrowth
from underpaint.runtime.methods.windows.growth import WindowGrowth, window_bytes

MOST_IMAGES: Final = 1
Program: TypeAlias = tuple[str, int, Shape]
"""Kind of draft, nodes of the target pass, and shape of sampled siblings. Each program has its own captured graph."""
_BUCKET: Final = 8
"""The nodes of a pass over a window are rounded up to a multiple of this, so that all lengths share a few graphs."""


def chosen_plan(policy: Roofline, beside: WindowPlan, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """Return the plan of all choices, whose envelope fits the trees of each.

    Raises ValueError if trees of likeliest tokens may be grown, as their shape is unknown before they are drafted.
    """
    if policy.trees:
        raise ValueError(
            "device: roofline has no form with trees of likeliest tokens, whose levels the host would have to wait "
            "for one by one; use trees=false"
        )
    nodes = min(policy.most_nodes, max_nodes)
    deepest = max(1, min(max(policy.longest_chain, policy.max_depth), nodes - 1, grid.cells - 2))
    drafts = max(deepest, min(beside.window.length, nodes - 1, grid.cells - 2))
    frontier = max(1, (nodes - 1) // 2)
    envelope = Envelope(
        max(2, nodes),
        drafts,
        frontier,
        max(1, policy.siblings),
        nodes,
        passes=deepest,
    )

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> "ChosenGrowth":
        return ChosenGrowth(state, drafter, sampler, policy, beside, grid, max_nodes)

    image_bytes = window_bytes(beside.window, drafts, grid.cells, vocab_size) + 8 * drafts * vocab_size
    return Plan(envelope, "top_k", make, image_bytes=image_bytes, most_images=MOST_IMAGES, chooses=True)


class ChosenGrowth:
    """A `Growth` whose program changes from cycle to cycle: call `choose` before each cycle and `learn` after it.

    choice: what the cycle drafts. passes: drafter passes of this image so far. The drafter is fed in every cycle, so
    that it never has many pending tokens.
    """

    fuses_chains: Final = True

    def __init__(
        self,
        state: State,
        drafter: DeviceDecoder,
        sampler: SamplingParams,
        policy: Roofline,
        beside: WindowPlan,
        grid: Grid,
        max_nodes: int,
    ) -> None:
        if state.batch > MOST_IMAGES:
            raise ValueError(
                f"device: roofline has a form for batches of {MOST_IMAGES} image, as each chooses a program of its "
                f"own, got {state.batch}; use --batch 1"
            )
        self.window_length, self.draws_siblings = beside.window.length, len(beside.drawn_rules) > 0
        self.choice = NOTHING
        self._policy, self._grid, self._max_nodes, self._rules = policy, grid, max_nodes, beside
        self._state, self._drafter, self._sampler = state, drafter, sampler
        self._window = WindowGrowth(state, beside.window, grid, True, beside.likeliest)
        self._passes = DraftPasses(drafter, state, grid.cells // 2)
        self._statics: dict[Shape | int, StaticGrowth] = {}
        self._decides: dict[Drawn | None, Decide] = {}
        self._root = torch.full_like(state.tree.parents, -1)
        self._cell, self.passes = 1, 0
        one = torch.zeros_like(state.progress.cells)
        self.limits = Limits(one, one.clone(), torch.full_like(one, state.envelope.nodes - 1))

    @property
    def lays_out(self) -> bool:
        return self.choice.kind in ("chain", "drawn", "window")

    def begin(self) -> None:
        self._policy.begin(self._grid)
        self._window.begin()
        self._cell, self.passes = 1, 0

    def choose(self) -> None:
        """Choose the next cycle's program."""
        room = self._grid.cells - self._cell - 1
        self.settle(self._policy.choose(self, Budget(room, self._max_nodes)) if room > 0 else NOTHING)

    def settle(self, choice: Choice) -> None:
        """Let the next cycle draft `choice`, and make its tables if it has any."""
        self.choice, levels = choice, _depth(choice)
        if choice.kind in ("chain", "drawn"):
            self._static()
        self.limits.depths.fill_(levels)
        self.passes += max(1, levels) if self.choice.kind in ("chain", "drawn") else 1

    @property
    def program(self) -> Program:
        """The program of the current choice."""
        kind, levels, shape, _ = self.choice
        nodes = len(shape) if kind == "drawn" else 1 + levels
        if kind == "window":
            nodes = min(-(-nodes // _BUCKET) * _BUCKET, self._state.envelope.nodes)
        return kind, nodes, shape

    def grow(self, state: State) -> None:
        kind = self.choice.kind
        if kind in ("chain", "drawn"):
            self._static().grow(state)
            return
        self._passes.feed()
        if kind == "window":
            self._window.grow(state)
        else:
            state.tree.tokens.select(1, 0).copy_(state.progress.roots)
            state.tree.parents.copy_(self._root)
            state.tree.counts.fill_(1)

    def decide(self, tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        """Decide trees by the rule of the current choice."""
        self._rule()(self._window.own(tree) if self.choice.kind == "window" else tree, depths, out)

    def observe(self, state: State) -> None:
        if self.choice.kind == "window":
            self._window.observe(state)
        else:
            self._window.pass_over(state)

    def learn(self) -> None:
        """Read the verdict once, and learn from it. Images that ended earlier are skipped."""
        state = self._state
        verdicts, tree, progress = state.verdicts, state.tree, state.progress
        numbers = (verdicts.taken, verdicts.status, progress.cells, progress.roots, tree.counts)
        self.take(torch.cat((*numbers, tree.tokens[0], tree.parents[0], verdicts.path[0])).cpu())

    def take(self, numbers: Tensor) -> None:
        """Learn from numbers [5 + 3 N] int64: number of new tokens, status, cell after them, last new token, nodes of
        the tree; then the tree's tokens, its parents, and the accepted path."""
        new_count, status, cell, root, count = numbers[:5].tolist()
        if new_count == 0 or status not in (GOING, DONE):
            return
        tokens, parents, path = numbers[5:].view(3, -1).numpy()
        drafted = point_tree(tokens[:count].copy(), parents[:count].copy(), self._drafter.config.vocab_size)
        self._policy.observe(drafted, Verdict(tuple(path[: new_count - 1].tolist()), root), self._cell)
        self._cell = cell

    def _static(self) -> StaticGrowth:
        chosen, state = self.choice, self._state
        sampled = chosen.kind == "drawn"
        key = chosen.shape if sampled else chosen.levels
        if key not in self._statics:
            whole = chosen.shape if sampled else chain_shape(chosen.levels)
            shapes = [within(whole, Budget(levels, len(whole))) for levels in range(_depth(chosen) + 1)]
            drawn: Drawn = chosen.drawn if sampled else "top_k"
            self._statics[key] = StaticGrowth(state, self._drafter, self._sampler, shapes, drawn)
        return self._statics[key]

    def _rule(self) -> Decide:
        chosen = self.choice
        drawn: Drawn | None = {"window": None, "drawn": chosen.drawn}.get(chosen.kind, "top_k")
        return self._decides[drawn]

    def add_rules(self, rule: Rule, device: torch.device) -> None:
        """Make the launches of every rule; `rule` judges chains of likeliest tokens, and plain steps.

        Raises ValueError for a rule without a device form.
        """
        envelope, vocab_size = self._state.envelope, self._drafter.config.vocab_size

        def decide(judge: Rule, drawn: Drawn, children: int) -> Decide:
            shape = TreeShape(1, envelope.nodes, vocab_size, drawn, envelope.levels, children)
            return device_rule(judge, shape, device)

        likeliest, window, *drawn = judged_beside(rule, self._policy, self._rules, envelope.children)
        self._decides = {"top_k": decide(*likeliest), None: decide(*window)}
        self._decides |= {kind: decide(judge, kind, children) for judge, kind, children in drawn}


def judged_beside(
    rule: Rule, policy: Roofline, beside: WindowPlan, children: int
) -> tuple[tuple[Rule, Drawn, int], ...]:
    """Return the rules of trees of likeliest tokens, of windows and of drawn siblings; see `DraftForm.judged`."""
    drawn = (
        (judge, kind, 1 if kind == "iid" and not policy.with_replacement else children)
        for kind, judge in beside.drawn_rules.items()
    )
    return ((rule, "top_k", 1), (beside.rule, "iid", 1), *drawn)


def _depth(chosen: Choice) -> int:
    if chosen.kind != "drawn":
        return chosen.levels
    depths = [0]
    for parent in chosen.shape[1:]:
        depths.append(depths[parent] + 1)
    return max(depths)
