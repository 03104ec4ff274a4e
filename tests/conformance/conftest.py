"""Tiny random models, exported once a session, for every engine to be held against."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conformance.families import PUBLISHED, Family, Outputs
from underpaint.algos.arrays import IntArray
from underpaint.export.decoders import export_drafter, export_target
from underpaint.export.store import Origin
from underpaint.models.drafter import BoundDrafter, Drafter
from underpaint.models.layers import causal_bias
from underpaint.models.text import WordEncoder, caption_features
from underpaint.models.transformer import Transformer, TransformerConfig, initialise
from underpaint.runtime.engines.target import EngineTarget

ORIGIN = Origin("random weights", "a test", "none")
CONFIG = TransformerConfig(
    dim=32,
    n_layer=2,
    n_head=2,
    vocab_size=17,
    block_size=16,
    model_type="t2i",
    cls_token_num=3,
    caption_dim=12,
    multiple_of=16,
)
WORDS = 9
SCRATCH = 12


CAPTION = np.array([4, 0, 7])


@dataclass(frozen=True, slots=True)
class Models:
    """The embedded models' kind: the exported folder and the torch modules behind it. A `families.Family`."""

    folder: Path
    target: Transformer
    words: WordEncoder
    drafter: BoundDrafter
    drafts: bool = True

    def condition(self, target: EngineTarget, absent: bool = False) -> None:
        """See `Family`."""
        target.prepare(target.encoder.of_ids(np.zeros_like(CAPTION) if absent else CAPTION))

    @torch.no_grad()
    def dense(self, tokens: IntArray) -> Outputs:
        """See `Family`."""
        pair = torch.from_numpy(np.stack([CAPTION, np.zeros_like(CAPTION)]))
        cond = self.target.embed_condition(caption_features(self.words, self.target, pair))
        fed = torch.from_numpy(np.stack([tokens, tokens]))
        embeddings = torch.cat([cond, self.target.embed_tokens(fed)], dim=1)
        empty = self.target.empty_cache(2)
        cells, bias = self.target.cells(len(tokens)), causal_bias(embeddings.shape[1])
        out = self.target.step(embeddings, cells, bias, empty, empty, torch.zeros(0))
        first = CONFIG.cls_token_num - 1
        return out.logits[:, first:], out.features[:, first:]

    @torch.no_grad()
    def draft(self, features: Tensor, tokens: IntArray) -> Outputs:
        """See `Family`."""
        count, empty = len(tokens), self.drafter.empty_cache(2)
        embeddings = self.drafter.embed_tokens(torch.from_numpy(np.stack([tokens, tokens])))
        out = self.drafter.step(
            features, embeddings, torch.arange(count), causal_bias(count), empty, empty, torch.zeros(0)
        )
        return out.logits, out.features


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("zoo")
    torch.manual_seed(5)
    words, target = WordEncoder(WORDS, CONFIG.caption_dim), Transformer(CONFIG)
    drafter = Drafter(CONFIG).bind(target)
    for part in (target, drafter.drafter):
        initialise(part, 0.25)
    export_target("target", target.eval(), words.eval(), folder, ORIGIN)
    export_drafter("drafter", drafter.eval(), folder, ORIGIN, SCRATCH)
    export_drafter("drafter_int8", drafter, folder, ORIGIN, SCRATCH, integers=True)
    return Models(folder, target, words, drafter)


@pytest.fixture(scope="session", params=["embedded", *PUBLISHED])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The embedded models, and then every published kind: whatever is promised of engines holds for all."""
    if request.param == "embedded":
        embedded: Models = request.getfixturevalue("models")
        return embedded
    return PUBLISHED[request.param](tmp_path_factory.mktemp(request.param))
