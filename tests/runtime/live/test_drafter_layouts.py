"""EAGLE-3 drafters as SpecForge and speculators keep them: names and logits pinned to what their own code computes.

The golden file holds the tensors that each library saves for a tiny drafter, and its logits over three levels of a
draft: SpecForge at a6b6b02, speculators at c05b95b.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.runtime.live.tiny_models import MODELS, grid_of, randomise
from underpaint.runtime.live.drafter import new_eagle3
from underpaint.runtime.live.drafter_layouts import open_drafter, read_layout, write_layout
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError
from underpaint.training.distillation import unroll

GOLDEN = json.loads((Path(__file__).parent / "eagle3_golden.json").read_text())
LAYOUTS = ("specforge", "speculators")
CODES = np.arange(3, 60)
LENGTH = 12


@pytest.fixture(scope="module")
def pair():
    """A tiny Chameleon as a live model, and a drafter of some of its codes."""
    tiny = MODELS["chameleon"]()
    live = accelerate(tiny.model, grid=grid_of("chameleon"), longest_prompt=64).live
    return tiny, live, randomise(new_eagle3(live, CODES), seed=5)


def passes(live, drafter):
    """Three levels of a draft over a prompt and some codes, as the golden file has them."""
    prompt = [0, 103, 110, 121]
    tokens = torch.tensor([[each + live.codes for each in prompt] + [(5 * k + 3) % 57 for k in range(LENGTH - 4)]])
    features = torch.randn(1, LENGTH, 3 * live.config.hidden_size, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        return [out.logits[0] for out in unroll(drafter, features, tokens, 3)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_drafters_are_written_as_each_library_saves_them(pair, tmp_path, layout):
    _, live, drafter = pair
    write_layout(live, drafter, tmp_path, layout)
    saved = load_file(tmp_path / "model.safetensors")
    assert {name: list(value.shape) for name, value in sorted(saved.items())} == GOLDEN[layout]["shapes"]
    drafted = np.arange(len(CODES)) + saved["d2t"].numpy()
    assert drafted.tolist() == sorted(live.code_ids[CODES].tolist()) == saved["t2d"].nonzero()[:, 0].tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_are_those_of_each_library(pair, tmp_path, layout):
    _, live, drafter = pair
    write_layout(live, drafter, tmp_path, layout)
    back = open_drafter(live, tmp_path).module
    codes = np.argsort(live.code_ids[CODES])[:6] + CODES[0]  # the first rows of the head, by id
    for level, (mine, again) in enumerate(zip(passes(live, drafter), passes(live, back), strict=True)):
        assert torch.equal(mine, again)
        expected = torch.tensor(GOLDEN[layout]["logits"][level])
        torch.testing.assert_close(mine[level : level + 4, codes], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_drafter_of_another_library_drafts_losslessly(pair, tmp_path, layout):
    tiny, live, drafter = pair
    write_layout(live, drafter, tmp_path, layout)
    options = {"grid": grid_of("chameleon")}
    expected = accelerate(tiny.model, "ar", **options).generate(tiny.prompt, temperature=0).drawing.tokens
    fast = accelerate(tiny.model, "eagle2", drafter=tmp_path, **options)
    assert fast.generate(tiny.prompt, temperature=0).drawing.tokens == expected


def edited(folder, changes=None, weights=None, remove=()):
    """Change a saved drafter's config.json and weights."""
    config = json.loads((folder / "config.json").read_text())
    config.update(changes or {})
    (folder / "config.json").write_text(json.dumps(config))
    saved = load_file(folder / "model.safetensors") | (weights or {})
    save_file({name: value for name, value in saved.items() if name not in remove}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "weights", "remove", "expected"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {}, (), "architectures: expected"),
        ({"fc_norm": True}, {}, (), "fc_norm: expected false"),
        ({"num_hidden_layers": 2}, {}, (), "num_hidden_layers: expected 1"),
        ({"rope_parameters": {"rope_type": "yarn"}}, {}, (), "rope_type: expected default"),
        ({"hidden_size": 32}, {}, (), "of hidden_size 64 and vocab_size 128, got one of 32"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 9]}}, {}, (), r"got layers \[0, 1, 9\]"),
        ({}, {"d2t": torch.full((57,), 100)}, (), "to ids from 0 to 127, got ids from 100 to 156"),
        ({}, {}, ("midlayer.self_attn.o_proj.weight",), "expected midlayer.self_attn.o_proj.weight"),
        ({"underpaint": {}}, {"embed_tokens.weight": torch.randn(128, 64)}, (), "embeddings are another target's"),
        ({"underpaint": {"target": "0"}}, {}, (), "embeddings are another target's"),
        ({}, {"fc.weight": torch.full((64, 192), torch.nan)}, (), "expected finite numbers in fc.weight"),
    ],
)
def test_drafters_that_do_not_fit_are_refused(pair, tmp_path, changes, weights, remove, expected):
    _, live, drafter = pair
    write_layout(live, drafter, tmp_path, "specforge")
    edited(tmp_path, changes, weights, remove)
    with pytest.raises(ValueError, match=expected):
        open_drafter(live, tmp_path)


def test_embeddings_that_were_learnt_are_the_drafters_own(pair, tmp_path):
    _, live, drafter = pair
    write_layout(live, drafter, tmp_path, "speculators")
    table = torch.randn(128, 64)
    edited(tmp_path, {"underpaint": {}, "embed_requires_grad": True}, {"embed_tokens.weight": table})
    module = read_layout(live, tmp_path)
    tokens = torch.tensor([[5, live.codes + 103]])
    assert torch.equal(module.codes(tokens)[0], table[[int(live.code_ids[5]), 103]])


def test_without_embeddings_of_its_own_a_drafter_reads_the_targets(pair, tmp_path):
    _, live, drafter = pair
    write_layout(live, drafter, tmp_path, "specforge")
    edited(tmp_path, {"underpaint": {}}, remove=("embed_tokens.weight",))
    assert torch.equal(passes(live, read_layout(live, tmp_path))[0], passes(live, drafter)[0])


def test_targets_whose_codes_are_no_ids_have_no_such_layout(tmp_path):
    live = accelerate(MODELS["janus"]().model).live
    with pytest.raises(LiveModelError, match="whose image codes are ids of its vocabulary"):
        write_layout(live, new_eagle3(live), tmp_path, "specforge")
