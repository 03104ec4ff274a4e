"""Tiny random models, exported once a session, for every engine to be held against."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from export.decoders import export_drafter, export_target
from export.store import Origin
from models.drafter import BoundDrafter, Drafter
from models.text import WordEncoder
from models.transformer import Transformer, TransformerConfig, initialise

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


@dataclass(frozen=True, slots=True)
class Models:
    """The exported folder and the torch modules behind it."""

    folder: Path
    target: Transformer
    words: WordEncoder
    drafter: BoundDrafter


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
