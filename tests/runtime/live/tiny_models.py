"""Image models of `transformers` at tiny sizes with random weights, each with its own greedy `generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

CODES, SIDE = 64, 6
PAD, BEGIN, START, EOL = 2, 0, 1, 95


class TinyModel(NamedTuple):
    """A model; a prompt that begins a picture; how its own `generate` draws greedily under guidance."""

    model: Any
    prompt: tuple[int, ...]
    negative: tuple[int, ...]
    generate: Callable[[tuple[int, ...], float], list[int]]


def randomise(model: Any, scale: float = 0.2, seed: int = 1) -> Any:
    """The same random weights on every machine."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.state_dict().items():
            if weight.is_floating_point() and "running" not in name:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(1 + 0.1 * noise if "norm" in name and name.endswith("weight") else scale * noise)
    return model.eval()


def janus() -> TinyModel:
    example = run_path(str(Path(__file__).parents[3] / "docs/examples/random_janus.py"))
    model = randomise(example["random_janus"](SIDE, CODES, width=64, layers=2, vocabulary=128))

    def generate(prompt: tuple[int, ...], guidance: float) -> list[int]:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_mode="image", do_sample=False, guidance_scale=guidance
        )
        return list(output[0].tolist())

    return TinyModel(model, (BEGIN, 103, 110, START), (BEGIN, PAD, PAD, START), generate)


def chameleon(lumina: bool = False) -> TinyModel:
    names = {"<image>": 120, "<racm3:break>": 121}
    names |= {f"IMGIMG{chr(65 + code // 10)}{chr(65 + code % 10)}Z": 4 + (7 * code) % CODES for code in range(CODES)}
    if lumina:
        names |= {"<reserved08799>": EOL, f"<reserved{8800 + SIDE // 2:05d}>": 96, "<eoss>": 122}
    vq = {
        "embed_dim": 8,
        "num_embeddings": CODES,
        "latent_channels": 8,
        "base_channels": 32,
        "channel_multiplier": [1],
        "num_res_blocks": 1,
        "resolution": 8,
    }
    config = transformers.ChameleonConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        swin_norm=True,
        vocabulary_map=names,
        bos_token_id=0,
        eos_token_id=3,
        pad_token_id=1,
        vq_config=vq,
    )
    model = randomise(transformers.ChameleonForConditionalGeneration(config))
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []  # transformers' own generate forbids these ids
    image = [4 + (7 * code) % CODES for code in range(CODES)]
    model.model.vocabulary_mapping.__dict__["bpe2img"] = {vocab: code for code, vocab in enumerate(image)}
    if lumina:
        return _causal(model, image, (0, 103, 110, 121, 96, 96), (121, 96, 96), EOL)
    return _causal(model, image, (0, 103, 110, 121), (0, 121), None)


def lumina() -> TinyModel:
    return chameleon(lumina=True)


def emu3() -> TinyModel:
    names = {"<image>": 120, "<|extra_200|>": EOL, "<|image token|>": 121}
    names |= {f"<|visual token {code:06d}|>": 20 + code for code in range(CODES)}
    text = {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "pad_token_id": PAD,
        "bos_token_id": 0,
        "eos_token_id": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "attention_dropout": 0.0,
    }
    vq = {
        "codebook_size": CODES,
        "embed_dim": 4,
        "latent_channels": 4,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "attn_resolutions": [],
        "hidden_size": 32,
    }
    config = transformers.Emu3Config(text_config=text, vq_config=vq, vocabulary_map=names)
    model = randomise(transformers.Emu3ForConditionalGeneration(config))
    mapping = model.model.vocabulary_mapping
    return _causal(
        model,
        [mapping.img2bpe[code] for code in range(CODES)],
        (0, 103, 110, 121),
        (0, 99, 98, 97, 96, 121),
        mapping.eol_token_id,
    )


def glm_image(small: Any = None) -> TinyModel:
    """small: the preview's grid; None for the processor's."""
    text = {
        "vocab_size": 160,
        "vision_vocab_size": CODES + 8,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 150,
        "eos_token_id": CODES + 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
    }
    vision = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "image_size": 64, "patch_size": 8}
    config = transformers.GlmImageConfig(
        text_config=text,
        vision_config=vision,
        vq_config={"embed_dim": 16, "num_embeddings": CODES, "latent_channels": 16},
        image_start_token_id=CODES,
        image_end_token_id=CODES + 1,
        image_token_id=155,
    )
    model = randomise(transformers.GlmImageForConditionalGeneration(config))
    prompt = (100, 101, 102, 120, CODES)

    def generate(prompt: tuple[int, ...], guidance: float) -> list[int]:
        from underpaint.algos.protocols import Grid
        from underpaint.runtime.live.glm_image import glm_image_preview

        large = Grid(8, 6)
        preview = small or glm_image_preview(large)
        count = preview.cells + large.cells
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            image_grid_thw=torch.tensor([[1, *large], [1, *preview]]),
            images_per_sample=torch.tensor([2]),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            prefix_allowed_tokens_fn=lambda *_: list(range(CODES)),
            eos_token_id=None,
            pad_token_id=150,
        )
        return list(output[0, len(prompt) :].tolist())

    return TinyModel(model, prompt, (), generate)


