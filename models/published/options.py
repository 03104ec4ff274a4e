"""What a checkpoint does not say about itself, and what loading one gives."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from models.published.decoder import Conditioner, Decoder, DecoderConfig
from models.published.files import Checkpoint, Recipe
from models.vq import VQModel


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Overrides; None takes what the published models of that shape use.

    heads: attention heads. grid_side: cells along a side of the picture. prefix: condition positions (captions, TA-Tok
    features, or the longest prompt). first_code: vocabulary id of code 0 (Tar's language model).
    """

    heads: int | None = None
    grid_side: int | None = None
    prefix: int | None = None
    first_code: int | None = None


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
