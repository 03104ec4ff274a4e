"""Tiny random models, exported once a session, for every engine to be held against."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conformance.families import PUBLISHED, Family, Outputs
from tests.conformance.on_tensorrt import halves, on_tensorrt  # noqa: F401
from tests.exported_once import graphs  # noqa: F401
from tests.one_grid import export_captioned_target, export_trained_drafter
from underpaint.algos.arrays import IntArray
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.export.store import Origin
from underpaint.models.decoder import Decoder, causal_bias, initialise
from underpaint.models.text import CaptionedTarget, new_drafter, share_ends
from underpaint.runtime.engines.target import EngineTarget

with suppress(ImportError):  # before PyTorch's exporter imports Triton to compile: on the CPU kernels are interpreted
    import underpaint.runtime.device.launch  # noqa: F401

ORIGIN = Origin("random weights", "a test", "none")
CONFIG = DecoderConfig(dim=32, layers=2, heads=2, hidden=96, vocab_size=17, grid_side=4, prefix=3, condition="external")
WORDS = 9
SCRATCH = 12


CAPTION = np.array([4, 0, 7])


@dataclass(frozen=True, slots=True)
class Models:
    """The embedded models' kind: the exported folder and the torch modules behind it. A `families.Family`."""

    folder: Path
    target: CaptionedTarget
    drafter: Decoder
    drafts: bool = True

    def condition(self, target: EngineTarget, absent: bool = False) -> None:
        """See `Family`."""
        target.prepare(target.encoder.of_ids(np.zeros_like(CAPTION) if absent else CAPTION))

    @torch.no_grad()
    def dense(self, tokens: IntArray) -> Outputs:
        """See `Family`."""
        pair = torch.from_numpy(np.stack([CAPTION, np.zeros_like(CAPTION)]))
        fed = torch.from_numpy(np.stack([tokens, tokens]))
        logits, features = self.target.decoder(fed, self.target.condition(pair))
        return logits, features

    @torch.no_grad()
    def draft(self, features: Tensor, tokens: IntArray) -> Outputs:
        """See `Family`."""
        count, empty = len(tokens), self.drafter.empty_cache(2)
        fed = torch.from_numpy(np.stack([tokens, tokens]))
        out = self.drafter.step(fed, torch.arange(count), causal_bias(count), empty, empty, features=features)
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
    target = CaptionedTarget(CONFIG, 12, WORDS)
    drafter = new_drafter(target.decoder)
    for part in (target.conditioner, drafter, target.decoder):
        initialise(part, 0.25)
    share_ends(drafter, target.decoder)
    export_captioned_target("target", target.eval(), folder, ORIGIN)
    export_trained_drafter("drafter", drafter.eval(), folder, ORIGIN, SCRATCH)
    export_trained_drafter("drafter_int8", drafter, folder, ORIGIN, SCRATCH, eight_bits=True)
    return Models(folder, target, drafter)


@pytest.fixture(scope="session", params=["embedded", *PUBLISHED])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The embedded models, and then every published kind: whatever is promised of engines holds for all."""
    if request.param == "embedded":
        embedded: Models = request.getfixturevalue("models")
        return embedded
    return PUBLISHED[request.param](tmp_path_factory.mktemp(request.param))
