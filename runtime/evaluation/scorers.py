"""GenEval and DPG-Bench: pictures in the folders that their own scorers read, and what those scorers wrote."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from PIL import Image

from underpaint.artifacts.files import read_once
from underpaint.artifacts.manifest import write_beside
from underpaint.artifacts.strict_json import parse_json
from underpaint.runtime.evaluation.prompt_source import lines_of, split_lines

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
    """What GenEval's evaluate_images.py wrote: the mean over tasks of the share that is right, as its summary says.

    Raises ValueError, naming the line, where one is no object with a text "tag" and a "correct" of true or false.
    """
    right: dict[str, list[bool]] = {}
    for line in lines_of(_read_scores(path, "the JSON lines of GenEval's evaluate_images.py")):
        where = f"{path}: line {line.number}: expected a line of GenEval's evaluate_images.py"
        row = parse_json(line.text, where)
        tag, correct = (row.get(name) if isinstance(row, dict) else None for name in ("tag", "correct"))
        if not isinstance(tag, str) or not isinstance(correct, bool):
            raise ValueError(
                f'{where} with a text "tag" and a "correct" of true or false, got {line.text:.80}; run it again'
            )
        right.setdefault(tag, []).append(correct)
    parts = {tag: sum(marks) / len(marks) for tag, marks in right.items()}
    return BenchmarkScore(sum(parts.values()) / len(parts), parts, sum(map(len, right.values())))


def _read_scores(path: Path, what: str) -> str:
    """The text of a scorer's results, as UTF-8; ValueError where there is none, or it is empty."""
    try:
        text = read_once(path).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected {what} ({error}); name the file that it wrote") from error
    if not text.strip():
        raise ValueError(f"{path}: expected {what}, got an empty file; run it to its end")
    return text


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


_NUMBER: Final = r"(-?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_SCORE: Final = re.compile(rf"DPG-Bench score: {_NUMBER}", re.ASCII)
_CATEGORY: Final = re.compile(rf"\t(.+): {_NUMBER}", re.ASCII)


def read_dpg(path: Path) -> BenchmarkScore:
    """What DPG-Bench's compute_dpg_bench.py wrote: its score, and those of its first level of categories.

    Raises ValueError where it did not run to its end, or a score lies outside 0 to 100.
    """
    lines = split_lines(_read_scores(path, "the results of DPG-Bench's compute_dpg_bench.py"))
    scores = [matched_line.group(1) for matched_line in map(_SCORE.fullmatch, lines) if matched_line is not None]
    starts = [lines.index(head) if head in lines else None for head in ("L1 category scores:", "L2 category scores:")]
    if len(scores) != 1 or starts[0] is None:
        raise ValueError(
            f"{path}: expected one line 'DPG-Bench score: ...' and 'L1 category scores:', got {len(scores)} of the "
            "first; run compute_dpg_bench.py to its end"
        )
    matched = [_CATEGORY.fullmatch(line) for line in lines[starts[0] + 1 : starts[1]]]
    parts = {one.group(1): _share(one.group(2), path) for one in matched if one is not None}
    scored = sum(line.count(", ") >= 2 for line in lines[: starts[0]])
    return BenchmarkScore(_share(scores[0], path), parts, scored)


def _share(text: str, path: Path) -> float:
    """A score of 0 to 100 as a share."""
    score = float(text)
    if not 0.0 <= score <= 100.0:
        raise ValueError(f"{path}: expected scores from 0 to 100, got {text}; run compute_dpg_bench.py again")
    return score / 100
