"""The prompt grammar of EmojiScenes: what a caption may say, and the word ids a model is given.

One caption names one scene: "a large 3d hot pepper, left, on a graded sky background". Every slot but the
concept may be left out and then takes its default. The tables (concepts, colours, words, held-out pairs) are
data and stand in `emoji_scenes.json`, so that the runtime needs neither a tokenizer nor an imaging library.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.zoo.tables import read_tables

WORD_SLOTS: Final = 8
"""Length of a word-id row: style, up to three concept words, size, place, texture, colour."""
PAD_WORD: Final = 0
"""The id that fills a row from the left; a row of pads alone is the unconditional prompt."""

_SLOTS: Final = ("style", "size", "place", "texture", "colour")
_FILLERS: Final = frozenset({"a", "an", "the", "at", "in", "on", "of", "to", "and", "with", "background"})
_SPELLINGS: Final = {"center": "centre"}


class Concept(NamedTuple):
    """One thing that can be drawn: its name (1 to 3 words) and its Unicode code point in lower-case hex."""

    name: str
    code_point: str


_TABLES: Final = read_tables(
    "emoji_scenes.json",
    {
        **dict.fromkeys(("concepts", "styles", "sizes", "places", "textures", "words", "held_out"), list),
        **dict.fromkeys(("colours", "defaults"), dict),
    },
)
CONCEPTS: Final[tuple[Concept, ...]] = tuple(Concept(**entry) for entry in _TABLES["concepts"])
STYLES: Final[tuple[str, ...]] = tuple(_TABLES["styles"])
SIZES: Final[tuple[str, ...]] = tuple(_TABLES["sizes"])
PLACES: Final[tuple[str, ...]] = tuple(_TABLES["places"])
TEXTURES: Final[tuple[str, ...]] = tuple(_TABLES["textures"])
COLOUR_VALUES: Final[dict[str, tuple[int, int, int]]] = {
    name: (red, green, blue) for name, (red, green, blue) in _TABLES["colours"].items()
}
"""sRGB value, 0 to 255, of every background colour."""
COLOURS: Final[tuple[str, ...]] = tuple(COLOUR_VALUES)
DEFAULTS: Final[dict[str, str]] = dict(_TABLES["defaults"])
CONCEPT_NAMES: Final[tuple[str, ...]] = tuple(concept.name for concept in CONCEPTS)
SLOT_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "style": STYLES,
    "concept": CONCEPT_NAMES,
    "size": SIZES,
    "place": PLACES,
    "texture": TEXTURES,
    "colour": COLOURS,
}
"""Every slot of a prompt with its values, in the order of `word_ids`; a value's class id is its place here."""

_WORD_IDS: Final[dict[str, int]] = {word: number for number, word in enumerate(_TABLES["words"], start=1)}
WORDS: Final = len(_WORD_IDS) + 1
"""Size of the word vocabulary, the pad word (id 0) included: ids are 0 <= id < WORDS."""
PAIRS: Final[tuple[tuple[str, str], ...]] = tuple(itertools.product(CONCEPT_NAMES, STYLES))
_HELD_OUT: Final = frozenset((name, style) for name, style in _TABLES["held_out"])


@dataclass(frozen=True, slots=True)
class Prompt:
    """One scene in words. Every field is a value of `SLOT_VALUES`; anything else raises ValueError."""

    concept: str
    style: str = DEFAULTS["style"]
    size: str = DEFAULTS["size"]
    place: str = DEFAULTS["place"]
    texture: str = DEFAULTS["texture"]
    colour: str = DEFAULTS["colour"]

    def __post_init__(self) -> None:
        for slot, values in SLOT_VALUES.items():
            value = getattr(self, slot)
            if value not in values:
                raise ValueError(f"prompt {slot}: {value!r} is unknown{nearest(str(value), values)}")

    def caption(self) -> str:
        """Return the canonical caption, which `parse` reads back to an equal prompt."""
        texture = "" if self.texture == DEFAULTS["texture"] else f"{self.texture} "
        return f"a {self.size} {self.style} {self.concept}, {self.place}, on a {texture}{self.colour} background"

    def class_ids(self) -> dict[str, int]:
        """Return, per slot, the value's index in `SLOT_VALUES`: the labels of a classifier."""
        return {slot: values.index(getattr(self, slot)) for slot, values in SLOT_VALUES.items()}


