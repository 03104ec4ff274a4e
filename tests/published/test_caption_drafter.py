"""LlamaGen's drafters for captions: fed the positions of the caption as the released code feeds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.published.checkpoints import HEADS, SIDE, eagle_weights, noise, save_llamagen
from tests.published.references import eagle_reference
from underpaint.algos.rows import SamplingParams
from underpaint.algos.tree import DraftTree, Verdict
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.target import EngineTarget

TINY = LoadOptions(heads=HEADS, grid_side=SIDE)
ONE_THREAD = EngineContext(threads=1)
POSITIONS = 3
"""Of a caption."""


def chain(*tokens: int) -> DraftTree:
    count = len(tokens)
    rows = np.full(count, -1)
    return DraftTree(np.array(tokens), np.arange(-1, count - 1), "top_k", np.empty((0, 32)), rows)


def test_a_drafter_reads_the_caption_as_the_released_code_does(tmp_path: Path) -> None:
    model, state = save_llamagen(tmp_path / "t2i.pt", captions=True), eagle_weights()
    save_file(state, tmp_path / "eagle.safetensors")
    pair, out = ("llamagen-t2i", tmp_path / "t2i.pt"), tmp_path / "out"
    export_checkpoint(Request("llamagen-t2i", tmp_path / "t2i.pt", options=TINY), out)
    export_checkpoint(Request("eagle-drafter", tmp_path / "eagle.safetensors", target=pair, target_options=TINY), out)
    target = EngineTarget.open("target", SamplingParams(), out, ONE_THREAD)
    drafter = EngineDrafter.open("drafter", SamplingParams(), out, ONE_THREAD)
    assert drafter.condition_positions == POSITIONS - 1
    target.features_at_begin = POSITIONS
    target.prepare(target.encoder.of_features(noise(POSITIONS, 12).numpy()))

    def released(tokens: list[int], features: np.ndarray, condition: int) -> np.ndarray:
        hidden = eagle_reference(state, model, torch.tensor(tokens), torch.from_numpy(features), condition)
        return torch.nn.functional.linear(hidden, model.output.weight).softmax(-1)[-1].detach().numpy()

    scored = target.begin()
    assert scored.features is not None
    seen, fed = scored.features[0], [0] * (POSITIONS - 1)
    assert seen.shape[0] == POSITIONS
    drafter.begin(scored)
    for root in (7, 21):
        fed.append(root)
        probs = drafter.expand(np.array([root]), np.array([-1]))[0]
        np.testing.assert_allclose(probs, released(fed, seen, POSITIONS - 1), atol=1e-5)
        # Without the caption's positions it is another distribution.
        alone = released(fed[POSITIONS - 1 :], seen[POSITIONS - 1 :], 0)
        assert 0.5 * np.abs(alone - probs).sum() > 0.01
        tree = chain(root)
        once = target.score(tree)
        target.commit(tree, Verdict((), 21))
        drafter.commit(tree, Verdict((), 21), once)
        assert once.features is not None
        seen = np.concatenate([seen, once.features[0]])
    with pytest.raises(ValueError, match="expected target features"):
        drafter.begin(scored._replace(features=seen[None, :, :5]))
