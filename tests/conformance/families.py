"""Every kind of model that an engine can run, tiny: exported, and beside it a reference of another make.

The conformance tests ask each for the same things and know no kind by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.published import text_models
from tests.published.checkpoints import HEADS, SIDE, VOCAB, eagle_weights, noise, save_dtok, save_llamagen
from tests.published.references import dtok_reference, eagle_reference
from underpaint.algos.arrays import IntArray
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.target import EngineTarget

Outputs = tuple[Tensor, Tensor]
"""Logits [2, T, V] and features [2, T, D] of a guidance pair."""
TINY = LoadOptions(heads=HEADS, grid_side=SIDE)
_ONE_THREAD = EngineContext(threads=1)


class Family(Protocol):
    """A folder with a `target` and perhaps a `drafter`, and what they must compute; every grid is 4 by 4."""

    @property
    def folder(self) -> Path:
        """The models."""

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""

    def condition(self, target: EngineTarget, absent: bool = False) -> None:
        """Set the family's condition, or that of no condition."""

    def dense(self, tokens: IntArray) -> Outputs:
        """What the target says after the condition and after each of `tokens` [T], in one pass of the reference."""

    def draft(self, features: Tensor, tokens: IntArray) -> Outputs:
        """What the drafter says after each of `tokens` [T], given the target's features [2, T, D] before each."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published kind."""

    folder: Path
    conditioned: Callable[[EngineTarget, bool], None]
    reference: Callable[[Tensor], Outputs]
    """From codes [2, T]."""
    drafter: Callable[[Tensor, Tensor], Outputs] | None

    @property
    def drafts(self) -> bool:
        """See `Family`."""
        return self.drafter is not None

    def condition(self, target: EngineTarget, absent: bool = False) -> None:
        """See `Family`."""
        self.conditioned(target, absent)

    @torch.no_grad()
    def dense(self, tokens: IntArray) -> Outputs:
        """See `Family`."""
        return self.reference(_pair(tokens))

    @torch.no_grad()
    def draft(self, features: Tensor, tokens: IntArray) -> Outputs:
        """See `Family`."""
        assert self.drafter is not None
        return self.drafter(features, _pair(tokens))


def _pair(tokens: IntArray) -> Tensor:
    return torch.from_numpy(np.stack([tokens, tokens]).astype(np.int64))


def llamagen(work: Path, captions: bool) -> Published:
    """By class or by caption, with a drafter whose features grow no further: float32 follows it to 1e-5."""
    model, state = save_llamagen(work / "target.pt", captions), eagle_weights(fc_scale=0.1)
    save_file(state, work / "drafter.safetensors")
    kind, folder = "llamagen-t2i" if captions else "llamagen-c2i", work / "out"
    export_checkpoint(Request(kind, work / "target.pt", options=TINY), folder)
    pair = (kind, work / "target.pt")
    export_checkpoint(Request("eagle-drafter", work / "drafter.safetensors", target=pair, target_options=TINY), folder)
    features, classes = noise(3, 12), torch.tensor([3, 5])

    def condition(target: EngineTarget, absent: bool) -> None:
        if captions:
            _set_rows(target, folder, features, absent)
        else:
            target.prepare(target.encoder.of_ids(classes[int(absent)][None].numpy()))

    def reference(codes: Tensor) -> Outputs:
        cond = torch.stack([features, model.cls_embedding.uncond_embedding]) if captions else classes
        logits, hidden_states = model(codes, cond)
        return logits, hidden_states

    def draft(hidden_states: Tensor, codes: Tensor) -> Outputs:
        rows = zip(codes, hidden_states, strict=True)
        predicted = torch.stack([eagle_reference(state, model, row, each) for row, each in rows])
        return model.output(predicted), predicted

    return Published(folder, condition, reference, draft)


