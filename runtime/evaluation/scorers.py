"""GenEval and DPG-Bench: pictures in the folders that their own scorers read."""

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
"""Pictures of a prompt that DPG-Bench reads at most, from one file of two by two."""


class BenchmarkPrompt(NamedTuple):
    """A prompt with its pictures as PNG. key: as the benchmark names it; details: its line, which the scorer reads."""

    key: str
    text: str
    details: Mapping[str, Any]
    pictures: Sequence[bytes]


def write_geneval(folder: Path, prompts: Sequence[BenchmarkPrompt]) -> None:
    """The layout of GenEval's README (arXiv 2310.11513): NNNNN/metadata.jsonl and NNNNN/samples/NNNN.png.

    Raises ValueError where a prompt has no `tag` and `include`, before anything is written.
    """
    for prompt in prompts:
        if not {"tag", "include"} <= set(prompt.details):
            raise ValueError(f"GenEval: {prompt.key} has no 'tag' and 'include'; draw its evaluation_metadata.jsonl")
    for place, prompt in enumerate(prompts):
        own = folder / f"{place:05d}"
        line = json.dumps({**prompt.details, "prompt": prompt.text})
        write_beside(own / "metadata.jsonl", (line + "\n").encode())
        for turn, picture in enumerate(prompt.pictures):
            write_beside(own / "samples" / f"{turn:04d}.png", picture)


def write_dpg(folder: Path, prompts: Sequence[BenchmarkPrompt]) -> int:
    """The layout of DPG-Bench (arXiv 2403.05135): ITEM.png, several pictures of an item two by two in one file.

    Returns the side of one picture in pixels, which its scorer is told as --resolution. Raises ValueError, before
    anything is written, where prompts have no or too many pictures, or pictures differ in size.
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
