"""The published families: how each kind of checkpoint is read, and which kind of model it contains.

A family is an entry here and a module that maps its parameter names. All families share one decoder (`models.decoder`).
`DecoderConfig` has their differences: layer shapes, rotary scheme, condition, image tokens, forced tokens, guidance.
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

    Only the reader for this kind of model is set.

    Attributes:
        name: The value of `underpaint export --kind`.
        family: The family, whose members share a tokenizer or a drafter.
        source: arXiv id.
        condition: The kind of condition: a "class", a "caption", "features" of an encoder, or a "prompt" of ids; None
            for models that draw no images.
        tokenizer: The kind of the image tokenizer that its codes belong to.
        options: Names of the `underpaint export` parameters that the reader uses, beside the precision; a drafter's
            reader also uses those of its target's kind.
        read_target: The reader of a target.
        read_drafter: The reader of a drafter.
        read_tokenizer: The reader of a tokenizer.
    """

    name: str
    family: str
    source: str
    condition: Literal["class", "caption", "features", "prompt"] | None = None
    tokenizer: str | None = None
    options: tuple[str, ...] = ()
    read_target: ReadTarget | None = None
    read_drafter: ReadDrafter | None = None
    read_tokenizer: ReadTokenizer | None = None


_SIDES = ("heads", "grid")
FAMILIES: Registry[FamilySpec] = Registry("kind")
for _spec in (
    FamilySpec("llamagen-c2i", "llamagen", "2406.06525", "class", "vq", _SIDES, read_target=llamagen_c2i),
    FamilySpec("llamagen-t2i", "llamagen", "2406.06525", "caption", "vq", _SIDES, read_target=llamagen_t2i),
    FamilySpec("tar-dtok", "tar", "2506.18898", "features", "vq", (*_SIDES, "prefix"), read_target=tar_dtok),
    FamilySpec(
        *("tar-lm", "tar", "2506.18898", "prompt", None),
        options=("grid", "prefix", "first_code", "uncond_keep"),
        read_target=tar_lm,
    ),
    FamilySpec(
        *("chameleon", "chameleon", "2405.09818", "prompt", "chameleon-vq"),
        options=("grid", "prefix", "layout", "uncond_keep", "neighbours"),
        read_target=chameleon,
    ),
    FamilySpec(
        *("eagle-drafter", "eagle", "2410.03355"),
        options=("target", "target_kind", "heads", "eight_bits"),
        read_drafter=eagle,
    ),
    FamilySpec("vq", "llamagen", "2406.06525", options=("neighbours",), read_tokenizer=llamagen_vq),
    FamilySpec("chameleon-vq", "chameleon", "2203.13131", options=("neighbours",), read_tokenizer=chameleon_vq),
):
    FAMILIES.register(_spec)

KINDS = tuple(spec.name for spec in FAMILIES)
TARGETS = tuple(spec.name for spec in FAMILIES if spec.read_target is not None)
