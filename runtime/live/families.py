"""Model families as values: what differs between the image models of `transformers`, and nothing else.

Each function here makes a `LiveModel` of a loaded model. Guidance, temperature, top-k and top-p are those that the
authors publish. To add a family of your own, see docs/how-to/use-a-live-model.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from underpaint.algos.arrays import FloatArray, IntArray
from underpaint.algos.draft.spec import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.decoder_graph import MASKED_SCORE
from underpaint.runtime.live.model import Ids, LiveModel, LiveModelError

Family: TypeAlias = Callable[..., LiveModel]
"""A function (model, processor, **options) -> LiveModel. Every family takes `grid` and `longest_prompt`."""


def janus(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """Janus-Pro 1B and 7B (arXiv 2501.17811): a generation head of its own, guidance 5, the second row is padding.

    `boi_token_id` of the generation configuration begins a picture; "begin" and "pad" ids are the configuration's.
    """
    inner, settings = model.model, model.generation_config
    side = inner.vqmodel.config.num_patches
    grid = _fixed_grid(grid, Grid(side, side), "Janus")
    start = (getattr(settings, "generation_kwargs", None) or {}).get("boi_token_id")
    if start is None:
        start = _token_id(
            processor, "image_start_token", "Janus", "generation_config.generation_kwargs['boi_token_id']"
        )
    config = model.config.text_config
    begin = settings.bos_token_id if settings.bos_token_id is not None else config.bos_token_id
    padding = settings.pad_token_id if settings.pad_token_id is not None else config.pad_token_id
    kept = {begin, start}

    def encode(processor: Any, text: str) -> Sequence[int]:
        chat = [{"role": "user", "content": [{"type": "text", "text": text}]}]
        prompt = processor.apply_chat_template(chat, add_generation_prompt=True)
        return _ids(processor(text=prompt, generation_mode="image"))

    def decode(codes: IntArray) -> NDArray[np.uint8]:
        return _pixels(model.decode_image_tokens(_on(model, codes)[None])[0])

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
        codebook=_codebook(inner.vqmodel),
        uncond=lambda ids: tuple(each if each in kept else padding for each in ids),
        image_start=(start,),
        encode=encode,
        decode=decode,
        longest_prompt=longest_prompt,
    )


def emu3(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """Emu3-Gen (arXiv 2409.18869): lines end in a token, guidance 3, top-k 2048.

    The second row of guidance is the prompt's first id alone; pass a negative prompt for another one.
    """
    mapping, text_model = model.model.vocabulary_mapping, model.model.text_model
    grid = grid or Grid(90, 90)
    names: Mapping[str, int] = mapping.vocab_map
    marks = ("<|extra_201|>", "<|image end|>", "<|extra_204|>")
    closing = tuple(names[name] for name in marks if name in names)
    start = names.get("<|image token|>")

    def encode(processor: Any, text: str) -> Sequence[int]:
        ids = _ids(
            processor(
                text=text,
                return_for_image_generation=True,
                ratio=f"{grid.width}:{grid.height}",
                image_area=grid.cells * processor.downsample_ratio**2,
            )
        )
        return ids

    def decode(codes: IntArray) -> NDArray[np.uint8]:
        image = model.model.vqmodel.decode(_on(model, codes).view(1, grid.height, grid.width))
        return _pixels(image.reshape(-1, *image.shape[-3:])[0].permute(1, 2, 0))

    return _of_causal(
        "emu3",
        text_model,
        model.lm_head,
        _code_ids(mapping.img2bpe, "Emu3"),
        grid,
        sampling=SamplingParams(guidance=3.0, top_k=2048),
        eol_id=mapping.eol_token_id,
        closing=closing,
        codebook=_codebook(model.model.vqmodel),
        uncond=lambda ids: (ids[0], ids[-1]),
        image_start=() if start is None else (start,),
        encode=encode,
        decode=decode,
        longest_prompt=longest_prompt,
    )


def chameleon(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """Chameleon and Anole (arXiv 2407.06135): guidance 3, temperature 0.7, top-p 0.9, 32 x 32 cells.

    The second row keeps the prompt's first and last ids, as the authors' sampler does. `transformers` holds no picture
    decoder of Chameleon, so tokens are drawn and no pixels.
    """
    grid = grid or Grid(32, 32)
    start = _chameleon_start(model, processor)

    def encode(processor: Any, text: str) -> Sequence[int]:
        return [*_ids(processor.tokenizer(text)), *start]

    return _of_causal(
        "chameleon",
        model.model,
        model.lm_head,
        _code_ids(model.model.vocabulary_mapping.img2bpe, "Chameleon"),
        grid,
        sampling=SamplingParams(guidance=3.0, temperature=0.7, top_p=0.9),
        codebook=_codebook(model.model.vqmodel),
        uncond=lambda ids: (ids[0], ids[-1]),
        image_start=start,
        encode=encode,
        longest_prompt=longest_prompt,
    )


def lumina_mgpt(
    model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024
) -> LiveModel:
    """Lumina-mGPT (arXiv 2408.02657), in Chameleon's classes: guidance 3, top-k 2000, lines end in a token.

    A picture begins with its mark, its height and its width, by units of 32 pixels; the second row keeps these three.
    """
    grid = grid or Grid(48, 48)
    if grid.height % 2 or grid.width % 2:
        raise LiveModelError(f"lumina-mgpt: grid: expected even sides, got {grid.height} x {grid.width}; use 48x48")
    names: Mapping[str, int] = model.config.vocabulary_map
    try:
        eol = names["<reserved08799>"]
        sizes = tuple(names[f"<reserved{8800 + side // 2 - 1:05d}>"] for side in grid)
    except KeyError as error:
        raise LiveModelError(
            f"lumina-mgpt: expected {error.args[0]} in the model's vocabulary_map, by which Lumina-mGPT marks lines "
            "and sizes; for Anole and Chameleon use the family chameleon"
        ) from error
    start = (*_chameleon_start(model, processor), *sizes)

    def encode(processor: Any, text: str) -> Sequence[int]:
        separator = names.get("<reserved08706>")
        ids = _ids(processor.tokenizer(text))
        return [*ids, *(() if separator is None else (separator,)), *start]

    return _of_causal(
        "lumina-mgpt",
        model.model,
        model.lm_head,
        _code_ids(model.model.vocabulary_mapping.img2bpe, "Lumina-mGPT"),
        grid,
        sampling=SamplingParams(guidance=3.0, top_k=2000),
        eol_id=eol,
        codebook=_codebook(model.model.vqmodel),
        uncond=lambda ids: ids[-3:],
        image_start=start,
        encode=encode,
        longest_prompt=longest_prompt,
    )


def glm_image(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """GLM-Image: a small grid is drawn first, then the large one; temperature 0.9, top-p 0.75, no guidance.

    grid is the large one, 36 x 24 by default (1152 x 768 pixels). Both grids are one row of cells here, the small one
    first. `transformers` holds no picture decoder. `GlmImagePipeline(prior_token_ids=...)` of diffusers takes the
    tokens of the large grid, which `glm_image_prior` cuts out.
    """
    large = grid or Grid(36, 24)
    small = glm_image_preview(large)
    body, codes = model.model.language_model, model.config.image_start_token_id
    offsets = _glm_offsets(small, large)

    def position_ids(places: Tensor, prompt: Tensor) -> Tensor:
        at = (places - prompt).clamp(min=0)
        table = offsets.to(places.device)
        return torch.where(places < prompt, places.expand(3, -1, -1), prompt + table[:, at])

    def encode(processor: Any, text: str) -> Sequence[int]:
        return _ids(processor(text=text, target_h=large.height * 32, target_w=large.width * 32))

    return _of_causal(
        "glm-image",
        body,
        model.lm_head,
        np.arange(codes),
        Grid(1, small.cells + large.cells),
        sampling=SamplingParams(temperature=0.9, top_p=0.75),
        position_ids=position_ids,
        image_start=(codes,),
        encode=encode,
        longest_prompt=longest_prompt,
    )


def llamagen(model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024) -> LiveModel:
    """This project's own `Decoder`: LlamaGen by class, or the shipped targets; guidance 4, top-k 2000.

    A prompt is one class, or all words of a condition. Load one by `models.published.load.load("llamagen-c2i", path)`.
    """
    config: DecoderConfig = model.config
    if config.condition != "table" or config.eol_token is not None:
        raise LiveModelError(
            f"llamagen: expected a decoder that is conditioned on ids, got condition {config.condition!r}; export "
            "this one, or load it in transformers"
        )
    first = config.prefix
    absent = tuple(range(config.cond_ids - config.uncond_rows, config.cond_ids))
    return LiveModel(
        family="llamagen",
        body=DecoderBody(model),
        config=config,
        grid=_fixed_grid(grid, config.grid, "LlamaGen"),
        codes=config.vocab_size,
        vocabulary=config.cond_ids,
        embed_codes=model.codes,
        embed_ids=model.conditions,
        head=model.head,
        sampling=SamplingParams(guidance=4.0, top_k=2000),
        position_ids=lambda places, prompt: (places - prompt).clamp(min=-1),
        uncond=lambda ids: absent,
        appended=config.image_start_ids,
        longest_prompt=first,
    )


class DecoderBody(nn.Module):
    """The layers of this project's `Decoder`, called as those of `transformers` are."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
        use_cache: bool = True,
    ) -> SimpleNamespace:
        """One pass; `position_ids` are cells. See `models.decoder.Decoder.step_rows`."""
        empty = self.decoder.empty_cache(inputs_embeds.shape[0])
        keys, values = (empty, empty) if past_key_values is None else past_key_values.read()
        mask = attention_mask[:, 0].float().clamp(min=float(MASKED_SCORE))
        out = self.decoder.step_rows(inputs_embeds, position_ids, mask, keys, values)
        if past_key_values is not None:
            for layer, pair in enumerate(zip(out.keys, out.values, strict=True)):
                past_key_values.update(*pair, layer)
        return SimpleNamespace(last_hidden_state=out.features)


