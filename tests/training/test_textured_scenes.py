"""TexturedScenes: repeatable one by one, the same at all sizes, legible by region, and kept apart for measuring."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.training.sprites import made_up_sprites
from underpaint.training.data.batches import numbered_batch
from underpaint.training.data.sprites import SpriteSheet
from underpaint.training.data.textured_render import REGIONS, TexturedSheet, regions, render_textured
from underpaint.training.data.textured_scenes import SPLITS, Split, TexturedScene, textured_scene, thing_cells
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS, held_out_things, seen_things, textured_word_ids


@pytest.fixture(scope="module")
def sheet() -> TexturedSheet:
    return TexturedSheet(made_up_sprites())


def many(split: Split, count: int = 1500, seed: int = 0) -> list[TexturedScene]:
    return [textured_scene(seed, index, split) for index in range(count)]


@pytest.mark.parametrize("split", SPLITS)
def test_a_scene_is_made_alone(split: Split) -> None:
    together = [textured_scene(3, index, split) for index in range(20)]
    assert [textured_scene(3, index, split) for index in reversed(range(20))] == together[::-1]
    assert together != [textured_scene(4, index, split) for index in range(20)]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="split: expected one of"):
        textured_scene(0, 0, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="index >= 0"):
        textured_scene(0, -1, "train")
    with pytest.raises(ValueError, match="seed"):
        textured_scene(-1, 0, "train")
    with pytest.raises(ValueError, match=r"expected uint8 \[36, 2, side, side, 4\]"):
        SpriteSheet(np.zeros((3, 2, 8, 8, 4), dtype=np.uint8))


def test_a_batch_holds_pictures_words_and_labels(sheet: TexturedSheet) -> None:
    batch = numbered_batch(sheet, 2, 5, 4, "train", 128)
    assert batch.pictures.shape == (4, 128, 128, 3)
    for row in range(4):
        one = textured_scene(2, 5 + row, "train")
        assert (batch.pictures[row] == render_textured(one, sheet, 128)).all()
        assert (batch.words[row] == textured_word_ids(one.prompt, 128)).all()
        assert dict(zip(TEXTURED_SLOTS, batch.labels[row].tolist(), strict=True)) == one.prompt.class_ids()


def test_splits_show_their_things_and_never_meet() -> None:
    for split, first in (("train", seen_things()), ("seen", seen_things()), ("held_out", held_out_things())):
        scenes = many(split, 2500)
        assert {(one.prompt.thing, one.prompt.finish) for one in scenes} == set(first)
        assert {(one.prompt.other, one.prompt.other_finish) for one in scenes} <= set(seen_things())
        assert all(one.prompt.thing != one.prompt.other for one in scenes)
    assert not set(many("train", 800)) & set(many("seen", 800))


def test_attributes_are_drawn_evenly() -> None:
    scenes = many("every", 4000, seed=9)
    for slot in ("relation", "ground", "colour", "sky", "light", "depth", "finish", "other_finish"):
        counts = Counter(getattr(one.prompt, slot) for one in scenes)
        expected = len(scenes) / len(TEXTURED_SLOTS[slot])
        # Six standard deviations of a binomial count.
        assert max(abs(count - expected) for count in counts.values()) < 6 * np.sqrt(expected), slot
    alone = sum(one.prompt.companion == "nothing" for one in scenes)
    assert abs(alone - 2 / 3 * len(scenes)) < 6 * np.sqrt(len(scenes) * 2 / 9)


def test_positions_say_the_relation() -> None:
    for one in many("every", 400):
        across = one.second.left + one.second.side / 2 - one.first.left - one.first.side / 2
        down = one.second.top + one.second.side / 2 - one.first.top - one.first.side / 2
        apart = max(abs(across), abs(down)) >= (one.first.side + one.second.side) / 2 - 1
        assert max(across, down) > 0
        assert one.prompt.relation == (("left of" if across > down else "above") if apart else "behind")


def test_a_picture_is_the_same_at_all_sizes(sheet: TexturedSheet) -> None:
    for one in many("train", 8):
        fine = render_textured(one, sheet, 256).astype(float)
        for size in (128, 64):
            factor = 256 // size
            mean = fine.reshape(size, factor, size, factor, 3).mean(axis=(1, 3))
            error = np.square(mean - render_textured(one, sheet, size)).mean()
            assert 10 * np.log10(255**2 / error) > 29, (one.prompt.caption(), size)


@pytest.mark.parametrize(("far", "white"), [(0, 0.95), (1, 0.85), (2, 0.75)])
def test_what_is_outlined_has_a_white_rim_that_its_square_holds(sheet: TexturedSheet, far: int, white: float) -> None:
    for thing in ("fox", "castle"):
        paint, cover = sheet.sprite(thing, "outlined", 96, far)
        assert np.mean((cover[..., 0] > 0.8) & (paint.min(axis=2) > white)) > 0.02
        assert cover[[0, -1]].max() < 0.2
        inside, _ = sheet.sprite(thing, "glossy", 96, far)
        assert np.mean(inside.min(axis=2) > white) < 0.01


def test_wool_is_undyed_and_stone_is_grey(sheet: TexturedSheet) -> None:
    def warmth(thing: str, finish: str) -> float:
        """By how much what is covered is redder than blue."""
        paint, cover = sheet.sprite(thing, finish, 64, 0)
        red, _, blue = paint[cover[..., 0] > 0.9].mean(axis=0)
        return float(red - blue)

    for thing in ("fox", "castle"):
        glossy = warmth(thing, "glossy")
        assert warmth(thing, "woolly") > glossy / 4 + 0.1
        assert abs(warmth(thing, "stone") - glossy / 4) < 0.1


def test_pictures_are_repeatable(sheet: TexturedSheet) -> None:
    one = textured_scene(5, 7, "seen")
    first = render_textured(one, sheet, 128)
    render_textured(textured_scene(5, 8, "seen"), sheet, 128)
    np.testing.assert_array_equal(render_textured(one, TexturedSheet(made_up_sprites()), 128), first)
    assert first.dtype == np.uint8
    assert first.shape == (128, 128, 3)
    with pytest.raises(ValueError, match="one of 64, 128, 256"):
        render_textured(one, sheet, 96)


def test_difficulty_differs_by_region(sheet: TexturedSheet) -> None:
    """The sky is calm and the ground is busy, by the spread of brightness within squares of 8 px, a code's size."""
    spread: dict[str, list[float]] = {name: [] for name in REGIONS}
    for one in many("train", 30):
        bright = render_textured(one, sheet, 128).astype(float).mean(axis=2).reshape(16, 8, 16, 8)
        whose = regions(one, sheet, 128).reshape(16, 8, 16, 8)
        for number, name in enumerate(REGIONS):
            inside = (whose == number).all(axis=(1, 3))
            spread[name] += bright.std(axis=(1, 3))[inside].tolist()
    calm, busy, thing = (float(np.median(spread[name])) for name in REGIONS)
    assert min(len(values) for values in spread.values()) > 500
    assert busy > 5 * calm
    assert thing > 2 * calm


