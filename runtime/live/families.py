"""Defines the supported model families: each function holds what differs between image models of `transformers`.

Each function makes a `LiveModel` from a loaded model. Guidance, temperature, top-k and top-p are the values that the
authors publish. To add your own family, see docs/how-to/use-a-live-model.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.live.causal_families import emu3_5, liquid, lumina_mgpt_2, simplear
from underpaint.runtime.live.glm_image import glm_image
from underpaint.runtime.live.model import Ids, LiveModel, LiveModelError
from underpaint.runtime.live.parts import (
    code_ids_of,
    codebook_of,
    fixed_grid,
    lumina_prompt,
    of_causal,
    on_device,
    pixels_of,
    prompt_ids,
    token_id,
    turn_ids,
)
from underpaint.runtime.live.published import FAMILIES as PUBLISHED
from underpaint.runtime.live.published import PublishedModel

Family: TypeAlias = Callable[..., LiveModel]
"""A function (model, processor, **options) -> LiveModel. Every family takes `grid` and `longest_prompt`."""


def janus(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """Janus-Pro 1B and 7B (arXiv 2501.17811): own generation head, guidance 5; the unconditional row is padding.

    `boi_token_id` of the generation configuration begins a picture; "begin" and "pad" ids come from the configuration.
    """
    inner, settings = model.model, model.generation_config
    side = inner.vqmodel.config.num_patches
    grid = fixed_grid(grid, Grid(side, side), "Janus")
    start = (getattr(settings, "generation_kwargs", None) or {}).get("boi_token_id")
    if start is None:
        start = token_id(processor, "image_start_token", "Janus", "generation_config.generation_kwargs['boi_token_id']")
    config = model.config.text_config
    begin = settings.bos_token_id if settings.bos_token_id is not None else config.bos_token_id
    padding = settings.pad_token_id if settings.pad_token_id is not None else config.pad_token_id
    kept_ids = {begin, start}

    def encode(processor: Any, text: str) -> Sequence[int]:
        chat = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
        return prompt_ids(processor(text=prompt, generation_mode="image"))

    def decode(codes: IntArray) -> NDArray[np.uint8]:
        return pixels_of(model.decode_image_tokens(on_device(model, codes)[None])[0])

    return LiveModel(
        family="janus",
        body=inner.language_model,
        config=inner.language_model.config,
        grid=grid,
        codes=inner.vqmodel.config.num_embeddings,
        vocabulary=config.vocab_size,
        embed_codes=model.prepare_embeddings_for_image_generation,
        embed_ids=inner.language_model.get_input_embeddings(),
        head=inner.generation_head,
        sampling=SamplingParams(guidance=5.0),
        codebook=codebook_of(inner.vqmodel, unit=True),
        uncond=lambda ids: tuple(each if each in kept_ids else padding for each in ids),
        image_start=(start,),
        encode=encode,
        decode=decode,
        longest_prompt=longest_prompt,
    )


def emu3(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """Emu3-Gen (arXiv 2409.18869): each line has an end token, guidance 3, top-k 2048.

    The unconditional row of guidance is the prompt's first and last ids; pass a negative prompt to replace it.
    """
    mapping, text_model = model.model.vocabulary_mapping, model.model.text_model
    grid = grid or Grid(90, 90)
    names: Mapping[str, int] = mapping.vocab_map
    marks = ("<|extra_201|>", "<|image end|>", "<|extra_204|>")
    closing = tuple(names[name] for name in marks if name in names)
    start = names.get("<|image token|>")

    def encode(processor: Any, text: str) -> Sequence[int]:
        ids = prompt_ids(
            processor(
                text=text,
                return_for_image_generation=True,
                ratio=f"{grid.width}:{grid.height}",
                image_area=grid.cells * processor.downsample_ratio**2,
            )
        )
        return ids

    def decode(codes: IntArray) -> NDArray[np.uint8]:
        image = model.model.vqmodel.decode(on_device(model, codes).view(1, grid.height, grid.width))
        return pixels_of(image.reshape(-1, *image.shape[-3:])[0].permute(1, 2, 0))

    return of_causal(
        "emu3",
        text_model,
        model.lm_head,
        code_ids_of(mapping.img2bpe, "Emu3"),
        grid,
        sampling=SamplingParams(guidance=3.0, top_k=2048),
        eol_id=mapping.eol_token_id,
        closing=closing,
        codebook=codebook_of(model.model.vqmodel),
        uncond=lambda ids: (ids[0], ids[-1]),
        image_start=() if start is None else (start,),
        encode=encode,
        decode=decode,
        longest_prompt=longest_prompt,
    )


def chameleon(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """Chameleon and Anole (arXiv 2407.06135): guidance 3, temperature 0.7, top-p 0.9, 32 x 32 cells.

    The unconditional row keeps the prompt's first and last ids, as in the authors' sampler. `transformers` has no
    picture decoder for Chameleon, so only tokens are drawn, without pixels.
    """
    grid = grid or Grid(32, 32)
    start = _chameleon_start(model, processor)

    def encode(processor: Any, text: str) -> Sequence[int]:
        return [*turn_ids(processor, text), *start]

    return of_causal(
        "chameleon",
        model.model,
        model.lm_head,
        code_ids_of(model.model.vocabulary_mapping.img2bpe, "Chameleon"),
        grid,
        sampling=SamplingParams(guidance=3.0, temperature=0.7, top_p=0.9),
        codebook=codebook_of(model.model.vqmodel),
        uncond=lambda ids: (ids[0], ids[-1]),
        image_start=start,
        encode=encode,
        longest_prompt=longest_prompt,
    )


def lumina_mgpt(
    model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024
) -> LiveModel:
    """Lumina-mGPT (arXiv 2408.02657), in Chameleon's classes: guidance 3, top-k 2000, each line has an end token.

    A picture begins with its start token, height and width, in units of 32 pixels (2 cells); the unconditional row
    keeps these. Its end token follows the last line.
    """
    grid = grid or Grid(48, 48)
    if grid.height % 2 or grid.width % 2:
        raise LiveModelError(f"lumina-mgpt: grid: expected even sides, got {grid.height} x {grid.width}; use 48x48")
    names: Mapping[str, int] = model.config.vocabulary_map
    try:
        eol = names["<reserved08799>"]
        sizes = tuple(names[f"<reserved{8800 + side // 2:05d}>"] for side in grid)
    except KeyError as error:
        raise LiveModelError(
            f"lumina-mgpt: expected {error.args[0]} in the model's vocabulary_map, by which Lumina-mGPT marks lines "
            "and sizes; for Anole and Chameleon use the family chameleon"
        ) from error
    start = (*_chameleon_start(model, processor), *sizes)

    def encode(processor: Any, text: str) -> Sequence[int]:
        return [*turn_ids(processor, lumina_prompt(text, grid)), *start]

    return of_causal(
        "lumina-mgpt",
        model.model,
        model.lm_head,
        code_ids_of(model.model.vocabulary_mapping.img2bpe, "Lumina-mGPT"),
        grid,
        sampling=SamplingParams(guidance=3.0, top_k=2000),
        eol_id=eol,
        closing=(names["<eoss>"],) if "<eoss>" in names else (),
        codebook=codebook_of(model.model.vqmodel),
        uncond=lambda ids: ids[-3:],
        image_start=start,
        encode=encode,
        longest_prompt=longest_prompt,
    )


def _chameleon_start(model: Any, processor: Any) -> Ids:
    """Return the id that begins a picture in Chameleon, as a tuple."""
    names: Mapping[str, int] = model.config.vocabulary_map
    start = names.get("<racm3:break>")
    return (
        token_id(processor, "image_start_token", "Chameleon", "'<racm3:break>' in vocabulary_map")
        if start is None
        else start,
    )


FAMILIES: Final[Mapping[str, Family]] = {
    "janus": janus,
    "emu3": emu3,
    "chameleon": chameleon,
    "lumina-mgpt": lumina_mgpt,
    "glm-image": glm_image,
    "liquid": liquid,
    "simplear": simplear,
    "lumina-mgpt-2": lumina_mgpt_2,
    "emu3.5": emu3_5,
    **PUBLISHED,
}
"""Families by name; the values of `--family`."""

_BY_CLASS: Final[Mapping[str, str]] = {
    "JanusForConditionalGeneration": "janus",
    "Emu3ForConditionalGeneration": "emu3",
    "ChameleonForConditionalGeneration": "chameleon",
    "GlmImageForConditionalGeneration": "glm-image",
    "Decoder": "llamagen-c2i",
}


def family_of(model: Any, family: str | Family | None = None) -> Family:
    """Return the given family, or the family of the model's class.

    Raises:
        LiveModelError: There is no family of this name or class.
    """
    if callable(family):
        return family
    if family is not None:
        if family not in FAMILIES:
            raise LiveModelError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}")
        return FAMILIES[family]
    if isinstance(model, PublishedModel):
        return FAMILIES[model.kind]
    classes = [each.__name__ for each in type(model).__mro__]
    for name in classes:
        if name in _BY_CLASS:
            return FAMILIES[_BY_CLASS[name]]
    raise LiveModelError(
        f"model: expected one of {', '.join(_BY_CLASS)}, got {classes[0]}; pass family=..., a function of 20 lines "
        "that docs/how-to/use-a-live-model.md shows"
    )