def glm_image_preview(large: Grid) -> Grid:
    """The small grid that GLM-Image draws before a large one, as its processor computes it."""
    ratio = large.height / large.width
    return Grid(int(math.sqrt(ratio) * 16), int(math.sqrt(1 / ratio) * 16))


def glm_image_prior(tokens: IntArray, large: Grid) -> IntArray:
    """`prior_token_ids` [1, cells] of diffusers' `GlmImagePipeline`, from the tokens of both grids."""
    return np.asarray(tokens)[glm_image_preview(large).cells :][None]


def _glm_offsets(small: Grid, large: Grid) -> Tensor:
    """[3, cells]: time, row and column of each cell behind the prompt."""
    axes, first = [], 0
    for grid in (small, large):
        cells = torch.arange(grid.cells)
        row, column = cells // grid.width, cells % grid.width
        axes.append(torch.stack([torch.zeros_like(row), row, column]) + first)
        first += max(grid.height, grid.width)
    return torch.cat(axes, dim=1)


def _of_causal(family: str, body: Any, lm_head: Any, code_ids: IntArray, grid: Grid, **options: Any) -> LiveModel:
    """A model whose codes are part of its vocabulary: embeddings and head are slices of the language model's."""
    table = body.get_input_embeddings()
    ids = torch.from_numpy(code_ids)

    def embed_codes(codes: Tensor) -> Tensor:
        embeds: Tensor = table(ids.to(codes.device)[codes])
        return embeds

    def head(hidden: Tensor) -> Tensor:
        weight = lm_head.weight
        return torch.nn.functional.linear(hidden.to(weight.device), _rows(weight, ids))

    return LiveModel(
        family=family,
        body=body,
        config=body.config,
        grid=grid,
        codes=len(code_ids),
        vocabulary=table.num_embeddings,
        embed_codes=embed_codes,
        embed_ids=table,
        head=head,
        code_ids=code_ids,
        **options,
    )


