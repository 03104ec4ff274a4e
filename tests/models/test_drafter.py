"""The drafter's unrolled training equals the drafting that it imitates."""

from pathlib import Path

import pytest
import torch

from tests.models.tiny import TINY, tiny_target, tiny_tokens
from underpaint.models.checkpoints import load_drafter, load_target
from underpaint.models.drafter import BoundDrafter, Drafter
from underpaint.models.layers import causal_bias
from underpaint.models.text import caption_features
from underpaint.models.train.drafter import DrafterSettings, train_drafter, unroll
from underpaint.models.train.loop import LoopSettings
from underpaint.models.train.target import TargetSettings, train_target
from underpaint.models.transformer import Transformer, TransformerConfig


def tiny_pair() -> tuple[BoundDrafter, torch.Tensor, torch.Tensor]:
    """A bound drafter, true features [2, 7, D] and token embeddings [2, 7, D]."""
    target = tiny_target()
    torch.manual_seed(3)
    drafter = Drafter(TINY)
    for parameter in drafter.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    data = tiny_tokens(2)
    codes = torch.from_numpy(data.codes[:, :8].astype("int64"))
    cond = caption_features(target.words, target.transformer, torch.from_numpy(data.words))
    _, features = target.transformer(codes[:, :-1], cond)
    bound = drafter.bind(target.transformer).eval()
    return bound, features[:, :-1], bound.embed_tokens(codes[:, :-2])


@torch.no_grad()
@pytest.mark.parametrize("committed", [1, 3, 5])
def test_unrolled_passes_equal_a_draft_from_the_cache(committed: int) -> None:
    """Pass k at position j is level k of a draft that starts after committed positions 0 .. j - k + 1."""
    bound, features, embeddings = tiny_pair()
    length = embeddings.shape[1]
    features = features[:, :length]
    outputs = unroll(bound, features, embeddings, 2 + length - committed)
    out = bound.step(
        features[:, :committed],
        embeddings[:, :committed],
        torch.arange(committed),
        causal_bias(committed),
        bound.empty_cache(2),
        bound.empty_cache(2),
        torch.zeros(0),
    )
    keys, values = out.keys, out.values
    torch.testing.assert_close(outputs[0].logits[:, :committed], out.logits, atol=1e-5, rtol=0)
    for level, position in enumerate(range(committed, length), start=1):
        out = bound.step(
            out.features[:, -1:],
            embeddings[:, position : position + 1],
            torch.tensor([position]),
            torch.zeros(1, 1),
            keys,
            values,
            torch.zeros(position),
        )
        keys = [torch.cat([keys[0], out.keys[0]], dim=2)]
        values = [torch.cat([values[0], out.values[0]], dim=2)]
        torch.testing.assert_close(outputs[level].logits[:, position], out.logits[:, 0], atol=1e-5, rtol=0)


def test_widths_must_agree() -> None:
    narrow = TransformerConfig(dim=16, n_layer=1, n_head=2, vocab_size=24, block_size=16)
    with pytest.raises(ValueError, match="32 wide, its target 16"):
        Drafter(TINY).bind(Transformer(narrow))


def test_a_drafter_learns_its_target_and_loads(tmp_path: Path) -> None:
    data = tiny_tokens()
    loop = LoopSettings(steps=60, learning_rate=5e-3, warmup_steps=5, validate_every=60)
    target = tmp_path / "target" / "checkpoint.pt"
    train_target(target.parent, data, data, 64, config=TINY, settings=TargetSettings(validated=32), loop=loop)
    settings = DrafterSettings(batch=8, validated=32, validated_passes=3, feature_noise=0.02)
    outcome = train_drafter(tmp_path / "drafter", data, data, target, 64, settings=settings, loop=loop)
    assert outcome.validation["top1_1"] > 0.5
    assert set(outcome.validation) == {"top1_1", "top1_2", "top1_3"}
    _, transformer = load_target(target)
    bound = load_drafter(tmp_path / "drafter" / "checkpoint.pt", transformer)
    assert bound.output is transformer.output
    with pytest.raises(ValueError, match="wanted 'drafter'"):
        load_drafter(target, transformer)
