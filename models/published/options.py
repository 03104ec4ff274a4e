"""Options for loading a checkpoint, for facts that it does not contain, and the results of loading."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.published.files import Checkpoint, Recipe
from underpaint.models.vq import VQModel

Layout: TypeAlias = Literal["anole", "lumina"]
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
"""The tokens among the codes of a Chameleon image: none ("anole"), or Lumina-mGPT's size and line tokens."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options that override the values of the published models; None keeps the published value.

    Attributes:
        heads: Attention heads.
        grid_side: Cells along a side of the image, or its number of rows if `grid_width` is given.
        grid_width: Cells of a row (only Lumina-mGPT's images need not be square).
        prefix: Condition positions (captions, TA-Tok features, or the longest prompt).
        first_code: Vocabulary id of code 0 (Tar's language model).
        layout: Layout of a Chameleon image, see `LAYOUTS`.
        uncond_keep: Number of ids at the two ends of a prompt that the unconditional prompt keeps, see `DecoderConfig`.

    Raises:
        ValueError: The layout is unknown, a width is given for a model that cannot be told the width, or the
            unconditional prompt keeps no id.
    """

    heads: int | None = None
    grid_side: int | None = None
    grid_width: int | None = None
    prefix: int | None = None
    first_code: int | None = None
    layout: Layout = "anole"
    uncond_keep: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"--layout: expected {' or '.join(LAYOUTS)}, got {self.layout!r}")
        if self.grid_width is not None and self.layout != "lumina":
            raise ValueError(
                f"--grid {self.grid_side}x{self.grid_width}: only --layout lumina tells a model how wide a picture is; "
                "give one number"
            )
        if self.uncond_keep is not None and (min(self.uncond_keep) < 0 or max(self.uncond_keep) < 1):
            raise ValueError(f"--uncond-keep: expected two counts of ids, one of them from 1, got {self.uncond_keep}")


class Published(NamedTuple):
    """A loaded model. `decoder` is None for a tokenizer; `vq` is None for all others."""

    kind: str
    decoder: Decoder | None
    conditioner: Conditioner | None
    vq: VQModel | None
    checkpoint: Checkpoint

    @property
    def codes(self) -> int:
        """The number of codes of the tokenizer or of the decoder."""
        if self.vq is not None:
            return self.vq.config.codebook_size
        assert self.decoder is not None
        return self.decoder.config.vocab_size


class Parts(NamedTuple):
    """The config and the recipes of renamed parameters for a `Decoder`, and for a `Conditioner` if there is one.

    Attributes:
        config: The decoder's config.
        tensors: Recipes of the decoder's parameters by name.
        conditioner: Recipes of the conditioner's parameters by name; None without a conditioner.
        activation: See `Conditioner`.
        features: Width of the conditioner's input.
        ids: Vocabulary ids of codes 0, 1, ... of a language model.
    """

    config: DecoderConfig
    tensors: dict[str, Recipe]
    conditioner: dict[str, Recipe] | None = None
    activation: bool = False
    features: int = 0
    ids: Tensor | None = None
