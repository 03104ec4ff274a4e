"""Options that the recipes of `underpaint train` share."""

from enum import IntEnum
from pathlib import Path
from typing import Annotated

import torch
import typer

Out = Annotated[Path | None, typer.Option(help="Folder of the run; the default is under runs/.")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps in all.", min=1)]
Minutes = Annotated[float | None, typer.Option(help="Stop after this long; the schedule adapts.", min=0.01)]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Seed = Annotated[int, typer.Option(help="Seed of weights and batches.", min=0)]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1)]

InitFrom = Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint.")]
TokenizerFrom = Annotated[Path, typer.Option("--tokenizer", help="Checkpoint of the tokenizer.")]
Tokens = Annotated[Path, typer.Option(help="Folder of the encoded scenes.")]
TOKENIZER = Path("runs/tokenizer/checkpoint.pt")
TOKENS = Path("runs/tokens")


class Pixels(IntEnum):
    """Sides of a picture that the embedded models know."""

    small = 64
    large = 128


Resolution = Annotated[Pixels, typer.Option(help="Side of the pictures in pixels: 64 or 128.")]


def prepare(device: str, threads: int | None) -> None:
    """Take `threads` of the CPU; ValueError on a device that is not there."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"--device is cpu or cuda; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this PyTorch sees no GPU; use --device cpu")
    if threads is not None:
        torch.set_num_threads(threads)