def nearest(word: str, choices: tuple[str, ...]) -> str:
    """Return what to add to "unknown": the closest known words, or the first dozen."""
    close = difflib.get_close_matches(word, choices, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(repr(choice) for choice in close) + "?"
    return "; known: " + ", ".join(choices[:12]) + (", ..." if len(choices) > 12 else "")


_CONCEPTS_BY_WORDS: Final = {tuple(name.split()): name for name in CONCEPT_NAMES}
_LONGEST_CONCEPT: Final = max(len(words) for words in _CONCEPTS_BY_WORDS)
_SLOT_BY_WORD: Final = {value: slot for slot in _SLOTS for value in SLOT_VALUES[slot]}
_SUGGESTED: Final = CONCEPT_NAMES + tuple(_SLOT_BY_WORD)


def parse(text: str) -> Prompt:
    """Read a caption. Words may come in any order and case; punctuation marks are ignored.

    Raises ValueError naming what is wrong and what to write instead: an empty caption, unknown words (each
    with the nearest known ones), no concept, two concepts, or two values for one slot.
    """
    words = [_SPELLINGS.get(word, word) for word in re.findall(r"[^\s,.;:!]+", text.lower())]
    if not words:
        raise ValueError(f"the prompt is empty: expected a caption such as {Prompt(CONCEPT_NAMES[0]).caption()!r}")
    found: dict[str, str] = {}
    unknown: list[str] = []
    position = 0
    while position < len(words):
        slot, value, length = _read_one(words, position)
        position += length
        if slot == "filler":
            continue
        if slot == "unknown":
            unknown.append(value)
        elif slot in found:
            raise ValueError(f"the prompt names two values for {slot}: {found[slot]!r} and {value!r}; keep one")
        else:
            found[slot] = value
    if unknown:
        raise ValueError("; ".join(f"unknown word {word!r}{nearest(word, _SUGGESTED)}" for word in unknown))
    if "concept" not in found:
        raise ValueError(f"the prompt names no concept: add one of {', '.join(CONCEPT_NAMES[:12])}, ...")
    return Prompt(**found)


def _read_one(words: list[str], position: int) -> tuple[str, str, int]:
    """Return (slot, value, words read) at `position`; the longest concept name wins."""
    for length in range(_LONGEST_CONCEPT, 0, -1):
        name = _CONCEPTS_BY_WORDS.get(tuple(words[position : position + length]))
        if name is not None:
            return "concept", name, length
    word = words[position]
    if word in _SLOT_BY_WORD:
        return _SLOT_BY_WORD[word], word, 1
    return ("filler" if word in _FILLERS else "unknown"), word, 1


def word_ids(prompt: Prompt) -> NDArray[np.int64]:
    """Return the prompt as word ids, int64 [8]: style, concept words, size, place, texture, colour.

    Short rows are filled from the left with `PAD_WORD`, so the last four words always stand in one place.
    """
    words = [prompt.style, *prompt.concept.split(), prompt.size, prompt.place, prompt.texture, prompt.colour]
    row = np.full(WORD_SLOTS, PAD_WORD, dtype=np.int64)
    row[WORD_SLOTS - len(words) :] = [_WORD_IDS[word] for word in words]
    return row


def no_prompt() -> NDArray[np.int64]:
    """Return the unconditional row for guidance: int64 [8] of `PAD_WORD`."""
    return np.full(WORD_SLOTS, PAD_WORD, dtype=np.int64)


def held_out_pairs() -> tuple[tuple[str, str], ...]:
    """Return the (concept, style) pairs that no training scene shows; each concept is seen in the other style."""
    return tuple(pair for pair in PAIRS if pair in _HELD_OUT)


def seen_pairs() -> tuple[tuple[str, str], ...]:
    """Return the (concept, style) pairs of the training scenes."""
    return tuple(pair for pair in PAIRS if pair not in _HELD_OUT)


def all_prompts() -> Iterator[Prompt]:
    """Yield every prompt of the grammar once (concepts x styles x sizes x places x textures x colours)."""
    for (concept, style), size, place, texture, colour in itertools.product(PAIRS, SIZES, PLACES, TEXTURES, COLOURS):
        yield Prompt(concept, style, size, place, texture, colour)


def sample(rng: np.random.Generator, pairs: tuple[tuple[str, str], ...] = PAIRS) -> Prompt:
    """Draw a prompt uniformly over `pairs` and, independently, over every other slot."""
    concept, style = pairs[int(rng.integers(len(pairs)))]
    size, place, texture, colour = (
        values[int(rng.integers(len(values)))] for values in (SIZES, PLACES, TEXTURES, COLOURS)
    )
    return Prompt(concept, style, size, place, texture, colour)
