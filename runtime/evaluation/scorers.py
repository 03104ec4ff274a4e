"""Writes pictures in the folder layouts that the scorers of GenEval and DPG-Bench read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from PIL import Image

from underpaint.artifacts.manifest import write_beside

DPG_MOST: Final = 4
"""Largest number of pictures per prompt that DPG-Bench reads, from one 2 x 2 file."""


class BenchmarkPrompt(NamedTuple):
    """A prompt of a benchmark with its pictures.

    Attributes:
        key: The prompt's name in the benchmark.
        text: The prompt.
        details: The prompt's line in the benchmark, which the scorer reads.
        pictures: The pictures as PNG.
    """

    key: str
    text: str
    details: Mapping[str, Any]
    pictures: Sequence[bytes]


def write_geneval(folder: Path, prompts: Sequence[BenchmarkPrompt]) -> None:
    """Write the layout of GenEval's README (arXiv 2310.11513): NNNNN/metadata.jsonl and NNNNN/samples/NNNN.png.

    Raises ValueError, before anything is written, if a prompt has no `tag` and `include`.
    """
    for prompt in prompts:
        if not {"tag", "include"} <= set(prompt.details):
            raise ValueError(f"GenEval: {prompt.key} has no 'tag' and 'include'; draw its evaluation_metadata.jsonl")
    for place, prompt in enumerate(prompts):
        prompt_folder = folder / f"{place:05d}"
        line = json.dumps({**prompt.details, "prompt": prompt.text})
        write_beside(prompt_folder / "metadata.jsonl", (line + "\n").encode())
        for turn, picture in enumerate(prompt.pictures):
            write_beside(prompt_folder / "samples" / f"{turn:04d}.png", picture)


def write_dpg(folder: Path, prompts: Sequence[BenchmarkPrompt]) -> int:
    """Write the layout of DPG-Bench (arXiv 2403.05135): ITEM.png, with several pictures of an item in a 2 x 2 grid.

    Returns the side of one picture in pixels, the --resolution of its scorer. Raises ValueError, before anything is
    written, if a prompt has no or too many pictures, or pictures differ in size.
    """
    sides = set()
    for prompt in prompts:
        if not 1 <= len(prompt.pictures) <= DPG_MOST:
            raise ValueError(
                f"DPG-Bench reads 1 to {DPG_MOST} pictures of a prompt, {prompt.key} has {len(prompt.pictures)}"
            )
        if re.fullmatch(r"[\w .-]+", prompt.key) is None:
            raise ValueError(f"DPG-Bench: {prompt.key!r} names no file; draw its own prompts")
        sides |= {Image.open(io.BytesIO(picture)).size for picture in prompt.pictures}
    if len(sides) != 1 or len(set(next(iter(sides)))) != 1:
        raise ValueError(f"DPG-Bench: expected square pictures of one size, got {sorted(sides)}")
    side = next(iter(sides))[0]
    for prompt in prompts:
        write_beside(folder / f"{prompt.key}.png", _two_by_two(prompt.pictures, side))
    return side


def _two_by_two(pictures: Sequence[bytes], side: int) -> bytes:
    if len(pictures) == 1:
        return pictures[0]
    sheet = Image.new("RGB", (2 * side, 2 * side))
    for place, picture in enumerate(pictures):
        row, column = divmod(place, 2)
        sheet.paste(Image.open(io.BytesIO(picture)), (column * side, row * side))
    stream = io.BytesIO()
    sheet.save(stream, "PNG")
    return stream.getvalue()
