"""Names of the exports of this project's own checkpoints. Importing this module does not need PyTorch."""

from pathlib import Path
from typing import Final

from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS, between

RUNS: Final = Path("runs/world")
"""Default folder of training runs: RUNS/<stage>/checkpoint.pt."""
OUT: Final = Path("runs/textured")
"""Default output folder of exports; never the folder of the shipped models."""
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
"""The default exports. "tokenizer" writes vq_decoder, vq_encoder and codebook, which samplers need in the folder.
"target" and "drafter" write one graph per grid that they were trained for, with one weights file. "judge_reference"
needs the art. This target has guidance baked in."""
PAIR_TARGET: Final = "target_pair"
"""The targets before guidance was baked in, which need two rows for guidance. Their file names are those of the baked
targets, so they need another folder; the same drafter works there."""
EIGHT_BIT_TARGET: Final = "target_eight_bits"
"""The same targets with 8-bit products; their file names are those of the float32 ones, so they need another folder."""
FLOAT_DRAFTER: Final = "drafter_float"
"""The same drafters in float32, for comparisons: a folder has one drafter per grid, so they need another folder."""
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
"""Exports that run only when named: those above; "superres" for the pixel sampler (preset "paper" of mulo-islands); and
the networks that `underpaint train sampler` and `superres` train with other losses and sides, for the latent kinds of
`runtime.resampling.registry`."""
