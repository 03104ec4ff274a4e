"""One target on several grids: the same weights, each grid as if it were the only one."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.models.tiny import CAPTION_DIM, TINY, tiny_tokens
from underpaint.models.checkpoints import load_target, load_whole, target_of
from underpaint.models.text import CaptionedTarget
from underpaint.training import target as recipes
from underpaint.training.grids import GridData, batch_at, on_grid
from underpaint.training.loop import LoopSettings, save_atomically
from underpaint.training.precision import autocast
from underpaint.training.target import CONFIG, TargetSettings, expand_depth, train_target
from underpaint.training.tokens import TokenSet
from underpaint.zoo.textured_prompts import TEXTURED_WORDS as WORDS

LARGE = replace(TINY, grid_side=4)
SETTINGS = TargetSettings(batch=4, validated=6)
LOOP = LoopSettings(steps=30, learning_rate=2e-2, warmup_steps=2, ema_decay=0.5, validate_every=1000)


def data(side: int) -> GridData:
    codes, words = tiny_tokens()
    grid_codes = codes[:, : side**2]
    return GridData(TokenSet(grid_codes[6:], words[6:]), TokenSet(grid_codes[:6], words[:6]))


def run(out: Path, steps: int = 30, seed: int = 0, settings: TargetSettings = SETTINGS) -> dict[str, float]:
    grids = {side: data(side) for side in (2, 4)}
    named = {"config": LARGE, "caption_dim": CAPTION_DIM, "words": WORDS, "settings": settings, "seed": seed}
    return train_target(out, grids, loop=replace(LOOP, steps=steps), **named).validation  # type: ignore[arg-type]


def test_the_shipped_sizes_exceed_a_cache() -> None:
    size = sum(part.numel() for part in CaptionedTarget(CONFIG, 128, WORDS).decoder.parameters())
    assert 20e6 < size < 30e6
    assert 4 * size >= 3 * 32 * 2**20


def test_parts_are_shared_and_positions_are_the_grids_own() -> None:
    torch.manual_seed(0)
    large = CaptionedTarget(LARGE, CAPTION_DIM, WORDS)
    small = on_grid(large, 2)
    alone = CaptionedTarget(replace(LARGE, grid_side=2), CAPTION_DIM, WORDS)
    torch.nn.init.normal_(large.decoder.head.weight)
    alone.load_state_dict(large.state_dict())
    assert {id(part) for part in small.parameters()} == {id(part) for part in large.parameters()}
    codes, words = torch.randint(24, (3, 4)), torch.randint(1, 9, (3, 8))
    torch.testing.assert_close(small(codes, words)[0], alone(codes, words)[0])
    apart = (large(codes, words)[0] - small(codes, words)[0]).abs().amax(dim=(0, 2))
    assert apart[:3].max() < 1e-5, "the first row of both grids lies alike up to its third cell's token"
    assert apart[3] > 1e-4


def test_both_grids_are_learnt_by_one_network(tmp_path: Path) -> None:
    first = run(tmp_path / "short", steps=1)
    last = run(tmp_path / "long")
    assert set(last) == {"validation_ce_16", "validation_ce_32"}
    assert all(last[name] < 0.8 * first[name] for name in last)


def test_a_target_of_one_grid_learns_and_loads(tmp_path: Path) -> None:
    named = {"config": LARGE, "caption_dim": CAPTION_DIM, "words": WORDS, "settings": replace(SETTINGS, batch=16)}
    loop = LoopSettings(steps=60, learning_rate=5e-3, warmup_steps=5, validate_every=30)
    outcome = train_target(tmp_path, {4: data(4)}, loop=loop, **named)  # type: ignore[arg-type]
    assert outcome.validation["validation_ce_32"] < 1.5 < np.log(LARGE.vocab_size)
    scenes = data(4).data
    codes = torch.from_numpy(scenes.codes.astype("int64"))
    logits, _ = load_target(tmp_path / "checkpoint.pt")(codes, torch.from_numpy(scenes.words))
    assert float(functional.cross_entropy(logits.detach().flatten(0, 1), codes.flatten())) < 1.6


def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changed: object) -> SimpleNamespace:
    """What `train_target` gives the loop: model, loss, at_share."""
    arguments = SimpleNamespace()

    def heard(model: CaptionedTarget, loss: object, *rest: object, at_share: object, **others: object) -> None:
        arguments.model, arguments.loss, arguments.at_share = model, loss, at_share
        torch.manual_seed(3)
        torch.nn.init.normal_(model.decoder.head.weight)

    monkeypatch.setattr(recipes, "train", heard)
    grids = {side: data(side)._replace(things=THINGS[:, : side**2]) for side in (2, 4)}
    named = {"config": LARGE, "caption_dim": CAPTION_DIM, "words": WORDS, "settings": SETTINGS, "loop": LOOP}
    train_target(tmp_path, grids, **(named | changed))  # type: ignore[arg-type]
    return arguments


THINGS = np.random.default_rng(4).random((len(tiny_tokens()[0]) - 6, 16)) < 0.4


def test_a_thing_weighs_what_the_share_of_the_peak_rates_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {weight: recipe(tmp_path / str(weight), monkeypatch, thing_weight=weight) for weight in (1.0, 2.0, 3.0)}
    losses = {}
    for weight, one in seen.items():
        for share in (0.0, 0.5, 1.0):
            one.at_share(share)
            losses[weight, share] = [float(one.loss(step).value.detach()) for step in (0, 1)]
    assert losses[1.0, 1.0] == losses[1.0, 0.0] == losses[2.0, 0.0] == losses[3.0, 0.0]
    assert losses[3.0, 0.5] == losses[2.0, 1.0]
    assert losses[2.0, 1.0] != losses[1.0, 1.0]
    for side, (plain, whole) in zip((2, 4), zip(losses[1.0, 1.0], losses[3.0, 1.0], strict=True), strict=True):
        random = np.random.default_rng([0, (2, 4).index(side)])
        rows = random.integers(len(THINGS), size=SETTINGS.batch * 16 // side**2)
        thing_mask = THINGS[rows, : side**2]
        codes, words = batch_at(data(side).data, rows, SETTINGS.condition_dropout, random)
        view = seen[3.0].model if side == 4 else on_grid(seen[3.0].model, side)
        with autocast("cpu"):
            logits, _ = view(codes, words)
        each = functional.cross_entropy(logits.transpose(1, 2), codes, reduction="none").detach().numpy()
        assert plain == pytest.approx(each.mean(), abs=1e-4)
        assert whole == pytest.approx(np.average(each, weights=np.where(thing_mask, 3, 1)), abs=1e-4)


def test_steps_of_every_grid_are_compiled_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions = list[object]()

    def heard(function: Callable[..., object], dynamic: bool) -> Callable[..., object]:
        assert not dynamic, "each grid has shapes of its own"
        functions.append(function)
        return function

    monkeypatch.setattr(torch, "compile", heard)
    plain = recipe(tmp_path / "plain", monkeypatch)
    assert functions == []
    compiled = recipe(tmp_path / "compiled", monkeypatch, compiled=True)
    assert len(functions) == 2
    for step in (0, 1):
        assert torch.equal(plain.loss(step).value, compiled.loss(step).value)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_more_layers_are_the_same_function_and_learn(layers: int) -> None:
    torch.manual_seed(1)
    shallow = CaptionedTarget(replace(LARGE, layers=min(2, layers)), CAPTION_DIM, WORDS)
    for part in shallow.parameters():
        torch.nn.init.normal_(part, std=0.3)
    deep = expand_depth(shallow, layers)
    assert len(deep.decoder.layers) == layers
    codes, words = torch.randint(24, (3, 16)), torch.randint(1, 9, (3, 8))
    expected, actual = shallow(codes, words)[0], deep(codes, words)[0]
    assert expected.std() > 0.1
    torch.testing.assert_close(actual, expected)
    actual.square().sum().backward()
    for layer in deep.decoder.layers:
        assert layer.out.weight.grad.abs().max() > 0
        assert layer.down.weight.grad.abs().max() > 0
    with pytest.raises(ValueError, match="expected at least the"):
        expand_depth(deep, layers - 1)


def test_a_deeper_target_goes_on_from_a_shallow_one(tmp_path: Path) -> None:
    run(tmp_path / "shallow")
    grids = {side: data(side) for side in (2, 4)}
    named = {"caption_dim": CAPTION_DIM, "words": WORDS, "settings": SETTINGS, "loop": replace(LOOP, steps=1)}
    named["init_from"] = tmp_path / "shallow" / "checkpoint.pt"
    shallow = load_whole(named["init_from"])
    deep = train_target(tmp_path / "deep", grids, config=replace(LARGE, layers=LARGE.layers + 1), **named)
    for name, value in shallow["validation"].items():
        assert deep.validation[name] < value + 0.2, "a step behind what the shallow one knew"
    with pytest.raises(ValueError, match="but for its layers"):
        train_target(tmp_path / "other", grids, config=replace(LARGE, dim=LARGE.dim * 2), **named)


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    run(tmp_path, steps=1)
    with pytest.raises(ValueError, match=r"was trained with seed 0, now wanted 1\."):
        run(tmp_path, steps=2, seed=1)
    with pytest.raises(ValueError, match="Give the same to continue it"):
        run(tmp_path, steps=2, settings=replace(SETTINGS, batch=5))


def test_a_run_that_names_a_setting_which_the_recipe_lacks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    run(tmp_path, steps=1)
    saved = load_whole(path)
    saved["runs"][-1]["how"]["settings"]["scenes"] = 20000
    save_atomically(saved, path)
    with pytest.raises(ValueError, match=r"was trained with settings\.scenes 20000, now wanted 'not set'"):
        run(tmp_path, steps=2)
    assert load_whole(path)["step"] == 1
    del saved["runs"][-1]["how"]["settings"]["scenes"]
    save_atomically(saved, path)
    run(tmp_path, steps=2)
    assert load_whole(path)["step"] == 2


def test_cells_of_things_weigh_more(tmp_path: Path) -> None:
    """Things on a grid of 4 weigh all of the loss, nearly: their cells are learnt, the others are not."""
    grid = data(4)
    thing_mask = np.random.default_rng(0).random(16) < 0.5
    things = np.broadcast_to(thing_mask, grid.data.codes.shape)
    named = {"config": LARGE, "caption_dim": CAPTION_DIM, "words": WORDS, "settings": SETTINGS, "loop": LOOP}

    def each_cell(out: str, weight: float, things: np.ndarray | None) -> np.ndarray:
        train_target(tmp_path / out, {4: grid._replace(things=things)}, thing_weight=weight, **named)
        target = target_of(load_whole(tmp_path / out / "checkpoint.pt")).eval()
        codes, words = (torch.from_numpy(part.astype(np.int64)) for part in grid.data)
        with torch.no_grad():
            logits, _ = target(codes, words)
        return torch.nn.functional.cross_entropy(logits.transpose(1, 2), codes, reduction="none").mean(0).numpy()

    even, weighted = each_cell("even", 1.0, things), each_cell("weighted", 1e6, things)
    np.testing.assert_array_equal(even, each_cell("none", 5.0, None))
    np.testing.assert_allclose(even, each_cell("all", 4.0, np.ones_like(things)), atol=0.02)
    assert weighted[thing_mask].mean() < 0.9 * weighted[~thing_mask].mean()
    assert weighted[~thing_mask].mean() > 1.5 * even[~thing_mask].mean()


def test_codes_must_fill_their_grid(tmp_path: Path) -> None:
    wrong = {2: data(4), 4: data(4)}
    with pytest.raises(ValueError, match="expected 4 codes a scene on a grid of 2, got 16"):
        train_target(tmp_path, wrong, config=LARGE)
    with pytest.raises(ValueError, match=r"grid of 4 to be the largest of \[2\]"):
        train_target(tmp_path, {2: data(2)}, config=LARGE)
    assert np.array_equal(data(2).data.codes[0], data(4).data.codes[0, :4])
