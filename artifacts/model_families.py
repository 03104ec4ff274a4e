"""Families of models, as a folder's index names them: what they are asked for, and how they are meant to be sampled."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from underpaint.algos.rows import SamplingParams

PROMPT_GRAMMAR: Final = "prompt_grammar"
"""The kind of condition that is typed in the words of the prompt grammar of TexturedScenes."""
CONDITIONS: Final = (PROMPT_GRAMMAR, "class", "ids", "features")
"""What the targets of a folder are asked for: words of the prompt grammar, one class, ids of a vocabulary, features."""
TEXTURED_FAMILY: Final = "textured-scenes"
"""The family of models that this project trains."""
TEXTURED_GUIDANCE: Final = 3.0
"""Guidance of TexturedScenes: baked into the weights of the targets that one row draws by, asked of a pair of rows."""
TEXTURED_SAMPLING: Final = SamplingParams()
"""How models of TexturedScenes are meant to be sampled: from all codes at temperature 1, as papers do."""
PUBLISHED_SAMPLING: Final = SamplingParams(guidance=4.0, top_k=1000)
"""How a folder is sampled that names neither a family nor a sampling of its own."""
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
"""How authors sample their exported targets: by kind of checkpoint, a Chameleon's by its layout."""
WITHOUT_CODEBOOK: Final = ("tar-lm",)
"""Kinds of checkpoint whose codes no tokenizer of this project has: they are drawn as tokens, and not as pictures."""
PUBLISHED_FAMILIES: Final = ("llamagen", "tar", "chameleon")
"""Families that others published. Methods start from the papers' settings there."""
