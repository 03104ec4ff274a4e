"""What a checkpoint does not say about itself, and what loading one gives."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from torch import Tensor

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.models.decoder import Conditioner, Decoder
from underpaint.models.published.files import Checkpoint, Recipe
from underpaint.models.vq import VQModel

Layout: TypeAlias = Literal["anole", "lumina"]
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
"""What stands among the codes of a Chameleon's picture: nothing, or Lumina-mGPT's size and line tokens."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Overrides; None takes what the published models of that shape use.

    heads: attention heads. grid_side: cells along a side of the picture, or its rows of cells where `grid_width` says
    that a row holds another number (Lumina-mGPT's pictures alone may be wide or high). prefix: condition positions
    (captions, TA-Tok features, or the longest prompt). first_code: vocabulary id of code 0 (Tar's language model).
    layout: of a Chameleon's pictures, see `LAYOUTS`. uncond_keep: ids at the two ends of a prompt that stay where it
    is left out, see `DecoderConfig`. Raises ValueError on an unknown layout, on a width where nothing tells the model
    of it, and unless at least one id stays.
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
    """A loaded model. `decoder` is None for a tokenizer, `vq` for all others."""

    kind: str
    decoder: Decoder | None
    conditioner: Conditioner | None
    vq: VQModel | None
    checkpoint: Checkpoint

    @property
    def codes(self) -> int:
        """How many codes it draws with, or draws."""
        if self.vq is not None:
            return self.vq.config.codebook_size
        assert self.decoder is not None
        return self.decoder.config.vocab_size


class Parts(NamedTuple):
    """A config and recipes of renamed parameters, ready to fill a `Decoder`; the same for a `Conditioner`, if any.

    features: width of what the conditioner reads. ids: vocabulary ids of codes 0, 1, ... of a language model.
    """

    config: DecoderConfig
    tensors: dict[str, Recipe]
    conditioner: dict[str, Recipe] | None = None
    activation: bool = False
    features: int = 0
    ids: Tensor | None = None