def _rows(weight: Tensor, ids: Tensor) -> Tensor:
    """Rows of a matrix: a view where they follow each other, else a copy that is made once."""
    first, count = int(ids[0]), len(ids)
    if bool((ids == torch.arange(first, first + count)).all()):
        return weight[first : first + count]
    key = (weight.data_ptr(), weight.dtype, first, count)
    if key not in _ROWS:
        _ROWS.clear()
        _ROWS[key] = weight[ids.to(weight.device)]
    return _ROWS[key]


_ROWS: Final[dict[Any, Tensor]] = {}


def _code_ids(img2bpe: Mapping[int, int], family: str) -> IntArray:
    """[V]: the vocabulary id of each code; LiveModelError unless codes are 0 to V - 1."""
    if sorted(img2bpe) != list(range(len(img2bpe))) or not img2bpe:
        raise LiveModelError(
            f"{family}: expected the vocabulary_map to name image codes 0 to V - 1, got {len(img2bpe)} codes from "
            f"{min(img2bpe, default=None)} to {max(img2bpe, default=None)}; load the whole configuration of the model"
        )
    return np.array([img2bpe[code] for code in range(len(img2bpe))], dtype=np.int64)


def _chameleon_start(model: Any, processor: Any) -> Ids:
    """The id that begins a picture of Chameleon."""
    names: Mapping[str, int] = model.config.vocabulary_map
    start = names.get("<racm3:break>")
    return (
        _token_id(processor, "image_start_token", "Chameleon", "'<racm3:break>' in vocabulary_map")
        if start is None
        else start,
    )


