"""Families whose models are language models with image codes at the end of their vocabulary.

These models use the classes of text models, so their family must be named: `family="liquid"`. Sampling settings are
the defaults of the authors' public code.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.runtime.live.model import Ids, LiveModel, LiveModelError
from underpaint.runtime.live.parts import of_causal, prompt_ids

_SIMPLEAR_NEGATIVE: Final = (
    "An image of aerial view, overexposed, low quality, deformation, a poor composition, bad hands, bad teeth, bad "
    "eyes, bad limbs, distortion"
)
_EMU35_START: Final = (151852, 151851)
"""The ids that begin a picture of Emu3.5 and its tokens; the picture's size stands between them, as text."""


def liquid(
    model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024, codes: int = 8192
) -> LiveModel:
    """Liquid 7B (arXiv 2412.04332) in Gemma's class: guidance 7, temperature 0.99, top-k 4096, top-p 0.96.

    The unconditional row is "<unconditional><boi>"; without a tokenizer, it is the prompt's first and last ids.
    """
    start = (7,)
    processor = _knowing("<boi>", processor)

    def ids_of(text: str) -> Ids:
        return tuple(prompt_ids(_tokenizer(processor)(text)))

    def uncond(ids: Ids) -> Ids:
        return (ids[0], ids[-1]) if processor is None else ids_of("<unconditional><boi>")

    return of_causal(
        "liquid",
        model.model,
        model.lm_head,
        _last_ids(model, codes, "liquid"),
        grid or Grid(32, 32),
        sampling=SamplingParams(guidance=7.0, temperature=0.99, top_k=4096, top_p=0.96),
        uncond=uncond,
        image_start=start,
        encode=lambda _, text: ids_of(f"{text} Generate an image based on this description.<boi>"),
        longest_prompt=longest_prompt,
    )


def simplear(
    model: Any, processor: Any = None, *, grid: Grid | None = None, longest_prompt: int = 1024, codes: int = 64000
) -> LiveModel:
    """SimpleAR 0.5B and 1.5B (arXiv 2504.11455) in Qwen2's class: guidance 6, all codes.

    Codes follow the tokenizer's ids; without a tokenizer, they are the last ids of the vocabulary. The unconditional
    row is the authors' negative prompt; without a tokenizer, it is the prompt's first and last ids.
    """
    processor = _knowing("<|soi|>", processor)
    first = None if processor is None else len(_tokenizer(processor))

    def ids_of(text: str) -> Ids:
        return tuple(prompt_ids(_tokenizer(processor)(f"<|t2i|>{text}<|soi|>")))

    def uncond(ids: Ids) -> Ids:
        return (ids[0], ids[-1]) if processor is None else ids_of(_SIMPLEAR_NEGATIVE)

    return of_causal(
        "simplear",
        model.model,
        model.lm_head,
        _last_ids(model, codes, "simplear", first),
        grid or Grid(64, 64),
        sampling=SamplingParams(guidance=6.0),
        uncond=uncond,
        image_start=() if processor is None else ids_of("")[-1:],
        encode=lambda _, text: ids_of(f"A highly realistic image of {text}"),
        longest_prompt=longest_prompt,
    )


def lumina_mgpt_2(
    model: Any,
    processor: Any = None,
    *,
    grid: Grid | None = None,
    longest_prompt: int = 1024,
    first_code: int = 155000,
    codes: int = 16384,
) -> LiveModel:
    """Lumina-mGPT 2.0 (arXiv 2507.17801) in Chameleon's class: guidance 4, top-k 4096; each line has an end token.

    A picture begins with its start token, height and width, in units of 32 pixels (4 cells); the unconditional row
    keeps only these three ids. Their ids come from the tokenizer, or from the model's vocabulary_map.
    """
    grid = grid or Grid(96, 96)
    if grid.height % 4 or grid.width % 4:
        raise LiveModelError(
            f"lumina-mgpt-2: grid: expected sides that 4 divides, got {grid.height} x {grid.width}; use 96x96"
        )
    names = dict(getattr(model.config, "vocabulary_map", None) or {})
    if _knowing("<eoss>", processor) is not None:
        names |= _tokenizer(processor).get_vocab()
    marks = ["<racm3:break>", *(f"<reserved{8800 + side // 4:05d}>" for side in grid), "<reserved08799>", "<eoss>"]
    missing = [mark for mark in marks if mark not in names]
    if missing:
        raise LiveModelError(
            f"lumina-mgpt-2: expected {missing[0]} in the tokenizer or the model's vocabulary_map, by which pictures, "
            "sizes and lines are marked, got none; pass the model's tokenizer"
        )
    start, height, width, eol, closing = (names[mark] for mark in marks)
    return of_causal(
        "lumina-mgpt-2",
        model.model,
        model.lm_head,
        np.arange(first_code, first_code + codes),
        grid,
        sampling=SamplingParams(guidance=4.0, top_k=4096),
        eol_id=eol,
        closing=(closing,),
        uncond=lambda ids: ids[-3:],
        image_start=(start, height, width),
        longest_prompt=longest_prompt,
    )


