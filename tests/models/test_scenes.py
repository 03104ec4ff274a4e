"""Scenes: repeatable one by one, the same at all sizes, and kept apart between learning and measuring."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from underpaint.models.data.art import SPRITE_SIDE, Sprites
from underpaint.models.data.batches import batch, scenes
from underpaint.models.data.scenes import SPLITS, Scene, Split, SpriteSheet, background, render, scene
from underpaint.zoo.prompts import (
    CONCEPTS,
    SLOT_VALUES,
    STYLES,
    Prompt,
    all_prompts,
    held_out_pairs,
    seen_pairs,
    word_ids,
)


def made_up_sprites(side: int = SPRITE_SIDE) -> Sprites:
    """A soft-edged disc per concept and style, its colour and a stripe telling which."""
    grid = (np.arange(side) + 0.5) / side * 2 - 1
    radius = np.hypot(grid[None, :], grid[:, None])
    alpha = np.clip((0.98 - radius) * side / 4, 0, 1)
    sprites = np.zeros((len(CONCEPTS), len(STYLES), side, side, 4), dtype=np.uint8)
    for concept in range(len(CONCEPTS)):
        for style in range(len(STYLES)):
            colour = np.array([2 * concept + 10, 250 - 2 * concept, 90 + 100 * style])
            shade = 1 - 0.4 * (np.sin(grid * (1 + concept % 5)) > 0)[:, None]
            sprites[concept, style, ..., :3] = alpha[..., None] * shade[..., None] * colour
            sprites[concept, style, ..., 3] = 255 * alpha
    return sprites


@pytest.fixture(scope="module")
def sheet() -> SpriteSheet:
    return SpriteSheet(made_up_sprites())


@pytest.mark.parametrize("split", SPLITS)
def test_a_scene_is_made_alone(split: Split) -> None:
    together = scenes(3, 0, 20, split)
    assert [scene(3, index, split) for index in reversed(range(20))] == together[::-1]
    assert together != scenes(4, 0, 20, split)


def test_splits_show_their_pairs() -> None:
    def pairs(split: Split) -> set[tuple[str, str]]:
        return {(shown.prompt.concept, shown.prompt.style) for shown in scenes(0, 0, 4000, split)}

    assert pairs("train") == pairs("seen") == set(seen_pairs())
    assert pairs("held_out") == set(held_out_pairs())
    assert pairs("every") == set(seen_pairs()) | set(held_out_pairs())


def test_measuring_scenes_are_never_learnt_from() -> None:
    learnt = {shown for split in ("train", "every") for seed in (0, 1) for shown in scenes(seed, 0, 6000, split)}
    measured = {shown for split in ("seen", "held_out") for shown in scenes(0, 0, 3000, split)}
    assert not learnt & measured


@pytest.mark.parametrize("split", SPLITS)
def test_every_setting_is_drawn_evenly(split: Split) -> None:
    many = scenes(9, 0, 4000, split)
    for field, choices in (("size", 2), ("place", 5), ("texture", 3), ("colour", 8)):
        counts = Counter(getattr(shown.prompt, field) for shown in many)
        expected = len(many) / choices
        # Six standard deviations of a binomial count.
        assert max(abs(count - expected) for count in counts.values()) < 6 * np.sqrt(expected), field
        assert len(counts) == choices
    for field in ("jitter_x", "jitter_y", "tone"):
        assert {getattr(shown, field) for shown in many} == {-1, 0, 1}


def test_wrong_arguments_are_refused(sheet: SpriteSheet) -> None:
    with pytest.raises(ValueError, match="split: expected one of"):
        scene(0, 0, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="index >= 0"):
        scene(0, -1, "train")
    with pytest.raises(ValueError, match="seed"):
        scene(-1, 0, "train")
    with pytest.raises(ValueError, match="expected one of 64, 128, 256, got 96"):
        render(scene(0, 0, "train"), sheet, 96)
    with pytest.raises(ValueError, match=r"expected uint8 \[112, 2, side, side, 4\]"):
        SpriteSheet(np.zeros((3, 2, 8, 8, 4), dtype=np.uint8))


@pytest.mark.parametrize(("less", "more"), [(64, 128), (128, 256), (64, 256)])
def test_all_sizes_show_the_same_picture(sheet: SpriteSheet, less: int, more: int) -> None:
    for shown in scenes(1, 0, 60, "train"):
        small = render(shown, sheet, less).astype(np.float64)
        large = render(shown, sheet, more).astype(np.float64)
        averaged = large.reshape(less, more // less, less, more // less, 3).mean(axis=(1, 3))
        assert np.abs(averaged - small).mean() < 1.5, shown
        assert np.abs(averaged - small).max() < 90, shown


@pytest.mark.parametrize("size", [64, 128, 256])
def test_sprites_stay_inside_and_stand_where_the_caption_says(sheet: SpriteSheet, size: int) -> None:
    unit = size // 64
    for prompt in all_prompts():
        if (prompt.concept, prompt.style, prompt.texture, prompt.colour) != ("lemon", "3d", "plain", "night"):
            continue
        for jitter in (-1, 0, 1):
            shown = Scene(prompt, jitter, -jitter, 0)
            drawn = render(shown, sheet, size) != background("plain", "night", 0, size)
            rows, columns = np.nonzero(drawn.any(axis=2))
            side = {"large": 48, "small": 34}[prompt.size] * unit
            assert side - 3 * unit <= rows.max() - rows.min() + 1 <= side
            centre = np.array([columns.min() + columns.max() + 1, rows.min() + rows.max() + 1]) / 2 / size - 0.5
            wanted = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1), "centre": (0, 0)}
            reach = {"large": 7, "small": 14}[prompt.size] / 64
            away = centre - reach * np.array(wanted[prompt.place]) - np.array([jitter, -jitter]) / 64
            assert np.abs(away).max() < 1 / 64


def test_backgrounds_differ_by_texture_colour_and_tone() -> None:
    found = {
        background(texture, colour, tone, 64).tobytes()
        for texture in ("plain", "graded", "speckled")
        for colour in ("sky", "rose", "mint", "sand", "violet", "night", "teal", "slate")
        for tone in (-1, 0, 1)
    }
    assert len(found) == 3 * 8 * 3


def test_speckles_repeat_and_differ_between_colours() -> None:
    speckled = background("speckled", "mint", 0, 64)
    assert (speckled[:-8] == speckled[8:]).all()
    assert (speckled[:, :-8] == speckled[:, 8:]).all()
    layouts = {
        (background("speckled", colour, 0, 128) != background("plain", colour, 0, 128)).any(axis=2).tobytes()
        for colour in ("sky", "rose", "mint", "sand", "violet", "night", "teal", "slate")
    }
    assert len(layouts) == 8


def test_backgrounds_cannot_be_painted_over(sheet: SpriteSheet) -> None:
    shown = scene(0, 0, "train")
    first = render(shown, sheet, 64)
    first[:] = 0
    assert render(shown, sheet, 64).any()
    with pytest.raises(ValueError, match="read-only"):
        background("plain", "sky", 0, 64)[0, 0] = 0


def test_a_batch_holds_pictures_words_and_labels(sheet: SpriteSheet) -> None:
    shown = scenes(2, 5, 4, "train")
    made = batch(shown, sheet, 128)
    assert made.pictures.shape == (4, 128, 128, 3)
    for row, one in enumerate(shown):
        assert (made.pictures[row] == render(one, sheet, 128)).all()
        assert (made.words[row] == word_ids(one.prompt)).all()
        assert dict(zip(SLOT_VALUES, made.labels[row].tolist(), strict=True)) == one.prompt.class_ids()


def test_the_caption_changes_the_picture(sheet: SpriteSheet) -> None:
    base = Scene(Prompt("lemon"), 0, 0, 0)
    changes = {"concept": "crab", "style": "flat", "size": "small", "place": "top", "texture": "graded"}
    for field, value in (changes | {"colour": "rose"}).items():
        changed = replace(base, prompt=replace(base.prompt, **{field: value}))
        assert (render(changed, sheet, 64) != render(base, sheet, 64)).any(), field