def test_regions_cover_each_thing(sheet: TexturedSheet) -> None:
    for one in many("train", 6):
        whose = regions(one, sheet, 64)
        assert set(np.unique(whose)) == {0, 1, 2}
        for at in (one.first, one.second):
            assert whose[min(63, at.top + at.side // 2), at.left + at.side // 2] == 2


def test_cells_of_things_are_where_things_are(sheet: TexturedSheet) -> None:
    for one in many("train", 60):
        for side in (8, 16):
            cells, pixel = thing_cells(one, side), regions(one, sheet, 64).reshape(side, 64 // side, side, 64 // side)
            assert cells[(pixel == 2).all(axis=(1, 3))].all(), "a cell that is all thing"
            empty = np.ones((64, 64), np.bool_)
            for left, top, width in (one.first, one.second, one.companion):
                empty[max(0, top) : top + width, max(0, left) : left + width] = False
            assert not cells[empty.reshape(side, 64 // side, side, 64 // side).all(axis=(1, 3))].any()
    alone = next(one for one in many("train") if one.prompt.companion == "nothing")
    beside = replace(alone, prompt=replace(alone.prompt, companion="snail"))
    assert thing_cells(beside, 16).sum() > thing_cells(alone, 16).sum()


def test_every_attribute_changes_the_picture(sheet: TexturedSheet) -> None:
    one = textured_scene(0, 3, "train")
    before = render_textured(one, sheet, 64).astype(int)
    for slot, values in TEXTURED_SLOTS.items():
        if slot == "relation":
            continue
        used_values = {getattr(one.prompt, slot), one.prompt.thing, one.prompt.other}
        other = next(value for value in values if value not in used_values)
        after = render_textured(replace(one, prompt=replace(one.prompt, **{slot: other})), sheet, 64)
        assert np.abs(after - before).max() > 20, slot
