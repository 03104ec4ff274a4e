"""The shipped folder with a small target and drafter of random weights, for tests that ask what a command does.

Grids, codes, words, tokenizer, judge and samplers are the shipped ones. A pass of the shipped target reads 100 MB of
weights; two processes that do so at once take more than twice as long.
"""

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import torch

from tests.models.tiny import save_target
from underpaint.export.trained_models import export_all
from underpaint.models.text import CaptionedTarget, new_drafter
from underpaint.training.grids import STRIDE
from underpaint.training.loop import CHECKPOINT, save_atomically
from underpaint.training.target import CONFIG
from underpaint.zoo.load import FOLDER
from underpaint.zoo.resolutions import SHIPPED_RESOLUTIONS
from underpaint.zoo.textured_prompts import TEXTURED_WORDS

SMALL = replace(CONFIG, dim=64, layers=2, heads=2, hidden=64, kv_heads=0, head_dim=0)
"""The target's sizes."""


def write_small_models(models: Path, runs: Path) -> None:
    """Make `models` a folder of the shipped models but for target and drafter. runs: a new folder for checkpoints."""
    shutil.copytree(FOLDER, models, ignore=shutil.ignore_patterns("*.py", "__pycache__"), dirs_exist_ok=True)
    torch.manual_seed(0)
    target = CaptionedTarget(SMALL, caption_dim=32, words=TEXTURED_WORDS)
    torch.nn.init.normal_(target.decoder.head.weight, std=0.2)
    grids = [side // STRIDE for side in SHIPPED_RESOLUTIONS]
    save_target(runs / "guided" / CHECKPOINT, target, grids)
    drafter = new_drafter(target.decoder)
    described = {"kind": "drafter", "grids": grids, "decoder": asdict(drafter.config)}
    save_atomically({"config": described, "model": drafter.state_dict()}, runs / "drafter" / CHECKPOINT)
    export_all(runs, models, ("target", "drafter"))
