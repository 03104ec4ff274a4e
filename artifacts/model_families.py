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
TEXTURED_GUIDANCE: Final = 3.0
"""Guidance of TexturedScenes: baked into the weights of the targets that one row draws by, asked of a pair of rows."""
GRAMMAR_SAMPLING: Final[Mapping[str, SamplingParams]] = {
    EMOJI_FAMILY: SamplingParams(top_k=5),
    TEXTURED_FAMILY: SamplingParams(),
}
"""How those models are meant to be sampled. Guidance is baked into their weights (2 into those of EmojiScenes); models
of TexturedScenes draw from all codes at temperature 1, as papers do."""
PUBLISHED_SAMPLING: Final = SamplingParams(guidance=4.0, top_k=1000)
"""LlamaGen's published sampling: the default of a folder that names no other."""
