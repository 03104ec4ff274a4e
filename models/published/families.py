"""The published families: how each kind of checkpoint is read, and what kind of model it gives.

A family is a value here and a module that names its parameters; the decoder itself is one (`models.decoder`), and
`DecoderConfig` says how members differ: layer shapes, rotary scheme, condition, image tokens, forced tokens, guidance.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from underpaint.algos.registry import Registry
from underpaint.models.published.files import Checkpoint
from underpaint.models.published.llama import chameleon, eagle, tar_lm
from underpaint.models.published.llamagen import llamagen_c2i, llamagen_t2i, tar_dtok
from underpaint.models.published.options import LoadOptions, Parts
from underpaint.models.published.tokenizers import chameleon_vq, llamagen_vq
from underpaint.models.vq import VQModel

ReadTarget: TypeAlias = Callable[[Checkpoint, LoadOptions], Parts]
ReadDrafter: TypeAlias = Callable[[Checkpoint, Parts, LoadOptions], Parts]
ReadTokenizer: TypeAlias = Callable[[Checkpoint, torch.dtype], VQModel]


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """One kind of published checkpoint.

    name: what `underpaint export --kind` takes. family: members share a tokenizer or a drafter. source: arXiv id.
    condition: what a picture is asked for by: a "class", a "caption" or "features" of an encoder, a "prompt" of ids;
    None for what draws no picture itself. tokenizer: the kind of the picture tokenizer that its codes are of.
    read_target, read_drafter, read_tokenizer: the one that fits.
    """

    name: str
    family: str
    source: str
    condition: Literal["class", "caption", "features", "prompt"] | None = None
    tokenizer: str | None = None
    read_target: ReadTarget | None = None
    read_drafter: ReadDrafter | None = None
    read_tokenizer: ReadTokenizer | None = None


FAMILIES: Registry[FamilySpec] = Registry("kind")
for _spec in (
    FamilySpec("llamagen-c2i", "llamagen", "2406.06525", "class", "vq", read_target=llamagen_c2i),
    FamilySpec("llamagen-t2i", "llamagen", "2406.06525", "caption", "vq", read_target=llamagen_t2i),
    FamilySpec("tar-dtok", "tar", "2506.18898", "features", "vq", read_target=tar_dtok),
    FamilySpec("tar-lm", "tar", "2506.18898", "prompt", None, read_target=tar_lm),
    FamilySpec("chameleon", "chameleon", "2405.09818", "prompt", "chameleon-vq", read_target=chameleon),
    FamilySpec("eagle-drafter", "eagle", "2410.03355", read_drafter=eagle),
    FamilySpec("vq", "llamagen", "2406.06525", read_tokenizer=llamagen_vq),
    FamilySpec("chameleon-vq", "chameleon", "2203.13131", read_tokenizer=chameleon_vq),
):
    FAMILIES.register(_spec)

KINDS = tuple(spec.name for spec in FAMILIES)
TARGETS = tuple(spec.name for spec in FAMILIES if spec.read_target is not None)
