"""The prompt grammar of TexturedScenes: two or three things and their relation, on a textured ground under a sky.

One caption names one scene: "a woolly fox left of an outlined pumpkin, with a honeybee, on green foliage, bright sky,
lit from the left, soft background". The relations are "left of", "above" and "behind". "right of", "below" and "in
front of" describe the same scene with the things swapped, so that a picture has one canonical caption. The tables are
in `textured_scenes.json`.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from underpaint.zoo.load import SCENES, read_tables
from underpaint.zoo.resolutions import RESOLUTIONS

Rgb = tuple[int, int, int]


def _colours(table: Mapping[str, list[list[int]]]) -> dict[str, tuple[Rgb, ...]]:
    return {name: tuple((red, green, blue) for red, green, blue in stops) for name, stops in table.items()}


_TABLES: Final = read_tables(
    SCENES,
    {
        **dict.fromkeys(
            ("concepts", "companions", "finishes", "relations", "grounds", "lights", "depths", "held_out"), list
        ),
        **dict.fromkeys(("colours", "skies"), dict),
    },
)
THINGS: Final[tuple[str, ...]] = tuple(_TABLES["concepts"])
"""The values of the two main things of a scene."""
COMPANIONS: Final[tuple[str, ...]] = tuple(_TABLES["companions"])
"""The values of the small third thing."""
NO_COMPANION: Final = "nothing"
FINISHES: Final[tuple[str, ...]] = tuple(_TABLES["finishes"])
"""The surfaces of a thing: drawn in 3d, drawn flat with a white rim, of wool, of stone."""
RELATIONS: Final[tuple[str, ...]] = tuple(_TABLES["relations"])
GROUNDS: Final[tuple[str, ...]] = tuple(_TABLES["grounds"])
GROUND_COLOURS: Final = _colours(_TABLES["colours"])
"""Dark, middle and light sRGB stops of a ground's colour."""
SKY_COLOURS: Final = _colours(_TABLES["skies"])
"""sRGB of a sky at the top and at the horizon."""
TEXTURED_SLOTS: Final[dict[str, tuple[str, ...]]] = {
    "finish": FINISHES,
    "thing": THINGS,
    "relation": RELATIONS,
    "other_finish": FINISHES,
    "other": THINGS,
    "companion": (NO_COMPANION, *COMPANIONS),
    "ground": GROUNDS,
    "colour": tuple(GROUND_COLOURS),
    "sky": tuple(SKY_COLOURS),
    "light": tuple(_TABLES["lights"]),
    "depth": tuple(_TABLES["depths"]),
}
"""Every slot of a prompt with its values, in the order of `textured_word_ids`; value indices are judge classes."""
MAIN_SLOTS: Final = ("thing", "finish", "other", "other_finish")
"""The slots that a picture must all show to count as correct."""
MAIN_ACCURACY: Final = "things_and_finishes"
"""The name of the fraction of correct pictures."""
FINISHED_THINGS: Final[tuple[tuple[str, str], ...]] = tuple(itertools.product(THINGS, FINISHES))
_HELD_OUT: Final = frozenset((thing, finish) for thing, finish in _TABLES["held_out"])

_SLOT_VALUES: Final = [(slot, value) for slot, values in TEXTURED_SLOTS.items() for value in values]
_WORD_IDS: Final = {
    named: number for number, named in enumerate([*_SLOT_VALUES, *(("side", side) for side in RESOLUTIONS)], 1)
}
PAD_WORD: Final = 0
"""The word id of the unconditional prompt's row."""
TEXTURED_WORDS: Final = len(_WORD_IDS) + 1
"""Size of the word vocabulary, including the pad word. A value has a separate word in every slot, so word ids
distinguish the two things without their order."""
TEXTURED_WORD_SLOTS: Final = len(TEXTURED_SLOTS) + 1
"""Length of a row of word ids: one per slot, and one for the side of the picture."""

