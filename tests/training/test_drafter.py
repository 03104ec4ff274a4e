"""One drafter on several grids: its unrolled training equals the drafting that it imitates, on each of them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.models.tiny import TINY, tiny_target, tiny_tokens
from tests.training.test_target import data, run
from underpaint.models.checkpoints import load_drafter, load_target, load_whole, read
from underpaint.models.decoder import Decoder, causal_bias
from underpaint.models.text import new_drafter, share_ends
from underpaint.training import drafter as recipes
from underpaint.training.distillation import Distillation, DrafterSettings, Taught, unroll
from underpaint.training.drafter import taught_by, taught_scenes, train_drafter
from underpaint.training.grids import batch_of, decoder_on_grid
from underpaint.training.loop import CHECKPOINT, LoopSettings, Loss, save_atomically
from underpaint.training.tokens import TokenSet

SETTINGS = DrafterSettings(batch=4, passes=2, validated=6, validated_passes=2)
LOOP = LoopSettings(steps=1, learning_rate=5e-3, warmup_steps=1)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target of grids of 2 and 4 whose distributions say something."""
    run(tmp_path / "target", steps=2)
    path, random = tmp_path / "target" / CHECKPOINT, torch.Generator().manual_seed(5)
    saved = load_whole(path)
    for name, value in saved["model"].items():
        if value.ndim > 1 and "words" not in name:
            value.copy_(0.4 * torch.randn(value.shape, generator=random))
    save_atomically(saved, path)
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = load_whole(folder / CHECKPOINT)["raw"]
    return state


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


