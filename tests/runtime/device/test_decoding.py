"""Whole decodes on the device are `decode`'s, token for token, and no image knows of the others in its batch."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tests.runtime.device.tables import TableForward, TableHost, Tables
from underpaint.algos.accept import RULES
from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.accept.spec import at_temperature
from underpaint.algos.chance import sampling
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid, Policy
from underpaint.algos.rows import SamplingParams
from underpaint.algos.step import Decoded, decode
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.device.kernels.walk import DONE, NOT_FINITE
from underpaint.runtime.methods.trees.device import TreeForm

GRID = Grid(3, 4)
V = 7
NEAR = nearest_codes(np.random.default_rng(3).standard_normal((V, 2)), 4)
PLANNED = {"acceptance": (0.7, 0.4, 0.1), "max_depth": 3, "verify_ms": ((1, 1.0), (9, 1.3)), "draft_ms": 0.1}


def method(policy: str, rule: str, temperature: float, **settings: object) -> TreeForm:
    """A method at this temperature: at 0, rules give way to their greedy forms, which read the distributions at 1."""
    spec = at_temperature(RULES[rule], temperature)
    accept_rule = spec.make(neighbours=NEAR) if spec.codebook else spec.make()
    sampler = SamplingParams(guidance=2.0, temperature=1.0 if temperature == 0 else temperature)
    return TreeForm(accept_rule, sampler, policy=POLICIES[policy].make(**settings))


METHODS = {
    "chain": ("chain", "chain", {"length": 3}),
    "eagle1": ("eagle1", "without_replacement", {"widths": (3, 3, 2)}),
    "eagle2": ("eagle2", "point", {"depth": 3, "top_k": 3, "total_tokens": 7}),
    "adt": ("adt", "point", {"max_depth": 3, "start_depth": 2, "max_width": 3, "start_width": 2, "total_tokens": 7}),
    "static": ("static_top_k", "point", {"widths": (3, 3, 2)}),
    "scheduled": ("scheduled", "point", {"mean_depth": 1.7, "top_k": 2, "total_tokens": 5}),
    "sequoia": ("sequoia", "without_replacement", PLANNED),
    "sequoia-top-k": ("sequoia_top_k", "point", PLANNED),
    "opt": ("opt", "point", {"total_tokens": 5, "threshold": 0.31, "max_depth": 3}),
    "traversal": ("eagle1", "traversal", {"widths": (2, 3)}),
    "delayed": ("delayed", "multi_round", {"paths": 2, "trunk": 1, "branch": 2}),
    "fly": ("chain", "fly", {"length": 4}),
    "lantern": ("eagle2", "lantern", {"depth": 2, "top_k": 3, "total_tokens": 6}),
    "lantern++": ("eagle2", "lantern_pp", {"depth": 2, "top_k": 3, "total_tokens": 6}),
}
METHODS |= {
    spec.name: ("eagle2", spec.name, {"depth": 3, "top_k": 3, "total_tokens": 7})
    for spec in RULES
    if spec.device and "top_k" in spec.drawn and not spec.make.__module__.startswith("underpaint.")
}
"""Rules from outside with a device form join, as `UNDERPAINT_PLUGINS` names them."""


def target_and_drafter(seed: int) -> tuple[Tables, Tables]:
    target = Tables(seed, V, rows=2)
    return target, target.near(seed + 1, 0.4)


def on_device(
    how: TreeForm, tables: tuple[Tables, Tables], images: Sequence[int], seed: int = 5, grid: Grid = GRID
) -> list[list[int]]:
    cycle = DeviceCycle(
        TableForward(tables[0], False), TableForward(tables[1], True), how, grid, 1, len(images), torch.device("cpu")
    )
    first = torch.tensor([[image % V] for image in images])
    where = TableForward(tables[0], False).embed(first)
    cycle.begin(where, torch.full((len(images),), seed), torch.tensor(images))
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    assert cycle.state.verdicts.status.tolist() == [1] * len(images)
    return cycle.state.progress.decided.tolist()


def decoded(how: TreeForm, tables: tuple[Tables, Tables], image: int, seed: int = 5, grid: Grid = GRID) -> Decoded:
    hosts = [TableHost(one, grid, how.sampler, drafts, image % V) for one, drafts in zip(tables, (0, 1), strict=True)]
    policy: Policy | None = how.policy
    assert policy is not None
    return decode(hosts[0], hosts[1], policy, how.rule, sampling(seed, image))


def on_host(how: TreeForm, tables: tuple[Tables, Tables], image: int) -> list[int]:
    return decoded(how, tables, image).tokens.tolist()


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_a_decode_is_the_reference_s(name: str, temperature: float) -> None:
    policy, rule, settings = METHODS[name]
    how, tables = method(policy, rule, temperature, **settings), target_and_drafter(1)
    assert on_device(how, tables, [3])[0] == on_host(how, tables, 3)


def test_a_batch_is_its_single_runs_and_a_fourth_image_changes_none() -> None:
    policy, rule, settings = METHODS["adt"]
    tables, how, small = target_and_drafter(2), method(policy, rule, 1, **settings), Grid(2, 4)
    alone = [on_device(how, tables, [image], grid=small)[0] for image in (0, 1, 2)]
    assert on_device(how, tables, [0, 1, 2], grid=small) == alone
    assert on_device(how, tables, [2, 6, 0, 1], grid=small)[::2] == [alone[2], alone[0]]
    assert len({tuple(tokens) for tokens in alone}) == 3


@pytest.mark.parametrize("name", ["sequoia", "opt"])
def test_images_of_unequal_progress_are_the_reference_s(name: str) -> None:
    policy, rule, settings = METHODS[name]
    tables, how, small = target_and_drafter(2), method(policy, rule, 1, **settings), Grid(2, 3)
    single = {image: decoded(how, tables, image, grid=small) for image in (0, 1, 2, 6)}
    assert len({len(single[image].cycles) for image in (0, 1, 2)}) > 1
    for images in ((0, 1, 2), (2, 6, 0, 1)):
        expected = [single[image].tokens.tolist() for image in images]
        assert on_device(how, tables, images, grid=small) == expected


def test_a_spoilt_image_ends_alone() -> None:
    policy, rule, settings = METHODS["eagle1"]
    how, tables = method(policy, rule, 1, **settings), target_and_drafter(3)
    target = TableForward(tables[0], False)
    cycle = DeviceCycle(target, TableForward(tables[1], True), how, GRID, 1, 2, torch.device("cpu"))
    cycle.begin(target.embed(torch.tensor([[0], [1]])), torch.full((2,), 5), torch.tensor([0, 1]))
    target.spoilt = torch.tensor([float("nan"), 0.0])
    while not bool((cycle.state.verdicts.status > 0).all()):
        cycle.run()
    assert cycle.state.verdicts.status.tolist() == [NOT_FINITE, DONE]
    assert cycle.state.progress.cells.tolist() == [1, GRID.cells]
    assert cycle.state.progress.decided.tolist()[1] == on_host(how, tables, 1)
