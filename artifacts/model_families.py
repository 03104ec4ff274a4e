"""Families of models, as a folder's index names them: what they are asked for, and how they are meant to be sampled."""

from collections.abc import Mapping
from typing import Final

from underpaint.algos.rows import SamplingParams

PROMPT_GRAMMAR: Final = "prompt_grammar"
"""The kind of condition that is typed in the words of a prompt grammar."""
CONDITIONS: Final = (PROMPT_GRAMMAR, "class", "ids", "features")
"""What the targets of a folder are asked for: words of a prompt grammar, one class, ids of a vocabulary, features."""
EMOJI_FAMILY: Final = "emoji-scenes"
TEXTURED_FAMILY: Final = "textured-scenes"
GRAMMAR_TABLES: Final[Mapping[str, str]] = {EMOJI_FAMILY: "emoji_scenes.json", TEXTURED_FAMILY: "textured_scenes.json"}
"""The families of models that this project trains, which are asked in the words of a prompt grammar, and the file of
those words in a folder of such models."""
GRAMMAR_SAMPLING: Final[Mapping[str, SamplingParams]] = {
    EMOJI_FAMILY: SamplingParams(top_k=5),
    TEXTURED_FAMILY: SamplingParams(guidance=2.0),
}
"""How those models are meant to be sampled. Guidance 2 is baked into the weights of EmojiScenes; models of
TexturedScenes draw from all codes at temperature 1, as papers do, with guidance by a true pair of rows."""
PUBLISHED_SAMPLING: Final = SamplingParams(guidance=4.0, top_k=1000)
"""LlamaGen's published sampling: the default of a folder that names no other."""
