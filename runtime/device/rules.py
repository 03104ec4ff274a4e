"""Acceptance rules on the device: which have a form there, and how an instance of `algos` becomes one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from underpaint.algos.accept import RULES, Rule
from underpaint.algos.accept.block import BlockVerification
from underpaint.algos.accept.chain import SpeculativeSampling
from underpaint.algos.accept.greedy import GreedyMatch
from underpaint.algos.accept.gsd import GroupedSpeculation
from underpaint.algos.accept.lantern import Lantern, LanternPP
from underpaint.algos.accept.lantern_greedy import LanternGreedy, LanternPPGreedy
from underpaint.algos.accept.multi_round import MultiRound
from underpaint.algos.accept.point import PointProposals
from underpaint.algos.accept.traversal import TraversalVerification
from underpaint.algos.accept.typical import TypicalAcceptance
from underpaint.algos.accept.without_replacement import WithoutReplacement
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.kernels import pool
from underpaint.runtime.device.kernels.proposals import POINTS, kind_of
from underpaint.runtime.device.kernels.walk import BatchTree, Verdicts
from underpaint.runtime.device.kernels.walk_block import walk_block
from underpaint.runtime.device.kernels.walk_drawn import walk_drawn
from underpaint.runtime.device.kernels.walk_gsd import Groups, walk_gsd
from underpaint.runtime.device.kernels.walk_lantern import Pools, walk_lantern
from underpaint.runtime.device.kernels.walk_longest import (
    FIRST,
    LIKELIEST,
    LONGEST,
    pass_by_argmax,
    pass_by_typical,
    walk_longest,
)
from underpaint.runtime.device.kernels.walk_point import walk_point
from underpaint.runtime.device.kernels.walk_traversal import walk_traversal


class Shape(NamedTuple):
    """What a rule must know of the trees that it will decide. levels: the greatest depth; children: of one node."""

    batch: int
    nodes: int
    vocab_size: int
    drawn: Drawn
    levels: int
    children: int


Decide: TypeAlias = Callable[[BatchTree, Tensor, Verdicts], None]
"""Decides a batch of trees, given the depths [B, N] int64 of their nodes; no read-back."""
_Make: TypeAlias = Callable[[Any, Shape, torch.device], Decide]


def _scratch(shape: Shape, device: torch.device) -> Tensor:
    return torch.zeros(shape.batch, shape.vocab_size, dtype=torch.float64, device=device)


def _point(rule: PointProposals, shape: Shape, device: torch.device) -> Decide:
    return lambda tree, depths, out: walk_point(tree, out, shape.children, shape.levels)


def _drawn(rule: object, shape: Shape, device: torch.device, pools: Pools | None = None) -> Decide:
    left, drafted = _scratch(shape, device), _scratch(shape, device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        walk_drawn(tree, out, left, drafted, shape.drawn == "iid", shape.children, shape.levels, pools)

    return decide


def _block(rule: BlockVerification, shape: Shape, device: torch.device) -> Decide:
    left = _scratch(shape, device)
    return lambda tree, depths, out: walk_block(tree, out, left)


def _pools(
    rule: Lantern | LanternPP | LanternGreedy | LanternPPGreedy, device: torch.device, residual: str = "paper"
) -> Pools:
    relative = isinstance(rule, LanternPP | LanternPPGreedy)
    bound = rule.factor - 1.0 if isinstance(rule, LanternPP | LanternPPGreedy) else rule.delta
    kind = pool.RELATIVE if relative else pool.ABSOLUTE
    table = torch.as_tensor(rule.neighbours, dtype=torch.int32, device=device).contiguous()
    return Pools(table, rule.k, torch.tensor([bound], dtype=torch.float64, device=device), kind.value, residual)


def _lantern(rule: Lantern | LanternPP, shape: Shape, device: torch.device) -> Decide:
    pools = _pools(rule, device, rule.residual)
    if shape.drawn != "top_k":
        if shape.drawn == "iid" and rule.residual == "released":
            raise ValueError("device: residual 'released' says nothing of 'iid' trees; use 'paper' or 'standard'")
        return _drawn(rule, shape, device, pools)
    left = _scratch(shape, device)
    return lambda tree, depths, out: walk_lantern(tree, out, pools, left, shape.levels)


def _by_nodes(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    passes = torch.zeros(shape.batch, shape.nodes, dtype=torch.int64, device=device)
    return passes, torch.zeros(shape.batch, shape.nodes, dtype=torch.float64, device=device)


def _greedy(rule: GreedyMatch, shape: Shape, device: torch.device) -> Decide:
    passes, logs = _by_nodes(shape, device)

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        pass_by_argmax(tree, passes, None)
        walk_longest(tree, depths, out, passes, logs, FIRST, greedy=True)

    return decide


def _lantern_greedy(rule: LanternGreedy | LanternPPGreedy, shape: Shape, device: torch.device) -> Decide:
    passes, logs = _by_nodes(shape, device)
    pools = _pools(rule, device)
    choose = FIRST if rule.choose == "first" else LONGEST

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        pass_by_argmax(tree, passes, pools)
        walk_longest(tree, depths, out, passes, logs, choose, greedy=True)

    return decide


def _typical(rule: TypicalAcceptance, shape: Shape, device: torch.device) -> Decide:
    passes, logs = _by_nodes(shape, device)
    bound = torch.tensor([rule.epsilon, rule.alpha], dtype=torch.float64, device=device)
    choose = LIKELIEST if rule.choose == "likeliest" else LONGEST

    def decide(tree: BatchTree, depths: Tensor, out: Verdicts) -> None:
        pass_by_typical(tree, passes, logs, bound)
        walk_longest(tree, depths, out, passes, logs, choose, greedy=False)

    return decide


def _traversal(rule: TraversalVerification, shape: Shape, device: torch.device) -> Decide:
    size = (shape.batch, shape.levels + 1, shape.vocab_size)
    drawn = kind_of(shape.drawn)
    left = torch.zeros(size, dtype=torch.float64, device=device)
    drafted = torch.zeros((1, 1, 1) if drawn == POINTS.value else size, dtype=torch.float64, device=device)
    return lambda tree, depths, out: walk_traversal(tree, out, left, drafted, drawn, shape.children)


def _grouped(rule: GroupedSpeculation, shape: Shape, device: torch.device) -> Decide:
    if rule.codebook.shape[0] != shape.vocab_size:
        raise ValueError(
            f"device: gsd: expected a codebook of V = {shape.vocab_size} codes, got {rule.codebook.shape[0]}"
        )
    codebook = torch.as_tensor(rule.codebook, device=device).contiguous()
    grouped = rule.grouped
    groups = Groups(
        codebook,
        torch.tensor([rule.gap], dtype=torch.float64, device=device),
        torch.tensor([rule.distance**2], dtype=codebook.dtype, device=device),
        rule.group,
        grouped.before,
        grouped.rising,
    )
    left, drafted, drawn = _scratch(shape, device), _scratch(shape, device), kind_of(shape.drawn)
    return lambda tree, depths, out: walk_gsd(tree, out, left, drafted, groups, drawn, shape.children, shape.levels)


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """A rule's form on the device. make: from an instance of the rule's class to its launches.

    lacks: residuals that have no form.
    """

    name: str
    kind: type
    make: _Make
    lacks: frozenset[str] = frozenset()


DEVICE_RULES: Final[dict[str, DeviceRule]] = {
    rule.name: rule
    for rule in (
        DeviceRule("greedy", GreedyMatch, _greedy),
        DeviceRule("point", PointProposals, _point),
        DeviceRule("chain", SpeculativeSampling, _drawn),
        DeviceRule("multi_round", MultiRound, _drawn),
        DeviceRule("without_replacement", WithoutReplacement, _drawn),
        DeviceRule("block", BlockVerification, _block),
        DeviceRule("lantern", Lantern, _lantern),
        DeviceRule("lantern_pp", LanternPP, _lantern),
        DeviceRule("lantern_greedy", LanternGreedy, _lantern_greedy),
        DeviceRule("lantern_pp_greedy", LanternPPGreedy, _lantern_greedy),
        DeviceRule("typical", TypicalAcceptance, _typical),
        DeviceRule("traversal", TraversalVerification, _traversal),
        DeviceRule("gsd", GroupedSpeculation, _grouped, frozenset({"standard"})),
    )
}
"""Rules with a form on the device, by their names in `algos.accept.RULES`."""


def device_rule(rule: Rule, shape: Shape, device: torch.device) -> Decide:
    """The launches that decide trees of this shape by `rule`.

    Raises ValueError for a rule without a form on the device, or trees that it does not cover.
    """
    for form in DEVICE_RULES.values():
        if type(rule) is form.kind:
            spec = RULES[form.name]
            spec.check_covers(shape.drawn)
            if spec.needs_chain and shape.children > 1:
                raise ValueError(f"device: rule '{form.name}' covers chains, got trees; choose a chain policy")
            residual = getattr(rule, "residual", None)
            if residual in form.lacks:
                has = ", ".join(name for name in spec.residuals if name not in form.lacks)
                raise ValueError(
                    f"device: rule '{form.name}' has no form with residual '{residual}'; those that have one: {has}"
                )
            return form.make(rule, shape, device)
    raise ValueError(
        f"device: rule {type(rule).__name__} has no form on the device; those that have one: "
        f"{', '.join(DEVICE_RULES)}; choose one of them, or decode on the host"
    )