def _causal(
    model: Any, image: list[int], prompt: tuple[int, ...], negative: tuple[int, ...], eol: int | None, side: int = SIDE
) -> TinyModel:
    def generate(prompt: tuple[int, ...], guidance: float) -> list[int]:
        def allowed(_: int, sequence: Any) -> list[int]:
            drawn_count = len(sequence) - len(prompt)
            return [eol] if eol is not None and (drawn_count + 1) % (side + 1) == 0 else image

        count = side * side + (0 if eol is None else side - 1)
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            guidance_scale=guidance,
            negative_prompt_ids=torch.tensor([negative]),
            prefix_allowed_tokens_fn=allowed,
            eos_token_id=None,
            pad_token_id=PAD,
        )
        return list(output[0, len(prompt) :].tolist())

    return TinyModel(model, prompt, negative, generate)


TEXT = {
    "vocab_size": 192,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "head_dim": 32,
    "tie_word_embeddings": False,
    "pad_token_id": PAD,
    "bos_token_id": BEGIN,
    "eos_token_id": 3,
}
"""Of language models whose last ids are image codes."""
NARROW = {name: value for name, value in TEXT.items() if name != "head_dim"}
LAST = list(range(TEXT["vocab_size"] - CODES, TEXT["vocab_size"]))


def liquid() -> TinyModel:
    model = randomise(transformers.GemmaForCausalLM(transformers.GemmaConfig(**TEXT)))
    return _causal(model, LAST, (BEGIN, 103, 110, 7), (BEGIN, 7), None)


def simplear() -> TinyModel:
    model = randomise(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**NARROW)))
    return _causal(model, LAST, (BEGIN, 103, 110, 121), (BEGIN, 50, 60, 70, 121), None)


def emu3_5() -> TinyModel:
    model = randomise(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**TEXT)))
    return _causal(model, LAST, (BEGIN, 103, 110, 120, 6, 121), (BEGIN, 120, 6, 121), EOL)


def lumina_2() -> TinyModel:
    names = {"<racm3:break>": 121, "<reserved08802>": 96, "<reserved08799>": EOL, "<eoss>": 97, "<image>": 98}
    vq = {"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 8, "base_channels": 32, "channel_multiplier": [1]}
    config = transformers.ChameleonConfig(
        **NARROW, vocabulary_map=names, vq_config={**vq, "num_res_blocks": 1, "resolution": 8}
    )
    model = randomise(transformers.ChameleonForConditionalGeneration(config))
    model.model.vocabulary_mapping.__dict__["image_tokens"] = []  # transformers' own generate forbids these ids
    model.model.vocabulary_mapping.__dict__["bpe2img"] = {}
    prompt = (BEGIN, 103, 110, 121, 96, 96)
    return _causal(model, LAST, prompt, (121, 96, 96), EOL, side=8)


def family_for(name: str) -> Any:
    """A family as tiny models need it: with as many codes, and marks that their vocabulary holds."""
    from functools import partial

    from underpaint.runtime.live import causal_families as families

    sized = {
        "liquid": partial(families.liquid, codes=CODES),
        "simplear": partial(families.simplear, codes=CODES),
        "emu3.5": partial(families.emu3_5, codes=CODES, marks=(120, 121, EOL, 97)),
        "lumina-mgpt-2": partial(families.lumina_mgpt_2, first_code=LAST[0], codes=CODES),
    }
    return sized.get(name, name)


MODELS: dict[str, Callable[[], TinyModel]] = {
    "janus": janus,
    "chameleon": chameleon,
    "lumina-mgpt": lumina,
    "emu3": emu3,
    "glm-image": glm_image,
    "liquid": liquid,
    "simplear": simplear,
    "emu3.5": emu3_5,
    "lumina-mgpt-2": lumina_2,
}


def grid_of(family: str) -> tuple[int, int] | None:
    return {"janus": None, "glm-image": (8, 6), "lumina-mgpt-2": (8, 8)}.get(family, (SIDE, SIDE))


def as_array(ids: list[int]) -> np.ndarray[Any, Any]:
    return np.array(ids, dtype=np.int64)