def emu3_5(
    model: Any,
    processor: Any = None,
    *,
    grid: Grid | None = None,
    longest_prompt: int = 1024,
    codes: int = 131072,
    marks: tuple[int, int, int, int] = (*_EMU35_START, 151846, 151853),
) -> LiveModel:
    """Return Emu3.5 (arXiv 2510.26583) in Qwen3's class, which has the same layers: guidance 5, top-k 5120.

    Each line has an end token, except the last, which the picture's end token follows. The unconditional row is the
    template without a text; without a tokenizer, it is the prompt from the picture's begin on.

    Args:
        model: The model in `transformers`.
        processor: Its tokenizer, or a processor with it; None if prompts are given as ids.
        grid: The grid of the picture's codes; None takes 64 x 64.
        longest_prompt: Maximum number of ids in a prompt.
        codes: The number of image codes, which are the last ids of the vocabulary.
        marks: Ids of the picture's begin, its tokens' begin, a line's end and the picture's end.
    """
    grid = grid or Grid(64, 64)
    begin, tokens, eol, end = marks
    processor = _knowing("<|extra_203|>", processor)

    def ids_of(template: str) -> Ids:
        encode = _tokenizer(processor).encode
        size = encode(f"{grid.height}*{grid.width}", add_special_tokens=False)
        return (*encode(template, add_special_tokens=False), begin, *size, tokens)

    def uncond(ids: Ids) -> Ids:
        if processor is not None:
            return ids_of(_emu35_template("", ""))
        return ids[len(ids) - 1 - ids[::-1].index(begin) :] if begin in ids else ids[-1:]

    return of_causal(
        "emu3.5",
        model.model,
        model.lm_head,
        _last_ids(model, codes, "emu3.5"),
        grid,
        sampling=SamplingParams(guidance=5.0, top_k=5120),
        eol_id=eol,
        last_line_ends=False,
        closing=(end,),
        uncond=uncond,
        image_start=(tokens,),
        encode=lambda _, text: ids_of(_emu35_template(" for t2i task", text)),
        longest_prompt=longest_prompt,
    )


def _emu35_template(task: str, text: str) -> str:
    return f"<|extra_203|>You are a helpful assistant{task}. USER: {text} ASSISTANT: <|extra_100|>"


def _tokenizer(processor: Any) -> Any:
    """Return a tokenizer, or the tokenizer inside a processor."""
    return getattr(processor, "tokenizer", processor)


def _knowing(mark: str, processor: Any) -> Any:
    """Return the tokenizer or processor if it knows a family's special token, else None."""
    return processor if processor is not None and mark in _tokenizer(processor).get_vocab() else None


def _last_ids(model: Any, codes: int, family: str, first: int | None = None) -> IntArray:
    """The code ids [codes], from `first` on or the vocabulary's last; raises LiveModelError if there are fewer."""
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    first = vocabulary - codes if first is None else first
    if not 0 < first <= vocabulary - codes:
        raise LiveModelError(
            f"{family}: expected {codes:,} image codes behind the text's ids, got a vocabulary of {vocabulary:,} ids; "
            "name the family of this model"
        )
    return np.arange(first, first + codes)


CLASSES: Final = {"simplear": "Qwen2ForCausalLM", "emu3.5": "Qwen3ForCausalLM"}
"""The `transformers` class that loads a model whose config names the authors' own class, by family."""