_COMPANION_ONE_IN: Final = 3
"""One scene in this many has a third thing."""
_MIRRORED: Final = {"right of": "left of", "below": "above", "in front of": "behind"}
TYPED_RELATIONS: Final = (*RELATIONS, *_MIRRORED)
"""The relations that can be typed; the last three swap the two things."""
TYPED_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "thing": THINGS,
    "finish": FINISHES,
    "relation": TYPED_RELATIONS,
    "companion": COMPANIONS,
    **{slot: TEXTURED_SLOTS[slot] for slot in ("ground", "colour", "sky", "light", "depth")},
}
"""The words that can be typed, by slot."""
EXAMPLE: Final = "a woolly fox left of an outlined pumpkin, with a honeybee, on green foliage, bright sky"
"""An example of a typed prompt."""
_FILLERS: Final = frozenset(
    {"a", "an", "the", "on", "under", "with", "and", "lit", "from", "light", "sky", "background"}
)


def nearest(word: str, choices: tuple[str, ...]) -> str:
    """Return a hint for an unknown word: the closest known words, or the first dozen."""
    close = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(choice) for choice in close) + "?"
    return "; known: " + ", ".join(choices[:12]) + (", ..." if len(choices) > 12 else "")


def _article(words: str) -> str:
    """Put "a" or "an" before words."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


@dataclass(frozen=True, slots=True)
class TexturedPrompt:
    """One scene in words; every field must be a value of `TEXTURED_SLOTS`, else ValueError is raised.

    The first thing is left of, above or behind the other. `light` is the direction of the light; a "soft" depth blurs
    distant parts.
    """

    thing: str
    other: str
    finish: str = "glossy"
    other_finish: str = "glossy"
    relation: str = "left of"
    companion: str = NO_COMPANION
    ground: str = "sand"
    colour: str = "ochre"
    sky: str = "bright"
    light: str = "left"
    depth: str = "sharp"

    def __post_init__(self) -> None:
        for slot, values in TEXTURED_SLOTS.items():
            value = getattr(self, slot)
            if value not in values:
                raise ValueError(f"prompt {slot}: {value!r} is unknown{nearest(str(value), values)}")

    def caption(self) -> str:
        """Return the canonical caption, which `parse_textured` reads back to an equal prompt."""
        companion = "" if self.companion == NO_COMPANION else f", with {_article(self.companion)}"
        return (
            f"{_article(self.finish)} {self.thing} {self.relation} {_article(self.other_finish)} {self.other}"
            f"{companion}, on {self.colour} {self.ground}, {self.sky} sky, lit from the {self.light}, "
            f"{self.depth} background"
        )

    def attributes(self) -> dict[str, str]:
        """Return the value of every slot."""
        return {slot: getattr(self, slot) for slot in TEXTURED_SLOTS}

    def class_ids(self) -> dict[str, int]:
        """Return, per slot, the value's index in `TEXTURED_SLOTS`: the labels of a classifier."""
        return {slot: TEXTURED_SLOTS[slot].index(value) for slot, value in self.attributes().items()}


_SLOT_OF: Final = (
    {
        value: slot
        for slot, values in TEXTURED_SLOTS.items()
        if slot not in ("other", "other_finish", "light") and slot != "companion"
        for value in values
    }
    | dict.fromkeys(COMPANIONS, "companion")
    | dict.fromkeys(TEXTURED_SLOTS["light"], "light")
    | dict.fromkeys(_MIRRORED, "relation")
)
_LONGEST: Final = max(len(value.split()) for value in _SLOT_OF)


def parse_textured(text: str) -> TexturedPrompt:
    """Parse a caption; slots that it does not name get their defaults, and punctuation is ignored.

    A finish applies to the next named thing. Raises ValueError with the problem and a remedy for unknown words, fewer
    or more than two things, or two values for one slot.
    """
    read = _read_words(re.findall(r"[^\s,.;:!]+", text.lower()))
    unknown = [value for value, slot in read if slot == "unknown"]
    # Check this first: a misspelt word may be the thing or the finish that seems to be missing.
    if unknown:
        words = tuple(_SLOT_OF)
        raise ValueError("; ".join(f"unknown word {word!r}{nearest(word, words)}" for word in unknown))
    slots: dict[str, str] = {}
    waiting: str | None = None
    for value, slot in read:
        if slot == "finish":
            if waiting is not None:
                raise ValueError(f"the prompt names two finishes for one thing: {waiting!r} and {value!r}; keep one")
            waiting = value
            continue
        if slot == "thing":
            slot = "other" if "thing" in slots else "thing"
            if waiting is not None:
                slots["other_finish" if slot == "other" else "finish"] = waiting
                waiting = None
        if slot in slots:
            named = "things" if slot == "other" else f"values for {slot}"
            raise ValueError(f"the prompt names too many {named}: {slots[slot]!r} and {value!r}; keep one")
        slots[slot] = value
    if waiting is not None:
        raise ValueError(f"the prompt names a finish, {waiting!r}, and no thing after it; name one")
    if "other" not in slots:
        example = TexturedPrompt(THINGS[0], THINGS[1]).caption()
        raise ValueError(f"expected a prompt that names two things, such as {example!r}; got {text!r}")
    return _canonical(slots)


