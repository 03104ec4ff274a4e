"""The names of what `underpaint export` makes of this project's own checkpoints. Reading them needs no PyTorch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS, between

_BETWEEN: Final = (
    "sampler_up",
    "sampler_up_ce",
    "sampler_up_gan",
    "sampler_down",
    "sampler_down_pixel",
    "sampler_down_gan",
    "superres",
)
_PAIRS: Final = (SHIPPED_RESOLUTIONS, (64, 256), (128, 256))
EMOJI_NAMES: Final = (
    "tokenizer",
    "target64",
    "drafter64",
    "target128",
    "drafter128",
    "judge",
    "judge_reference",
    "sampler_up",
    "sampler_down",
    "superres",
)
"""What is exported where nothing is named; "tokenizer" writes vq_decoder, vq_encoder and codebook, which samplers look
for in the folder; "judge_reference" needs the art."""
OTHER_NAMES: Final = (
    "drafter64_float",
    "drafter128_float",
    "target256",
    "drafter256",
    "drafter256_float",
    "judge_reference256",
    *(name + between(*pair) for pair in _PAIRS for name in _BETWEEN if name + between(*pair) not in EMOJI_NAMES),
)
"""What is exported only when it is named: drafters in float32, to compare the 8-bit ones with (into a folder of their
own: a folder holds one drafter a grid), the samplers that other losses trained, which the latent kinds of
`runtime.resampling.registry` look for, and all of 256 px, of which nothing ships."""
WORLD_NAMES: Final = (
    "tokenizer",
    "target",
    "drafter",
    "judge",
    "judge_reference",
    "sampler_up_ce",
    "sampler_up",
    "sampler_down",
)
"""Of textured scenes, what is exported where nothing is named; "target" and "drafter" write one of each grid that they
were trained for, on one file of weights. Guidance is baked into this target."""
PAIR_TARGET: Final = "target_pair"
"""The targets before guidance was baked in, which a pair of rows guides; they are named as those are, so they need
another folder, where the same drafter serves."""
EIGHT_BIT_TARGET: Final = "target_eight_bits"
"""The same targets, with products in 8 bits; they are named as those in float32 are, so they need another folder."""
FLOAT_DRAFTER: Final = "drafter_float"
"""The same drafters in float32, to compare with: a folder holds one drafter a grid, so they need another folder too."""
WORLD_OTHER_NAMES: Final = (PAIR_TARGET, EIGHT_BIT_TARGET, FLOAT_DRAFTER, "superres")
"""superres: of the pixel sampler, which the preset "paper" of mulo-islands asks for."""


class TrainedNames(NamedTuple):
    """What is exported of a family of scenes, and between which folders.

    runs: where the recipes leave their checkpoints: RUNS/<recipe>/checkpoint.pt. out: where exports go unless they are
    told, never into the models that ship. usual: names exported where none is named; others: only where they are.
    """

    runs: Path
    out: Path
    usual: tuple[str, ...]
    others: tuple[str, ...]


NAMES: Final[Mapping[str, TrainedNames]] = {
    "emoji": TrainedNames(Path("runs"), Path("runs/export"), EMOJI_NAMES, OTHER_NAMES),
    "textured": TrainedNames(Path("runs/world"), Path("runs/textured"), WORLD_NAMES, WORLD_OTHER_NAMES),
}
"""By family, as `--scenes` names it."""
