"""One drafter on several grids: on each of them what a drafter of that grid alone would learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.models.test_shared_target import data, run
from underpaint.models.checkpoints import load_drafter, load_target, load_whole, read
from underpaint.models.decoder import Decoder
from underpaint.models.text import new_drafter
from underpaint.models.train.drafter import Distillation, DrafterSettings, train_drafter
from underpaint.models.train.loop import CHECKPOINT, LoopSettings, Loss, save_atomically
from underpaint.models.train.shared_drafter import train_shared_drafter
from underpaint.models.train.shared_target import decoder_on_grid
from underpaint.models.train.tokens import TokenSet

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


def of_one_grid(path: Path, side: int, out: Path) -> Path:
    """The same target, in a checkpoint of one of its grids."""
    saved = load_whole(path)
    saved["config"]["decoder"]["grid_side"] = side
    save_atomically(saved, out)
    return out


def begun(target: Decoder, init_from: Path | None) -> tuple[Decoder, None]:
    """The same random weights, whatever was drawn before."""
    torch.manual_seed(7)
    return new_drafter(target), None


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_whole(folder / CHECKPOINT)["raw"]
    return found


@pytest.mark.parametrize("side", [2, 4])
def test_on_one_grid_it_is_the_drafter_of_that_grid(
    tmp_path: Path, target: Path, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, alone = data(side), of_one_grid(target, side, tmp_path / "one.pt")
    loop = replace(LOOP, steps=3)
    monkeypatch.setattr("underpaint.models.train.drafter.begun_drafter", begun)
    monkeypatch.setattr("underpaint.models.train.shared_drafter.begun_drafter", begun)
    one = train_drafter(tmp_path / "a", *held[:2], alone, 8 * side, settings=SETTINGS, loop=loop)
    shared = train_shared_drafter(tmp_path / "b", {side: held}, target, settings=SETTINGS, loop=loop)
    assert shared.validation == {f"{name}_{8 * side}": share for name, share in one.validation.items()}
    for name, value in weights(tmp_path / "a").items():
        torch.testing.assert_close(value, weights(tmp_path / "b")[name], rtol=0, atol=0)


def test_steps_take_the_grids_in_turn_and_both_are_learnt(tmp_path: Path, target: Path) -> None:
    grids = {side: data(side) for side in (2, 4)}
    first = train_shared_drafter(tmp_path / "first", grids, target, settings=SETTINGS, loop=LOOP)
    # The first step is on the smaller grid, of as many cells as four scenes of the larger have.
    small = train_shared_drafter(
        tmp_path / "small", {2: data(2)}, target, settings=replace(SETTINGS, batch=16), loop=LOOP
    )
    assert first.validation["top1_1_16"] == small.validation["top1_1_16"]
    for name, value in weights(tmp_path / "small").items():
        torch.testing.assert_close(value, weights(tmp_path / "first")[name], rtol=0, atol=0)
    last = train_shared_drafter(tmp_path / "last", grids, target, settings=SETTINGS, loop=replace(LOOP, steps=60))
    assert set(last.validation) == {f"top1_{depth}_{side}" for depth in (1, 2) for side in (16, 32)}
    for side in (16, 32):
        assert last.validation[f"top1_1_{side}"] > first.validation[f"top1_1_{side}"] + 0.1


def test_drawings_are_half_of_each_batch_on_each_grid(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grids, heard = {side: data(side) for side in (2, 4)}, list[tuple[int, int]]()
    drawn = {side: TokenSet(np.full((20, side**2), 7, np.int16), data(side).data.words[:20].copy()) for side in (2, 4)}
    real = Distillation.loss

    def told(self: Distillation, batch: tuple[torch.Tensor, torch.Tensor], random: np.random.Generator) -> Loss:
        own = (batch[0] == 7).all(dim=1)
        heard.append((int(own.sum()), int((~own).sum())))
        return real(self, batch, random)

    monkeypatch.setattr(Distillation, "loss", told)
    last = train_shared_drafter(
        tmp_path / "run", grids, target, settings=SETTINGS, loop=replace(LOOP, steps=2), drawn=drawn
    )
    assert heard == [(8, 8), (2, 2)]
    assert {"drawn_top1_1_16", "drawn_top1_2_32", "top1_1_16"} <= last.validation.keys()
    told_of = load_whole(tmp_path / "run" / CHECKPOINT)["runs"][0]["how"]["drawn_scenes"]
    assert told_of == {"2": 14, "4": 14}
    with pytest.raises(ValueError, match=r"expected drawings on the grids \[2, 4\], got those of \[4\]"):
        train_shared_drafter(tmp_path / "x", grids, target, settings=SETTINGS, loop=LOOP, drawn={4: drawn[4]})
    few = {side: TokenSet(held.codes[:5], held.words[:5]) for side, held in drawn.items()}
    with pytest.raises(ValueError, match="5 drawn scenes: expected more than the 6 kept for validation"):
        train_shared_drafter(tmp_path / "x", grids, target, settings=SETTINGS, loop=LOOP, drawn=few)
    assert not (tmp_path / "x").exists()


def test_it_is_read_as_one_drafter_whose_grids_share_every_part(tmp_path: Path, target: Path) -> None:
    grids = {side: data(side) for side in (2, 4)}
    train_shared_drafter(tmp_path / "run", grids, target, settings=SETTINGS, loop=LOOP)
    assert read(tmp_path / "run" / CHECKPOINT, "drafter")["config"]["grids"] == [2, 4]
    drafter = load_drafter(tmp_path / "run" / CHECKPOINT, load_target(target).decoder)
    assert drafter.config.grid_side == 4
    small = decoder_on_grid(drafter, 2)
    assert {id(part) for part in small.parameters()} == {id(part) for part in drafter.parameters()}
    alone = new_drafter(Decoder(replace(load_target(target).decoder.config, grid_side=2)))
    alone.load_state_dict(drafter.state_dict())
    held = (torch.randint(24, (2, 3)), torch.arange(3), torch.zeros(3, 3))
    empty, features = small.empty_cache(2), torch.randn(2, 3, drafter.config.dim)
    torch.testing.assert_close(
        small.step(*held, empty, empty, features=features).logits,
        alone.eval().step(*held, empty, empty, features=features).logits,
    )


def test_other_grids_than_the_target_s_are_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a target of the grids \[3\], got one of \[2, 4\]"):
        train_shared_drafter(tmp_path / "x", {3: data(3)}, target, settings=SETTINGS, loop=LOOP)
    with pytest.raises(ValueError, match="drafter: expected 4 codes a scene on a grid of 2, got 16"):
        train_shared_drafter(tmp_path / "x", {2: data(4)}, target, settings=SETTINGS, loop=LOOP)
    saved = load_whole(target)
    del saved["config"]["grids"]
    save_atomically(saved, tmp_path / "one.pt")
    with pytest.raises(ValueError, match="got one of one grid"):
        train_shared_drafter(tmp_path / "x", {4: data(4)}, tmp_path / "one.pt", settings=SETTINGS, loop=LOOP)
    assert not (tmp_path / "x").exists()
