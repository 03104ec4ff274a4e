"""Live models family by family: equal tokens, passes and seconds beside `model.generate`, and one layer at full width.

Run: python -m benchmarks.live_families [--families NAMES] [--steps N] [--out FILE]

Models are tiny, with random weights. Each draws one picture by its own `generate` at temperature 0, and by every
lossless method. Then it learns pictures whose lines are of one code, a drafter learns to draft for it, and both are
timed. One layer of the width that the family's configuration has by default runs passes of 1 and of 16 positions over
1,024 in its cache, in float32. No published weights are needed.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
import transformers

from benchmarks.report import at_least, finish, options, parse, refusing
from tests.runtime.live.tiny_models import CODES, MODELS, SIDE, TinyModel, family_for, glm_image, grid_of
from underpaint.algos.protocols import Grid
from underpaint.runtime.live import glm_image as glm
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.memory import StaticCache
from underpaint.runtime.live.model import LiveModel
from underpaint.training.distillation import DrafterSettings
from underpaint.training.live_drafter import draw_pictures, teach, train_live_drafter
from underpaint.training.loop import LoopSettings
from underpaint.training.shown import shown

LOSSLESS: Final = ("sjd", "scd-maximal", "scd-gumbel", "sjd-pac", "jacobi-lookup", "eagle2", "adt")
PREVIEW: Final = Grid(4, 3)
EXACT: Final = ("rule=exact", "reject=raster", "window=none", "k=none")
WHOLE: Final = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}
GUIDANCE: Final = {"glm-image": 1.0}
"""Of families that are drawn without; 3 for all others."""
CONTEXT: Final = 1024
BODIES: Final[dict[str, Any]] = {
    "janus": lambda: transformers.LlamaConfig(),
    "emu3": lambda: transformers.Emu3TextConfig(),
    "chameleon": lambda: transformers.ChameleonConfig(vocabulary_map={"<image>": 1}),
    "lumina-mgpt": lambda: transformers.ChameleonConfig(vocabulary_map={"<image>": 1}),
    "lumina-mgpt-2": lambda: transformers.ChameleonConfig(vocabulary_map={"<image>": 1}),
    "glm-image": lambda: transformers.GlmImageTextConfig(
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [8, 12, 12],
        }
    ),
    "liquid": lambda: transformers.GemmaConfig(),
    "simplear": lambda: transformers.Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2
    ),
    "emu3.5": lambda: transformers.Qwen3Config(
        hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    ),
}
"""Configurations of full width, of one layer; SimpleAR's of its 1.5B model, Emu3.5's of its authors' configuration."""


def opened(name: str) -> tuple[TinyModel, dict[str, Any]]:
    """A tiny model, and what `accelerate` needs to know of it. GLM-Image's preview is smaller than its picture here."""
    if name == "glm-image":
        return glm_image(PREVIEW), {"family": partial(glm.glm_image, preview=PREVIEW), "grid": grid_of(name)}
    return MODELS[name](), {"family": family_for(name), "grid": grid_of(name)}


def pictures(live: LiveModel, step: int, count: int, side: int = SIDE) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[count, cells]: lines of `side` cells with one code each, one cell in twenty changed."""
    random = np.random.default_rng(step)
    lines = np.repeat(random.integers(0, CODES, (count, -(-live.grid.cells // side))), side, axis=1)
    drawn = lines[:, : live.grid.cells]
    return np.where(random.random(drawn.shape) < 0.05, random.integers(0, CODES, drawn.shape), drawn)


def train(live: LiveModel, tiny: TinyModel, steps: int, rate: float = 4e-3, side: int = SIDE) -> None:
    """Teach a tiny model such pictures, under its prompt and under the second row's."""
    model, prompts = tiny.model, [tiny.prompt, tiny.negative or tiny.prompt] * 4
    learnt = [weight for weight in model.parameters() if weight.is_floating_point()]
    with torch.no_grad():
        for weight in learnt:
            weight.mul_(0.3 if weight.ndim > 1 else 1.0)
    optimiser = torch.optim.AdamW(learnt, rate, weight_decay=0.0)
    for step in range(steps):
        codes = pictures(live, step, len(prompts), side)
        logits = teach(live, prompts, codes).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.as_tensor(codes).flatten())
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    model.eval()


def drafter_of(tiny: TinyModel, about: dict[str, Any], steps: int, out: Path) -> Path:
    """The folder of a drafter that was trained on sixteen pictures of the model."""
    fast = accelerate(tiny.model, **about)
    prompts = [(tiny.prompt[0], 100 + each, *tiny.prompt[2:]) for each in range(16)]
    drawn = draw_pictures(fast, prompts, out)
    loop = LoopSettings(steps=steps, learning_rate=3e-3, warmup_steps=5, validate_every=steps, log_every=steps)
    train_live_drafter(fast.live, drawn, out, settings=DrafterSettings(batch=4, validated=4), loop=loop)
    return out