def _canonical(slots: dict[str, str]) -> TexturedPrompt:
    relation = slots.pop("relation", "left of")
    prompt = TexturedPrompt(**slots, relation=_MIRRORED.get(relation, relation))
    if relation not in _MIRRORED:
        return prompt
    return replace(
        prompt,
        thing=prompt.other,
        finish=prompt.other_finish,
        other=prompt.thing,
        other_finish=prompt.finish,
    )


def _read_words(words: list[str]) -> list[tuple[str, str]]:
    """Return (value, slot) for every name in order; fillers are skipped, and unknown words get the slot "unknown"."""
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(words):
        value, slot, length = _read_one(words, position)
        position += length
        if slot != "filler":
            pairs.append((value, slot))
    return pairs


def _read_one(words: list[str], position: int) -> tuple[str, str, int]:
    """Return (value, slot, words read) at `position`; the longest name wins."""
    for length in range(_LONGEST, 0, -1):
        name = " ".join(words[position : position + length])
        if name in _SLOT_OF:
            return name, _SLOT_OF[name], length
    word = words[position]
    return word, "filler" if word in _FILLERS else "unknown", 1


def scene_word_ids(prompt: TexturedPrompt) -> NDArray[np.int64]:
    """Return the scene of a prompt as word ids, int64 [11]: one per slot, without the picture's side."""
    return np.array([_WORD_IDS[named] for named in prompt.attributes().items()], np.int64)


def side_word_id(side: int) -> int:
    """Return the id of the word for a picture's side in px, which ends a row of word ids."""
    if side not in RESOLUTIONS:
        raise ValueError(f"side: expected one of {', '.join(map(str, RESOLUTIONS))} px, got {side}")
    return _WORD_IDS["side", side]


def textured_word_ids(prompt: TexturedPrompt, side: int) -> NDArray[np.int64]:
    """Return the word ids of a prompt for a picture of `side` px, int64 [12]: one per slot, then the side."""
    return np.append(scene_word_ids(prompt), side_word_id(side))


def held_out_things() -> tuple[tuple[str, str], ...]:
    """Return the (thing, finish) pairs that no training scene shows; each thing occurs with other finishes."""
    return tuple(pair for pair in FINISHED_THINGS if pair in _HELD_OUT)


def seen_things() -> tuple[tuple[str, str], ...]:
    """Return the (thing, finish) pairs of the training scenes."""
    return tuple(pair for pair in FINISHED_THINGS if pair not in _HELD_OUT)


def draw_textured(
    below: Callable[[int], int],
    pairs: Sequence[tuple[str, str]] = seen_things(),
    others: Sequence[tuple[str, str]] = seen_things(),
) -> TexturedPrompt:
    """Draw a random prompt: the first thing from `pairs`, a different second one from `others`, other slots uniformly.

    Args:
        below: Returns a uniform integer from 0 to its argument - 1.
        pairs: Things with finishes, to choose the first from.
        others: Things with finishes, to choose the second from.
    """

    def chosen(values: Sequence[str]) -> str:
        return values[below(len(values))]

    thing, finish = pairs[below(len(pairs))]
    other, other_finish = others[below(len(others))]
    while other == thing:
        other, other_finish = others[below(len(others))]
    names = ("relation", "ground", "colour", "sky", "light", "depth")
    rest = {slot: chosen(TEXTURED_SLOTS[slot]) for slot in names}
    companion = chosen(COMPANIONS) if below(_COMPANION_ONE_IN) == 0 else NO_COMPANION
    return TexturedPrompt(thing, other, finish, other_finish, companion=companion, **rest)


def sample_textured(rng: np.random.Generator) -> TexturedPrompt:
    """Draw a random prompt with the training pairs."""
    return draw_textured(lambda count: int(rng.integers(count)))
