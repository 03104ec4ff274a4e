"""GenEval and DPG-Bench: pictures in the folders that their own scorers read, and what those scorers wrote."""

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


class BenchmarkScore(NamedTuple):
    """overall and parts in 0..1; pictures: how many were scored, where the scorer tells."""

    overall: float
    parts: dict[str, float]
    pictures: int | None


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


def read_geneval(path: Path) -> BenchmarkScore:
    """What GenEval's evaluate_images.py wrote: the mean over tasks of the share that is right, as its summary says."""
    right: dict[str, list[bool]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            right.setdefault(str(row["tag"]), []).append(bool(row["correct"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: expected the JSON lines of GenEval's evaluate_images.py ({error!r})") from error
    if not right:
        raise ValueError(f"{path}: it holds no picture; run GenEval's evaluate_images.py to its end")
    parts = {tag: sum(found) / len(found) for tag, found in right.items()}
    return BenchmarkScore(sum(parts.values()) / len(parts), parts, sum(map(len, right.values())))


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


_SCORE: Final = re.compile(r"^DPG-Bench score: ([-+.\deE]+)$", re.MULTILINE)
_CATEGORY: Final = re.compile(r"^\t(.+): ([-+.\deE]+)$", re.MULTILINE)


def read_dpg(path: Path) -> BenchmarkScore:
    """What DPG-Bench's compute_dpg_bench.py wrote: its score, and those of its first level of categories."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: expected the results of DPG-Bench's compute_dpg_bench.py ({error})") from error
    found = _SCORE.search(text)
    if found is None or "L1 category scores:" not in text:
        raise ValueError(f"{path}: there is no line 'DPG-Bench score: ...'; run compute_dpg_bench.py to its end")
    first = text.partition("L1 category scores:")[2].partition("L2 category scores:")[0]
    parts = {name: float(share) / 100 for name, share in _CATEGORY.findall(first)}
    scored = sum(line.count(", ") >= 2 for line in text.partition("Model: ")[0].splitlines())
    return BenchmarkScore(float(found.group(1)) / 100, parts, scored)
