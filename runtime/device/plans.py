"""Which tree policies have a form on the device, and the fixed envelope of each one's trees."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final, NamedTuple

import torch

from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.adt import AdtTree
from underpaint.algos.draft.chain import Chain, LikeliestChain
from underpaint.algos.draft.eagle1 import Eagle1, StaticTopK
from underpaint.algos.draft.eagle2 import Eagle2
from underpaint.algos.draft.opt import OptTree
from underpaint.algos.draft.scheduled import ScheduledTree
from underpaint.algos.draft.sequoia import Sequoia, SequoiaTopK
from underpaint.algos.draft.shape import chain_shape, ranked_shape, within
from underpaint.algos.draft.spec import Budget, Grid, Policy
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import Drawn, Shape
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.growth import Growth, Limits
from underpaint.runtime.device.opt_growth import OptGrowth
from underpaint.runtime.device.ranked_growth import Adaptation, NextDepths, RankedGrowth, Schedule
from underpaint.runtime.device.state import Envelope, State
from underpaint.runtime.device.static_growth import StaticGrowth, static_envelope


class Plan(NamedTuple):
    """What a policy needs on the device. make: its growth, given the batch's buffers, the drafter and its sampler.

    by_target: the target drafts for itself, and stands for the drafter. image_bytes: held for an image beside what the
    envelope takes. most_images: of a batch. chooses: the growth is a `ChosenGrowth`.
    """

    envelope: Envelope
    drawn: Drawn
    make: Callable[[State, DeviceDecoder, SamplingParams], Growth]
    by_target: bool = False
    image_bytes: int = 0
    most_images: int | None = None
    chooses: bool = False


DEVICE_POLICIES: Final = (
    Chain,
    LikeliestChain,
    Eagle1,
    StaticTopK,
    Eagle2,
    ScheduledTree,
    Sequoia,
    SequoiaTopK,
    AdtTree,
    OptTree,
)
"""Policies with a form on the device."""


def plan_of(policy: Policy, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """The envelope and the growth of a policy; ValueError for one without a form on the device."""
    if isinstance(policy, Chain):
        length = min(policy.length, max_nodes - 1)
        return _static_plan(partial(within, chain_shape(length)), length, "iid", grid, max_nodes)
    if isinstance(policy, Eagle1 | StaticTopK):
        drawn: Drawn = "top_k" if isinstance(policy, StaticTopK) else "without_replacement"
        shape = ranked_shape(tuple(policy.widths))
        if len(shape) > max_nodes:
            raise ValueError(
                f"device: the static tree has {len(shape)} nodes, the target scores at most {max_nodes}; lower its "
                "widths"
            )
        return _static_plan(partial(within, shape), len(policy.widths), drawn, grid, max_nodes)
    if isinstance(policy, Sequoia):
        drawn = "top_k" if isinstance(policy, SequoiaTopK) else "without_replacement"
        return _static_plan(policy.shape_within, min(policy.max_depth, max_nodes - 1), drawn, grid, max_nodes)
    if isinstance(policy, LikeliestChain):
        return _ranked_plan((policy.length, 1, policy.length), None, grid, vocab_size, max_nodes, policy.length)
    if isinstance(policy, Eagle2):
        settings = (policy.depth, policy.top_k, policy.total_tokens)
        return _ranked_plan(settings, None, grid, vocab_size, max_nodes, policy.total_tokens)
    if isinstance(policy, ScheduledTree):
        settings = (ceil(policy.mean_depth), policy.top_k, policy.total_tokens)
        return _ranked_plan(settings, policy, grid, vocab_size, max_nodes, policy.total_tokens)
    if isinstance(policy, AdtTree):
        most = policy.total_tokens
        if policy.nodes == "proportional":
            most = ceil(most * policy.max_depth * policy.max_width / (policy.start_depth * policy.start_width))
        settings = (policy.max_depth, policy.max_width, policy.total_tokens)
        return _ranked_plan(settings, policy, grid, vocab_size, max_nodes, most)
    if isinstance(policy, OptTree):
        return _opt_plan(policy, grid, vocab_size, max_nodes)
    raise ValueError(
        f"device: policy {type(policy).__name__} has no form on the device; those that have one: "
        f"{', '.join(spec.name for spec in POLICIES if spec.make in DEVICE_POLICIES)}; choose one of them, or decode "
        "on the host"
    )


def _static_plan(shape_of: Callable[[Budget], Shape], depth: int, drawn: Drawn, grid: Grid, max_nodes: int) -> Plan:
    """Of static shapes of at most `depth` levels: one for each number of levels that there may be room for."""
    deepest = max(0, min(depth, grid.cells - 2))
    shapes = [shape_of(Budget(levels, max_nodes)) for levels in range(deepest + 1)]
    while len(shapes) > 1 and shapes[-1] == shapes[-2]:
        shapes.pop()
    sampled = drawn != "top_k"
    envelope = static_envelope(shapes, sampled)
    return Plan(envelope, drawn, lambda state, drafter, sampler: StaticGrowth(state, drafter, sampler, shapes, sampled))


def _ranked_plan(
    settings: tuple[int, int, int],
    changing: AdtTree | ScheduledTree | None,
    grid: Grid,
    vocab_size: int,
    max_nodes: int,
    most: int,
) -> Plan:
    depth, width, total = settings
    nodes = 1 + min(most, max_nodes - 1)
    levels = max(1, min(depth, nodes - 1, grid.cells - 2))
    width = min(width, vocab_size)
    envelope = Envelope(nodes, levels, width, width, max(1, width))

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> Growth:
        limits = _limits(state, depth, width, min(total, max_nodes - 1))
        depths: NextDepths | None = None
        if isinstance(changing, AdtTree):
            depths = Adaptation(changing, state, grid)
        elif changing is not None:
            depths = Schedule(changing, state)
        return RankedGrowth(state, drafter, sampler, limits, depths)

    return Plan(envelope, "top_k", make)


def _opt_plan(policy: OptTree, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    total = min(policy.total_tokens, max_nodes - 1)
    levels = max(1, min(policy.max_depth, total, grid.cells - 2))
    envelope = Envelope(1 + total, levels, total, min(total, vocab_size), total)

    def make(state: State, drafter: DeviceDecoder, sampler: SamplingParams) -> Growth:
        limits = _limits(state, policy.max_depth, total, total)
        return OptGrowth(state, drafter, sampler, limits, policy.threshold, max_nodes)

    return Plan(envelope, "top_k", make)


def _limits(state: State, *numbers: int) -> Limits:
    device = state.roles.device
    return Limits(*(torch.full((state.batch,), number, dtype=torch.int64, device=device) for number in numbers))