def _set_rows(target: EngineTarget, folder: Path, features: Tensor, absent: bool) -> None:
    session = open_session(folder / "condition.onnx", _ONE_THREAD)
    rows = session.run(None, {"features": features.numpy()})[0]
    if absent:
        rows = np.concatenate([rows[len(rows) // 2 :]] * 2)
    target.prepare(target.encoder.of_rows(rows))


def tar_dtok(work: Path) -> Published:
    """Tar's AR-DTok."""
    state, folder, features = save_dtok(work / "dtok.pth"), work / "out", noise(6, 10)
    options = LoadOptions(heads=HEADS, prefix=6)
    export_checkpoint(Request("tar-dtok", work / "dtok.pth", options=options), folder)

    def reference(codes: Tensor) -> Outputs:
        rows = zip(codes, (features, torch.zeros_like(features)), strict=True)
        logits, hidden_states = zip(*(dtok_reference(state, prefix, row) for row, prefix in rows), strict=True)
        return torch.stack(logits)[:, 5:], torch.stack(hidden_states)[:, 5:]

    def condition(target: EngineTarget, absent: bool) -> None:
        _set_rows(target, folder, features, absent)

    return Published(folder, condition, reference, None)


def chameleon(work: Path, lines: bool) -> Published:
    """A Chameleon-type model, only whose image tokens can be drawn, with Anole's drafter; `lines`: as Lumina-mGPT."""
    model = text_models.chameleon(swin=False, kv_heads=4)
    model.save_pretrained(work / "chameleon")
    state = text_models.save_anole_drafter(work / "drafter")
    pair, options = ("chameleon", work / "chameleon"), text_models.LUMINA if lines else text_models.OPTIONS
    export_checkpoint(Request(*pair, options=options), work / "out")
    drafter = Request("eagle-drafter", work / "drafter", target=pair, target_options=options)
    export_checkpoint(drafter, work / "out")

    def draft(features: Tensor, codes: Tensor) -> Outputs:
        return text_models.anole_draft(state, model, features, codes, lines)

    if not lines:
        return _prompted(work / "out", model, text_models.IMAGE_IDS, text_models.PROMPT[0, [0, -1]], draft)
    prompts = (text_models.PROMPT[0], text_models.PROMPT[0, :0])

    def condition(target: EngineTarget, absent: bool) -> None:
        target.prepare(target.encoder.of_ids(prompts[int(absent)].numpy()))

    def reference(codes: Tensor) -> Outputs:
        pairs = zip(prompts, codes, strict=True)
        logits, features = zip(*(text_models.lumina_outputs(model, *pair) for pair in pairs), strict=True)
        return torch.stack(logits), torch.stack(features)

    return Published(work / "out", condition, reference, draft)


def tar_lm(work: Path) -> Published:
    """Tar's language model, with a prompt to guide it away from, which Tar itself does not."""
    model = text_models.save_qwen(work)
    options = LoadOptions(grid_side=4, prefix=8, first_code=text_models.FIRST_CODE, uncond_keep=(0, 2))
    export_checkpoint(Request("tar-lm", work, options=options), work / "out")
    ids = text_models.FIRST_CODE + torch.arange(text_models.CODES)
    return _prompted(work / "out", model, ids, text_models.PROMPT[0, -2:], None)


def _prompted(
    folder: Path, model: object, ids: Tensor, kept_ids: Tensor, drafter: Callable[[Tensor, Tensor], Outputs] | None
) -> Published:
    """Under a prompt of 5 ids where 8 have room, beside one of its `kept_ids` alone."""
    prompts = (text_models.PROMPT[0], kept_ids)

    def condition(target: EngineTarget, absent: bool) -> None:
        target.prepare(target.encoder.of_ids(prompts[int(absent)].numpy()))

    def reference(codes: Tensor) -> Outputs:
        pairs = zip(prompts, codes, strict=True)
        rows = [text_models.image_outputs(model, ids, prompt[None], row[None]) for prompt, row in pairs]
        logits, features = zip(*rows, strict=True)
        return torch.cat(logits), torch.cat(features)

    return Published(folder, condition, reference, drafter)


def _needs_transformers(make: Callable[[Path], Published], work: Path) -> Published:
    pytest.importorskip("transformers", reason="the extra 'chameleon' is not installed")
    return make(work)


PUBLISHED: dict[str, Callable[[Path], Published]] = {
    "llamagen-c2i": lambda work: llamagen(work, captions=False),
    "llamagen-t2i": lambda work: llamagen(work, captions=True),
    "tar-dtok": tar_dtok,
    "tar-lm": lambda work: _needs_transformers(tar_lm, work),
    "chameleon": lambda work: _needs_transformers(partial(chameleon, lines=False), work),
    "chameleon-lumina": lambda work: _needs_transformers(partial(chameleon, lines=True), work),
}
"""By kind: every target that `models.published.load` knows, the drafters with theirs."""
assert VOCAB >= text_models.CODES
