"""The prompt grammar that models of this project are asked in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_families import PROMPT_GRAMMAR, TEXTURED_FAMILY
from underpaint.artifacts.model_index import ModelIndex
from underpaint.artifacts.strict_json import read_json
from underpaint.zoo import textured_prompts as textured


class GrammarPrompt(NamedTuple):
    """A prompt of the grammar.

    caption: in canonical words. ids: of its words, without what a model adds by itself, such as the pictures' side.
    attributes: the value of every slot.
    """

    caption: str
    ids: tuple[int, ...]
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Grammar:
    """What prompts of a family of models may say.

    family: as a folder's index names it. tables: the file of its words. slots: every slot with its values, whose places
    are the classes of a judge. main: the slots that a picture must show all of to count as right, which is called
    `accuracy`. subject: the slot of what is drawn. words: what can be typed,
    by what it says. read: takes typed words; ValueError names an unknown one and the nearest known one. sample: a
    prompt of the training pairs.
    """

    family: str
    tables: str
    slots: Mapping[str, tuple[str, ...]]
    main: tuple[str, ...]
    accuracy: str
    subject: str
    words: Mapping[str, tuple[str, ...]]
    example: str
    read: Callable[[str], GrammarPrompt]
    sample: Callable[[np.random.Generator], GrammarPrompt]


def textured_prompt(prompt: textured.TexturedPrompt) -> GrammarPrompt:
    """A prompt of TexturedScenes, for pictures of any side."""
    ids = tuple(int(word) for word in textured.scene_word_ids(prompt))
    return GrammarPrompt(prompt.caption(), ids, {slot: getattr(prompt, slot) for slot in textured.TEXTURED_SLOTS})


def _read_textured(text: str) -> GrammarPrompt:
    return textured_prompt(textured.parse_textured(text))


def _sample_textured(rng: np.random.Generator) -> GrammarPrompt:
    return textured_prompt(textured.draw_textured(lambda count: int(rng.integers(count))))


TEXTURED: Final = Grammar(
    family=TEXTURED_FAMILY,
    tables="textured_scenes.json",
    slots=textured.TEXTURED_SLOTS,
    main=("thing", "finish", "other", "other_finish"),
    accuracy="things_and_finishes",
    subject="thing",
    words={
        "thing": textured.THINGS,
        "finish": textured.FINISHES,
        "relation": textured.TYPED_RELATIONS,
        "companion": textured.COMPANIONS,
        **{slot: textured.TEXTURED_SLOTS[slot] for slot in ("ground", "colour", "sky", "light", "depth")},
    },
    example="a woolly fox left of an outlined pumpkin, with a honeybee, on green foliage, bright sky",
    read=_read_textured,
    sample=_sample_textured,
)


def index_grammar(index: ModelIndex) -> Grammar | None:
    """The grammar that a folder's models are asked in.

    Returns:
        None where they take no prompts of a grammar.

    Raises:
        ManifestError: the models are asked in a grammar that this version does not know.
    """
    if index.condition != PROMPT_GRAMMAR:
        return None
    if index.family != TEXTURED.family:
        family = f"the family '{index.family}'" if index.family else "no named family"
        raise ManifestError(
            f"expected models of the family '{TEXTURED.family}', whose prompt grammar this version knows, got models "
            f"of {family}; train models with 'underpaint train world', or use the version that exported these"
        )
    return TEXTURED


def check_tables(folder: Path, grammar: Grammar) -> None:
    """ManifestError where a folder of models brings other words than this version's: its models read other ids.

    A folder that brings none is taken at its word.
    """
    path = folder / grammar.tables
    if not path.is_file():
        return
    own = Path(__file__).parent / grammar.tables
    try:
        same = path.samefile(own) or read_json(path) == read_json(own)
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}); export the models again") from error
    if not same:
        raise ManifestError(
            f"{path}: expected the words of this version's {grammar.family}, got others: the models were trained or "
            "exported by another version; train and export them again, or take that version"
        )
