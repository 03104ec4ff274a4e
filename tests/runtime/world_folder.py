"""A world of textured scenes at tiny sizes, trained for two steps and exported."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.test_textured_world import SETTINGS, MadeUp
from underpaint.export.trained_models import export_all
from underpaint.models.checkpoints import load_whole
from underpaint.training.loop import CHECKPOINT, save_atomically
from underpaint.training.textured_world import textured_stages
from underpaint.training.world import train_world

WIDE = replace(
    SETTINGS,
    vq=replace(SETTINGS.vq, num_res_blocks=1),
    decoder=replace(SETTINGS.decoder, dim=32, hidden=1600, head_dim=0),
)
"""gate_up has 102,400 numbers: enough to be stored in 8 bits."""


def train_tiny(out: Path) -> Path:
    """All stages, two steps each, on one thread; then targets whose distributions say something."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train_world(out, 1, textured_stages(out, MadeUp(), settings=WIDE), {})
    torch.set_num_threads(threads)
    for stage in ("target", "guided"):
        path = out / stage / CHECKPOINT
        saved, random = load_whole(path), torch.Generator().manual_seed(5)
        for name, value in saved["model"].items():
            if value.ndim > 1 and "words" not in name:
                value.copy_(0.3 * torch.randn(value.shape, generator=random))
                if stage == "target" and "layers" in name:
                    value.mul_(0.5)  # codes and head are the same, layers are not
        save_atomically(saved, path)
    return out


def export_tiny(runs: Path, out: Path, *names: str) -> Path:
    """Export all of a tiny world, or `names`; the judge's view is of four scenes."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr("underpaint.export.trained_models.SCENES_PER_HALF", 4)
        small.setattr("underpaint.export.trained_models.TexturedPictures", MadeUp)
        export_all(runs, out, names)
    return out
