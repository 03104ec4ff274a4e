"""A drafter of a live target that is large enough to cost more than the host's work: passes and paired seconds.

Run: python -m benchmarks.live_drafter [FOLDER] [--steps N] [--drafter-steps N] [--pictures N] [--out FILE]

The target is an Emu3 of ten layers, 512 wide, with 64 codes and 12 x 12 cells. It learns pictures whose lines are of
one code, one cell in twenty changed; a drafter then learns from pictures that the target draws. Both stay in FOLDER
(runs/live-drafter), so a second run only measures. Pictures are drawn under guidance at temperature 1, by plain
decoding and by each method in turn, on one thread. Intervals: 95 %, bootstrap over pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers

from benchmarks.live_families import train
from benchmarks.report import at_least, finish, options, parse, refusing
from tests.runtime.live.tiny_models import CODES, EOL, TinyModel, randomise
from underpaint.artifacts.files import replacing
from underpaint.runtime.evaluation.paired import speedup
from underpaint.runtime.live.generate import AcceleratedModel, accelerate
from underpaint.training.distillation import DrafterSettings
from underpaint.training.live_drafter import draw_pictures, train_live_drafter
from underpaint.training.loop import LoopSettings
from underpaint.training.shown import shown

WIDTH: Final = 512
LAYERS: Final = 10
GRID: Final = (12, 12)
PROMPT: Final = (0, 103, 110, 121)
_FIRST_SEED: Final = 100
"""Settings were chosen on the pictures of lower seeds."""
DRAWN: Final = 24
"""Pictures that the drafter learns from; four more are kept apart."""
METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "speculative": ("length=2",),
    "eagle2": ("depth=2", "top_k=1", "total_tokens=2"),
}
"""Methods and settings: few nodes, as every position of a pass costs time on a CPU."""


def target() -> TinyModel:
    """The target with random weights."""
    names = {"<image>": 120, "<|extra_200|>": EOL, "<|image token|>": 121}
    names |= {f"<|visual token {code:06d}|>": 20 + code for code in range(CODES)}
    text = {
        "vocab_size": 128,
        "hidden_size": WIDTH,
        "intermediate_size": 1024,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 2,
        "bos_token_id": 0,
        "eos_token_id": 3,
        "attention_dropout": 0.0,
    }
    vq = {"codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "hidden_size": 32}
    vq |= {"channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []}
    config = transformers.Emu3Config(text_config=text, vq_config=vq, vocabulary_map=names)
    model = randomise(transformers.Emu3ForConditionalGeneration(config), scale=0.1)
    return TinyModel(model, PROMPT, (0, 121), lambda *_: [])


def opened(tiny: TinyModel, method: str, grid: tuple[int, int] = GRID, **more: Any) -> AcceleratedModel:
    return accelerate(tiny.model, method, grid=grid, longest_prompt=16, **more)


def target_options(parser: argparse.ArgumentParser) -> None:
    """The folder of the target, and how long it trains."""
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/live-drafter"))
    parser.add_argument("--steps", type=at_least(2), default=40, help="training steps of the target")


def trained_target(parser: argparse.ArgumentParser, folder: Path, steps: int) -> TinyModel:
    """The target, trained or read from the folder; all that follows runs on one thread."""
    with refusing(parser):
        folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tiny, path = target(), folder / "target.pt"
    if path.is_file():
        tiny.model.load_state_dict(torch.load(path))
        return tiny
    train(opened(tiny, "ar").live, tiny, steps, 1e-3, GRID[1])
    with replacing(path) as file:
        torch.save(tiny.model.state_dict(), file)
    return tiny


def trained_drafter(tiny: TinyModel, folder: Path, steps: int) -> Path:
    """The folder of the target's drafter; a run that is there goes on."""
    prompts = [(0, 100 + each % 16, 100 + each // 16, 121) for each in range(DRAWN + 4)]
    fast, out = opened(tiny, "jacobi-lookup"), folder / "drafter"
    drawn = draw_pictures(fast, prompts, out)
    loop = LoopSettings(steps=steps, learning_rate=2e-3, warmup_steps=10, validate_every=steps, log_every=steps)
    train_live_drafter(fast.live, drawn, out, settings=DrafterSettings(batch=4, validated=4), loop=loop)
    return out


def main(arguments: list[str] | None = None) -> None:
    parser = options("live_drafter", __doc__)
    target_options(parser)
    parser.add_argument("--drafter-steps", type=at_least(2), default=150, help="training steps of the drafter")
    parser.add_argument("--pictures", type=at_least(2), default=24, help="pictures of each method")
    asked = parse(parser, arguments)
    with shown(False):
        tiny = trained_target(parser, asked.folder, asked.steps)
        drafter = trained_drafter(tiny, asked.folder, asked.drafter_steps)
    models = {"ar": opened(tiny, "ar")}
    models |= {name: opened(tiny, name, settings=own, drafter=drafter) for name, own in METHODS.items()}
    for fast in models.values():
        fast.generate(PROMPT, seed=1000)
    drawings = {name: [] for name in models}  # type: dict[str, list[Any]]
    for seed in range(_FIRST_SEED, _FIRST_SEED + asked.pictures):
        for name, fast in models.items():
            drawings[name].append(fast.generate(PROMPT, seed=seed).drawing)
    rows = []
    for name, own in drawings.items():
        faster = speedup([one.seconds for one in drawings["ar"]], [one.seconds for one in own])
        rows.append(
            {
                "method": name,
                "settings": list(METHODS.get(name, ())),
                "pictures": len(own),
                "passes": float(np.mean([one.target_nfe for one in own])),
                "drafter_passes": float(np.mean([one.drafter_nfe for one in own])),
                "seconds": float(np.mean([one.seconds for one in own])),
                "target_seconds": float(np.mean([one.target_seconds for one in own])),
                **faster.named("speedup"),
            }
        )
    about = {"width": WIDTH, "layers": LAYERS, "grid": list(GRID), "codes": CODES, "steps": asked.steps}
    about["drafter_steps"] = asked.drafter_steps
    finish({"benchmark": "live_drafter", **about, "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
