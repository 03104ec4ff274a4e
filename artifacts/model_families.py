"""Families of models in a folder's index: their kinds of condition, and the sampling that they are meant for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from underpaint.algos.rows import SamplingParams

PROMPT_GRAMMAR: Final = "prompt_grammar"
"""The kind of condition written in the words of the prompt grammar of TexturedScenes."""
CONDITIONS: Final = (PROMPT_GRAMMAR, "class", "ids", "features")
"""Kinds of condition of targets: words of the prompt grammar, one class, ids of a vocabulary, features."""
TEXTURED_FAMILY: Final = "textured-scenes"
"""The family of models that this project trains."""
TEXTURED_GUIDANCE: Final = 3.0
"""Guidance of TexturedScenes: built into the weights of targets that draw with one row, requested for pairs of rows."""
TEXTURED_SAMPLING: Final = SamplingParams()
"""Sampling of TexturedScenes models: all codes at temperature 1, as in papers."""
PUBLISHED_SAMPLING: Final = SamplingParams(guidance=4.0, top_k=1000)
"""Sampling of a folder that names neither a family nor its own sampling."""
SAMPLING_BY_KIND: Final[Mapping[str, SamplingParams]] = MappingProxyType(
    {
        "llamagen-c2i": SamplingParams(guidance=4.0, top_k=2000),
        "llamagen-t2i": SamplingParams(guidance=7.5, top_k=1000),
        "tar-dtok": SamplingParams(guidance=4.0),
        "tar-lm": SamplingParams(top_k=1200, top_p=0.95),
        "anole": SamplingParams(guidance=3.0, temperature=0.7, top_p=0.9),
        "lumina": SamplingParams(guidance=3.0, top_k=2000),
    }
)
"""Published sampling of exported targets, by kind of checkpoint (for a Chameleon, by its layout)."""
WITHOUT_CODEBOOK: Final = ("tar-lm",)
"""Kinds of checkpoint for whose codes this project has no tokenizer: they are drawn as tokens, not as pictures."""
PUBLISHED_FAMILIES: Final = ("llamagen", "tar", "chameleon")
"""Families published by others; methods start from the papers' settings for them."""