def _token_id(processor: Any, name: str, family: str, elsewhere: str) -> int:
    """The id of a token that a processor names; LiveModelError where there is no processor."""
    token = getattr(processor, name, None)
    if token is None:
        raise LiveModelError(
            f"{family}: expected {elsewhere}, which tells the id that begins a picture; it is missing, so pass the "
            "model's processor"
        )
    return int(processor.tokenizer.convert_tokens_to_ids(token))


def _codebook(vqmodel: Any) -> FloatArray | None:
    """[V, E] of a tokenizer in `transformers`."""
    quantizer = getattr(vqmodel, "quantize", None)
    embedding = getattr(quantizer, "embedding", None)
    if embedding is None:
        return None
    codebook: FloatArray = embedding.weight.detach().float().cpu().numpy()
    return codebook


def _fixed_grid(given: Grid | None, own: Grid, family: str) -> Grid:
    if given is not None and given != own:
        raise LiveModelError(
            f"{family}: grid: expected {own.height} x {own.width}, the only one it draws, got "
            f"{given.height} x {given.width}; leave it out"
        )
    return own


def _ids(encoded: Any) -> list[int]:
    """The ids of one text, from what a tokenizer or processor returns."""
    ids = encoded["input_ids"]
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return list(ids[0]) if ids and isinstance(ids[0], list | tuple) else ids


def _on(model: Any, codes: IntArray) -> Tensor:
    return torch.as_tensor(codes, device=model.device)


@torch.inference_mode()
def _pixels(image: Tensor) -> NDArray[np.uint8]:
    """Bytes [H, W, 3] of an image [H, W, 3] in -1 to 1."""
    scaled = (image.detach().float().cpu() * 127.5 + 127.5).round().clamp(0, 255)
    pixels: NDArray[np.uint8] = scaled.to(torch.uint8).numpy()
    return pixels


FAMILIES: Final[Mapping[str, Family]] = {
    "janus": janus,
    "emu3": emu3,
    "chameleon": chameleon,
    "lumina-mgpt": lumina_mgpt,
    "glm-image": glm_image,
    "llamagen": llamagen,
}
"""Families by name, as `--family` takes them."""

_BY_CLASS: Final[Mapping[str, str]] = {
    "JanusForConditionalGeneration": "janus",
    "Emu3ForConditionalGeneration": "emu3",
    "ChameleonForConditionalGeneration": "chameleon",
    "GlmImageForConditionalGeneration": "glm-image",
    "Decoder": "llamagen",
}


def family_of(model: Any, family: str | Family | None = None) -> Family:
    """The family of a model: the one that was named, or that of its class.

    Raises:
        LiveModelError: No family of this name or class.
    """
    if callable(family):
        return family
    if family is not None:
        if family not in FAMILIES:
            raise LiveModelError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}")
        return FAMILIES[family]
    classes = [each.__name__ for each in type(model).__mro__]
    for name in classes:
        if name in _BY_CLASS:
            return FAMILIES[_BY_CLASS[name]]
    raise LiveModelError(
        f"model: expected one of {', '.join(_BY_CLASS)}, got {classes[0]}; pass family=..., a function of 20 lines "
        "that docs/how-to/use-a-live-model.md shows"
    )
