"""What cannot run on the device says so, and names what can."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.runtime.device.tables import TableForward, Tables
from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.mulo import Repair
from underpaint.runtime.device.cycle import DeviceCycle
from underpaint.runtime.device.kernels.row_maths import PARTS
from underpaint.runtime.device.kernels.walk import MOST_TOKENS, tile
from underpaint.runtime.device.rules import load_form
from underpaint.runtime.methods.multi_scale.device import MOST_CODES, RepairForm
from underpaint.runtime.methods.registry import METHODS
from underpaint.runtime.methods.trees.device import TreeForm

TABLES = Tables(0, 5, 1)


def cycle_of(policy: str | None, rule: str, drafter: bool = True, **settings: object) -> DeviceCycle:
    draft_policy = None if policy is None else POLICIES[policy].make(**settings)
    drafts = TableForward(TABLES, True) if drafter else None
    how = TreeForm(RULES[rule].make(), SamplingParams(), policy=draft_policy)
    return DeviceCycle(TableForward(TABLES, False), drafts, how, Grid(3, 3), 1, 1, torch.device("cpu"))


@pytest.mark.parametrize("reference", sorted({spec.device for spec in (*RULES, *POLICIES) if spec.device}))
def test_every_device_form_is_where_its_spec_says(reference: str) -> None:
    assert callable(load_form(reference))


def test_a_device_form_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"'underpaint\.algos\.tree:nothing': .* has no 'nothing'"):
        load_form("underpaint.algos.tree:nothing")
    with pytest.raises(ValueError, match="rule 'point': expected device to be \"module:function\""):
        replace(RULES["point"], device="point")


@pytest.mark.parametrize(
    ("policy", "rule", "settings", "told"),
    [
        ("chain", "cool", {}, "no form on the device; those that have one: block, chain, ensemble, fly"),
        ("roofline", "point", {}, "no form on the device; those that have one: .*chain_top1"),
        ("adt", "point", {"init": "random"}, "those that have one: horizontal, vertical"),
        ("chain", "point", {}, "covers top_k trees"),
        ("eagle1", "without_replacement", {"widths": (40, 40)}, "at most 64; lower its widths"),
    ],
)
def test_what_has_no_form_is_refused(policy: str, rule: str, settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        cycle_of(policy, rule, **settings)


def test_a_policy_that_drafts_needs_a_drafter() -> None:
    with pytest.raises(ValueError, match="no drafter was given"):
        cycle_of("eagle2", "point", drafter=False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_named_methods_that_have_a_form(temperature: float) -> None:
    with_form = {spec.name for spec in METHODS if spec.tuned.at(temperature).runs_on_device}
    assert {
        "ar",
        "eagle1",
        "sequoia",
        "eagle2",
        "opt-tree",
        "adt",
        "adt-control-tree",
        "zipar",
        "zipar-adaptive",
    } <= with_form
    assert {"sjd", "scd-maximal", "scd-gumbel", "jacobi-lookup", "sjd-pac", "pjd"} <= with_form
    assert with_form.isdisjoint({"roofline", "roofline+lantern", "vvs"})


def test_mulo_sd_is_refused_for_codes_that_exceed_the_shared_memory_of_small_gpus() -> None:
    near = np.empty((MOST_CODES, 0), dtype=np.int64)
    repair = Repair("local", 0, "islands", None, False, "stale")
    form = RepairForm(near, 0.3, repair, 2, SamplingParams(), SamplingParams())
    assert form.layout(Grid(4, 4), MOST_CODES, None, 1).envelope.nodes > 0
    with pytest.raises(ValueError, match="expected at most 16,384 codes, got 16,385"):
        form.layout(Grid(4, 4), MOST_CODES + 1, None, 1)


def test_a_vocabulary_of_more_parts_than_a_draw_has_is_refused() -> None:
    assert tile(MOST_TOKENS, wide=True) // 4 * PARTS.value == MOST_TOKENS
    with pytest.raises(ValueError, match="expected a vocabulary of at most 65536 tokens, got 65537"):
        tile(MOST_TOKENS + 1)
