"""The drafter's unrolled training equals the drafting that it imitates."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.models.tiny import TINY, save_target, tiny_target, tiny_tokens
from underpaint.models.checkpoints import load_drafter, load_target
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.models.text import new_drafter, share_ends
from underpaint.models.train.drafter import DrafterSettings, train_drafter, unroll
from underpaint.models.train.loop import LoopSettings
from underpaint.models.train.target import TargetSettings, train_target
from underpaint.models.weights import restore, store


def tiny_pair() -> tuple[Decoder, torch.Tensor, torch.Tensor]:
    """A drafter, true features [2, 7, D] and tokens [2, 7]."""
    target = tiny_target()
    torch.manual_seed(3)
    drafter = new_drafter(target.decoder)
    for name, parameter in drafter.named_parameters():
        if parameter.ndim > 1 and not name.startswith(("codes", "head")):
            torch.nn.init.normal_(parameter, std=0.2)
    data = tiny_tokens(2)
    codes = torch.from_numpy(data.codes[:, :8].astype("int64"))
    _, features = target(codes, torch.from_numpy(data.words))
    return drafter.eval(), features[:, :-1], codes[:, :-1]


@torch.no_grad()
@pytest.mark.parametrize("committed", [1, 3, 5])
def test_unrolled_passes_equal_a_draft_from_the_cache(committed: int) -> None:
    """Pass k at position j is level k of a draft that starts after committed positions 0 .. j - k + 1."""
    drafter, features, tokens = tiny_pair()
    length = tokens.shape[1]
    outputs = unroll(drafter, features, tokens, 2 + length - committed)
    empty = drafter.empty_cache(2)
    cells, bias = torch.arange(committed), causal_bias(committed)
    out = drafter.step(tokens[:, :committed], cells, bias, empty, empty, features=features[:, :committed])
    keys, values = out.keys, out.values
    torch.testing.assert_close(outputs[0].logits[:, :committed], out.logits, atol=1e-5, rtol=0)
    for level, position in enumerate(range(committed, length), start=1):
        out = drafter.step(
            tokens[:, position : position + 1],
            torch.tensor([position]),
            torch.zeros(1, position + 1),
            keys,
            values,
            features=out.features[:, -1:],
        )
        keys = [torch.cat([keys[0], out.keys[0]], dim=2)]
        values = [torch.cat([values[0], out.values[0]], dim=2)]
        torch.testing.assert_close(outputs[level].logits[:, position], out.logits[:, 0], atol=1e-5, rtol=0)


def test_a_drafter_goes_on_from_the_weights_of_a_repository(tmp_path: Path) -> None:
    data, target = tiny_tokens(), save_target(tmp_path / "target" / "checkpoint.pt", tiny_target())
    settings = DrafterSettings(batch=4, passes=1, validated=8, validated_passes=1)
    loop = LoopSettings(steps=2, learning_rate=1e-3, warmup_steps=1)
    train_drafter(tmp_path / "first", data, data, target, 64, settings=settings, loop=loop)
    store(tmp_path / "first" / "checkpoint.pt", "tiny", "no command", tmp_path / "weights")
    restored = restore("tiny", tmp_path / "second", tmp_path / "weights")
    longer = replace(loop, steps=4)
    assert train_drafter(restored.parent, data, data, target, 64, settings=settings, loop=longer).step == 4


def test_widths_must_agree() -> None:
    drafter, narrow = new_drafter(Decoder(TINY)), Decoder(replace(TINY, dim=16))
    with pytest.raises(ValueError, match="32 wide, its target 16"):
        share_ends(drafter, narrow)


def test_a_drafter_learns_its_target_and_loads(tmp_path: Path) -> None:
    data = tiny_tokens()
    loop = LoopSettings(steps=60, learning_rate=5e-3, warmup_steps=5, validate_every=60)
    target = tmp_path / "target" / "checkpoint.pt"
    train_target(
        target.parent, data, data, 64, config=TINY, caption_dim=12, settings=TargetSettings(validated=32), loop=loop
    )
    settings = DrafterSettings(batch=8, validated=32, validated_passes=3, feature_noise=0.02)
    outcome = train_drafter(tmp_path / "drafter", data, data, target, 64, settings=settings, loop=loop)
    assert outcome.validation["top1_1"] > 0.5
    assert set(outcome.validation) == {"top1_1", "top1_2", "top1_3"}
    decoder = load_target(target).decoder
    drafter = load_drafter(tmp_path / "drafter" / "checkpoint.pt", decoder)
    assert drafter.head is decoder.head
    with pytest.raises(ValueError, match="wanted 'drafter'"):
        load_drafter(target, decoder)