@pytest.mark.parametrize("side", [2, 4])
def test_on_one_grid_it_learns_what_a_drafter_of_that_grid_would(
    tmp_path: Path, target: Path, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, grid_data = SimpleNamespace(), data(side)

    def heard(drafter: Decoder, loss: object, *rest: object, validate: object, **others: object) -> None:
        arguments.drafter, arguments.loss, arguments.validate = drafter, loss, validate

    monkeypatch.setattr(recipes, "train", heard)
    train_drafter(tmp_path / "x", {side: grid_data}, target, settings=SETTINGS, loop=LOOP)
    saved = load_whole(target)
    saved["config"]["decoder"]["grid_side"] = side
    save_atomically(saved, tmp_path / "one.pt")
    alone = load_target(tmp_path / "one.pt")
    drafter = new_drafter(alone.decoder)
    drafter.load_state_dict(arguments.drafter.state_dict())
    place = torch.device("cpu")
    one = Distillation(drafter, SETTINGS, place)
    for step in range(3):
        random = np.random.default_rng([0, step])
        batch = batch_of(grid_data.data, SETTINGS.batch, SETTINGS.condition_dropout, random)
        assert torch.equal(arguments.loss(step).value, one.loss(taught_by(alone, *batch, place), random).value)
    alone_figures = one.validated(taught_scenes(alone, grid_data.validation, SETTINGS.validated, place))
    assert arguments.validate() == {f"{name}_{8 * side}": figure for name, figure in alone_figures.items()}
    assert alone_figures.keys() == {"top1_1", "acceptance_1", "top1_2", "acceptance_2"}


def test_steps_take_the_grids_in_turn_and_both_are_learnt(tmp_path: Path, target: Path) -> None:
    grids = {side: data(side) for side in (2, 4)}
    first = train_drafter(tmp_path / "first", grids, target, settings=SETTINGS, loop=LOOP)
    # The first step is on the smaller grid, of as many cells as four scenes of the larger have.
    small = train_drafter(tmp_path / "small", {2: data(2)}, target, settings=replace(SETTINGS, batch=16), loop=LOOP)
    assert first.validation["top1_1_16"] == small.validation["top1_1_16"]
    for name, value in weights(tmp_path / "small").items():
        torch.testing.assert_close(value, weights(tmp_path / "first")[name], rtol=0, atol=0)
    last = train_drafter(tmp_path / "last", grids, target, settings=SETTINGS, loop=replace(LOOP, steps=60))
    assert {f"top1_{depth}_{side}" for depth in (1, 2) for side in (16, 32)} <= set(last.validation)
    for side in (16, 32):
        assert last.validation[f"top1_1_{side}"] > first.validation[f"top1_1_{side}"] + 0.1


def test_drawings_are_half_of_each_batch_on_each_grid(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids, heard = {side: data(side) for side in (2, 4)}, list[tuple[int, int]]()
    drawings = {
        side: TokenSet(np.full((20, side**2), 7, np.int16), data(side).data.words[:20].copy()) for side in (2, 4)
    }
    real = Distillation.loss

    def told(self: Distillation, taught: Taught, random: np.random.Generator) -> Loss:
        drawn_mask = (taught.tokens == 7).all(dim=1)
        heard.append((int(drawn_mask.sum()), int((~drawn_mask).sum())))
        return real(self, taught, random)

    monkeypatch.setattr(Distillation, "loss", told)
    last = train_drafter(
        tmp_path / "run", grids, target, settings=SETTINGS, loop=replace(LOOP, steps=2), drawn=drawings
    )
    assert heard == [(8, 8), (2, 2)]
    assert {"drawn_top1_1_16", "drawn_top1_2_32", "top1_1_16"} <= last.validation.keys()
    told_of = load_whole(tmp_path / "run" / CHECKPOINT)["runs"][0]["how"]["drawn_scenes"]
    assert told_of == {"2": 14, "4": 14}
    with pytest.raises(ValueError, match=r"expected drawings on the grids \[2, 4\], got those of \[4\]"):
        train_drafter(tmp_path / "x", grids, target, settings=SETTINGS, loop=LOOP, drawn={4: drawings[4]})
    few = {side: TokenSet(scenes.codes[:5], scenes.words[:5]) for side, scenes in drawings.items()}
    with pytest.raises(ValueError, match="5 drawn scenes: expected more than the 6 kept for validation"):
        train_drafter(tmp_path / "x", grids, target, settings=SETTINGS, loop=LOOP, drawn=few)
    assert not (tmp_path / "x").exists()


def test_it_is_read_as_one_drafter_whose_grids_share_every_part(tmp_path: Path, target: Path) -> None:
    grids = {side: data(side) for side in (2, 4)}
    train_drafter(tmp_path / "run", grids, target, settings=SETTINGS, loop=LOOP)
    assert read(tmp_path / "run" / CHECKPOINT, "drafter")["config"]["grids"] == [2, 4]
    drafter = load_drafter(tmp_path / "run" / CHECKPOINT, load_target(target).decoder)
    assert drafter.config.grid_side == 4
    small = decoder_on_grid(drafter, 2)
    assert {id(part) for part in small.parameters()} == {id(part) for part in drafter.parameters()}
    alone = new_drafter(Decoder(replace(load_target(target).decoder.config, grid_side=2)))
    alone.load_state_dict(drafter.state_dict())
    inputs = (torch.randint(24, (2, 3)), torch.arange(3), torch.zeros(3, 3))
    empty, features = small.empty_cache(2), torch.randn(2, 3, drafter.config.dim)
    torch.testing.assert_close(
        small.step(*inputs, empty, empty, features=features).logits,
        alone.eval().step(*inputs, empty, empty, features=features).logits,
    )


def test_other_grids_than_the_target_s_are_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a target of the grids \[3\], got one of \[2, 4\]"):
        train_drafter(tmp_path / "x", {3: data(3)}, target, settings=SETTINGS, loop=LOOP)
    with pytest.raises(ValueError, match="drafter: expected 4 codes a scene on a grid of 2, got 16"):
        train_drafter(tmp_path / "x", {2: data(4)}, target, settings=SETTINGS, loop=LOOP)
    saved = load_whole(target)
    del saved["config"]["grids"]
    save_atomically(saved, tmp_path / "one.pt")
    with pytest.raises(ValueError, match="got one of one grid"):
        train_drafter(tmp_path / "x", {4: data(4)}, tmp_path / "one.pt", settings=SETTINGS, loop=LOOP)
    assert not (tmp_path / "x").exists()


def test_widths_must_agree() -> None:
    drafter, narrow = new_drafter(Decoder(TINY)), Decoder(replace(TINY, dim=16, head_dim=0))
    with pytest.raises(ValueError, match="32 wide, its target 16"):
        share_ends(drafter, narrow)


def test_a_drafter_shares_its_target_s_ends_and_is_told_from_it(tmp_path: Path, target: Path) -> None:
    train_drafter(tmp_path / "drafter", {4: data(4)}, target, settings=SETTINGS, loop=LOOP)
    decoder = load_target(target).decoder
    assert load_drafter(tmp_path / "drafter" / CHECKPOINT, decoder).head is decoder.head
    with pytest.raises(ValueError, match="wanted 'drafter'"):
        load_drafter(target, decoder)
