"""The names of what `underpaint export` makes of this project's own checkpoints. Reading them needs no PyTorch."""

from pathlib import Path
from typing import Final

from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS, between

RUNS: Final = Path("runs/world")
"""Where the recipes leave their checkpoints: RUNS/<stage>/checkpoint.pt."""
OUT: Final = Path("runs/textured")
"""Where exports go unless they are told: never into the models that ship."""
USUAL: Final = (
    "tokenizer",
    "target",
    "drafter",
    "judge",
    "judge_reference",
    "sampler_up_ce",
    "sampler_up",
    "sampler_down",
)
"""What is exported where nothing is named; "tokenizer" writes vq_decoder, vq_encoder and codebook, which samplers look
for in the folder; "target" and "drafter" write one of each grid that they were trained for, on one file of weights;
"judge_reference" needs the art. Guidance is baked into this target."""
PAIR_TARGET: Final = "target_pair"
"""The targets before guidance was baked in, which a pair of rows guides; they are named as those are, so they need
another folder, where the same drafter serves."""
EIGHT_BIT_TARGET: Final = "target_eight_bits"
"""The same targets, with products in 8 bits; they are named as those in float32 are, so they need another folder."""
FLOAT_DRAFTER: Final = "drafter_float"
"""The same drafters in float32, to compare with: a folder holds one drafter a grid, so they need another folder too."""
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
OTHERS: Final = (
    PAIR_TARGET,
    EIGHT_BIT_TARGET,
    FLOAT_DRAFTER,
    *(name + between(*pair) for pair in _PAIRS for name in _BETWEEN if name + between(*pair) not in USUAL),
)
"""What is exported only when it is named: beside those above "superres", of the pixel sampler, which the preset "paper"
of mulo-islands asks for, and what `underpaint train sampler` and `superres` make of other losses and other sides, which
the latent kinds of `runtime.resampling.registry` look for."""