def drawn_by(tiny: TinyModel, method: str, about: dict[str, Any], guidance: float, **more: Any) -> dict[str, Any]:
    """A picture by a method: its passes, its seconds (the second of two), its ids."""
    fast = accelerate(tiny.model, method, **about, **more)
    asked = {**WHOLE, "guidance": guidance, "negative_prompt": tiny.negative or None}
    made = [fast.generate(tiny.prompt, **asked) for _ in range(2)][1]
    return {"passes": made.drawing.target_nfe, "seconds": made.drawing.seconds, "ids": made.token_ids.tolist()}


def one_family(name: str, steps: int) -> dict[str, Any]:
    """The row of a family."""
    (tiny, about), guidance = opened(name), GUIDANCE.get(name, 3.0)
    with tempfile.TemporaryDirectory() as folder:
        drafter = drafter_of(tiny, about, 2, Path(folder) / "random")
        own = tiny.generate(tiny.prompt, guidance)
        methods = {
            method: drawn_by(tiny, method, about, guidance, drafter=drafter)["ids"] for method in ("ar", *LOSSLESS)
        }
        equal = [method for method, ids in methods.items() if ids[: len(own)] == own]
        train(accelerate(tiny.model, **about).live, tiny, steps)
        drafter = drafter_of(tiny, about, steps, Path(folder) / "trained")
        started = perf_counter()
        own = tiny.generate(tiny.prompt, guidance)
        row: dict[str, Any] = {"family": name, "cells": accelerate(tiny.model, **about).live.grid.cells}
        row |= {"methods": len(methods), "equal": len(equal), "generate_seconds": perf_counter() - started}
        timed = {"ar": {}, "jacobi-lookup": {}, "eagle2": {"drafter": drafter}}
        timed |= {"mulo": {"settings": EXACT}} if name == "glm-image" else {}
        for method, more in timed.items():
            made = drawn_by(tiny, method, about, guidance, **more)
            key = method.replace("-", "_")
            row |= {f"{key}_passes": made["passes"], f"{key}_seconds": made["seconds"]}
            row[f"{key}_equal"] = made["ids"][: len(own)] == own
    return row | one_layer(name)


@torch.inference_mode()
def one_layer(name: str) -> dict[str, Any]:
    """One layer at full width: bytes of its weights, bytes of the cache a position, milliseconds of passes."""
    config = BODIES[name]()
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 64, 0
    live = accelerate(MODELS[name]().model, family=family_for(name), grid=grid_of(name)).live
    body = type(live.body)(config).eval()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    sizes = type("Sizes", (), {"capacity": CONTEXT + 16, "kv_heads": heads, "head_dim": width, "layers": 1})
    cache = StaticCache(sizes, 1, torch.zeros(1))  # type: ignore[arg-type]
    cache.grow(CONTEXT)
    found = {"width": config.hidden_size, "layer_bytes": sum(one.nbytes for one in body.layers.parameters())}
    for count in (1, 16):
        embeds = torch.randn(1, count, config.hidden_size)
        places = torch.arange(CONTEXT, CONTEXT + count).expand(3 if name == "glm-image" else 1, -1)[..., None, :]
        mask = torch.zeros(1, 1, count, CONTEXT + count)
        seconds = []
        for _ in range(5):
            started = perf_counter()
            body(
                inputs_embeds=embeds,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
                position_ids=places if name == "glm-image" else places[0],
            )
            seconds.append(perf_counter() - started)
        found[f"layer_ms_{count}"] = 1000 * float(np.median(seconds))
    return found | {"cache_bytes": 2 * heads * width * 4}


def main(arguments: list[str] | None = None) -> None:
    parser = options("live_families", __doc__)
    parser.add_argument("--families", default=",".join(BODIES), help="names, with commas between")
    parser.add_argument("--steps", type=at_least(2), default=60, help="training steps of models and of drafters")
    asked = parse(parser, arguments)
    with refusing(parser):
        names = asked.families.split(",")
        unknown = [name for name in names if name not in BODIES]
        if unknown:
            raise ValueError(f"--families: expected some of {', '.join(BODIES)}, got {unknown[0]!r}")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with shown(False):
        rows = [one_family(name, asked.steps) for name in names]
    finish({"benchmark": "live_families", "steps": asked.steps, "context": CONTEXT, "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
