"""How a tree policy grows its trees on the device: the form that its spec names, in an envelope of fixed size."""

from collections.abc import Callable
from typing import NamedTuple

from underpaint.algos.draft import POLICIES
from underpaint.algos.draft.spec import Grid, Policy, policy_spec_of
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import Drawn
from underpaint.runtime.device.forwards import DeviceDecoder
from underpaint.runtime.device.growth import Growth
from underpaint.runtime.device.rules import load_form
from underpaint.runtime.device.state import Envelope, State


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


class Room(NamedTuple):
    """What a policy's trees must fit into: the picture, V, the nodes of the target's largest pass (root included).

    drawn: how the policy's siblings are drawn, by its spec.
    """

    grid: Grid
    vocab_size: int
    max_nodes: int
    drawn: Drawn


def plan_of(policy: Policy, grid: Grid, vocab_size: int, max_nodes: int) -> Plan:
    """The envelope and the growth of a policy; ValueError for one without a form on the device."""
    spec = policy_spec_of(policy)
    if spec is None or spec.device is None:
        raise ValueError(
            f"device: policy {type(policy).__name__} has no form on the device; those that have one: "
            f"{', '.join(one.name for one in POLICIES if one.device)}; choose one of them, or decode on the host"
        )
    plan: Plan = load_form(spec.device)(policy, Room(grid, vocab_size, max_nodes, spec.drawn))
    return plan
