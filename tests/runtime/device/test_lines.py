"""Pictures whose lines end in a token of their own: trees on the device decide what the model does token by token."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.runtime.device.test_kernels import CONFIG, model_of
from tests.runtime.device.test_mutants import planted
from underpaint.algos.accept import RULES
from underpaint.algos.draft import POLICIES
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.models.decoder import Decoder
from underpaint.runtime.device.decoder import DecoderForward
from underpaint.runtime.device.eager import EagerLoop
from underpaint.runtime.device.runner import DeviceRunner
from underpaint.runtime.methods.trees.device import TreeForm

LINED = replace(CONFIG, rope="line", qk_norm=True, grid_side=3, eol_token=2)
DRAFTS = replace(CONFIG, rope="line", grid_side=3, layers=1, drafter=True, condition="none", cond_ids=0)
GRID, CPU = Grid(3, 3), torch.device("cpu")
SAMPLER = SamplingParams(guidance=1.0)


def condition_of(model: Decoder) -> torch.Tensor:
    with torch.no_grad():
        return model.embed(torch.tensor([[12, 13, 14], [13, 11, 12]]), None)


def eagerly(model: Decoder) -> np.ndarray:
    loop = EagerLoop(model, 1, SAMPLER, True, GRID)
    return loop.decode(condition_of(model), [0, 0], [1, 2], torch.tensor([0, 1]))


def on_device(model: Decoder, policy: str | None, **settings: object) -> np.ndarray:
    how = TreeForm(
        RULES["greedy"].make(), SAMPLER, policy=None if policy is None else POLICIES[policy].make(**settings)
    )
    target = DecoderForward(model, 1)
    drafter = None if policy is None else DecoderForward(model_of(DRAFTS), 1)
    runner = DeviceRunner(target, drafter, how, GRID, 3, 2, CPU, target.line_token)
    runner.begin(condition_of(model), [0, 0], [1, 2], torch.tensor([0, 1]))
    return np.stack([image.tokens for image in runner.finish(2)])


def test_trees_that_run_over_ends_of_lines_decide_as_the_model() -> None:
    model = model_of(LINED)
    expected = eagerly(model)
    assert (expected != eagerly(model_of(replace(LINED, eol_token=None)))).any(), "the line tokens matter here"
    assert (on_device(model, None) == expected).all()
    assert (on_device(model, "eagle2", depth=2, top_k=3, total_tokens=5) == expected).all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tl.where(ends, here + N, here)", "here"),
        ("tl.where(ends, mask | behind, 0) | (own << N)", "own << N"),
        ("drawn + drawn // W", "drawn"),
        ("tl.store(out.path + place + 1, node + N, ends)", "tl.store(out.path + place + 1, node, ends)"),
    ],
)
def test_a_planted_bug_is_seen(old: str, new: str) -> None:
    model = model_of(LINED)
    expected = eagerly(model)
    with planted("lines", old, new):
        assert (on_device(model, None) != expected).any()
