"""Prompts out of the files that the field publishes them in, by form, and what no model has words for."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

PromptForm: TypeAlias = Literal["parti", "coco", "geneval", "dpg", "imagenet", "jsonl", "text"]
"""parti: PartiPrompts' tsv. coco: a captions json of 2014 or 2017. geneval: its evaluation_metadata.jsonl. dpg: its
csv, or its folder of texts. imagenet: a class index (json) or a list of synsets. jsonl: objects with a prompt. text:
lines."""
PROMPT_FORMS: Final[tuple[PromptForm, ...]] = get_args(PromptForm)

Read = TypeVar("Read")
_TEXT_FIELDS: Final = ("prompt", "caption", "text")


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """One prompt of a file.

    text: what is drawn. key: its name in the file (a line's number, an image's or an item's id, a class). details: the
    file's other fields, which a benchmark's own scorer may want back.
    """

    text: str
    key: str
    details: Mapping[str, Any] = field(default_factory=dict)


def read_prompts(
    path: Path,
    form: PromptForm | None = None,
    count: int | None = None,
    skip: int = 0,
    repeated: Literal["refuse", "first"] = "refuse",
) -> tuple[FilePrompt, ...]:
    """`count` prompts of a file (None: all) after the first `skip`, in the file's order.

    form: None finds it out by the file's name and first lines. repeated: prompts that stand in the file twice are
    refused, or the first of them is taken. Raises ValueError: no such file, not UTF-8, another form, a missing column,
    an empty prompt, repeated prompts, fewer prompts than asked for.
    """
    if skip < 0 or (count is not None and count < 1):
        raise ValueError(f"prompts: expected skip >= 0 and count >= 1, got {skip} and {count}")
    found = _READERS[form or find_form(path)](path)
    empty = [one.key for one in found if not one.text]
    if empty:
        raise ValueError(f"{path}: the prompt of {empty[0]} is empty; take the line out, or write it")
    times = Counter(one.text for one in found)
    if repeated == "refuse" and len(times) < len(found):
        text = next(text for text, seen in times.items() if seen > 1)
        where = ", ".join([one.key for one in found if one.text == text][:5])
        raise ValueError(
            f"{path}: {len(found) - len(times)} prompts are repeated, the first is {text[:60]!r} ({where}): "
            "pictures of one prompt and seed are the same; take them out, or pass --skip-repeated"
        )
    by_text: dict[str, FilePrompt] = {}
    for one in found:
        by_text.setdefault(one.text, one)
    distinct = list(by_text.values())
    chosen = distinct[skip:] if count is None else distinct[skip : skip + count]
    if not chosen or (count is not None and len(chosen) < count):
        raise ValueError(
            f"{path}: it has {len(distinct)} prompts, asked for {count or 'those'} after the first {skip}; ask for "
            "fewer"
        )
    return tuple(chosen)


def known_prompts(
    prompts: Iterable[FilePrompt], read: Callable[[FilePrompt], Read], skip_unknown: bool = False
) -> tuple[tuple[tuple[FilePrompt, Read], ...], tuple[tuple[FilePrompt, str], ...]]:
    """The prompts that a model has words for, each as `read` gives it, and the others with the reason.

    read: raises ValueError for what it does not know. skip_unknown: leave those out; else they are refused together,
    with how many they are. Raises ValueError too where none is known.
    """
    known: list[tuple[FilePrompt, Read]] = []
    unknown: list[tuple[FilePrompt, str]] = []
    for one in prompts:
        try:
            known.append((one, read(one)))
        except ValueError as error:
            unknown.append((one, str(error)))
    if unknown and (not skip_unknown or not known):
        first, reason = unknown[0]
        remedy = "none of them can be drawn" if not known else "--skip-unknown draws the rest"
        raise ValueError(
            f"{len(unknown)} of {len(known) + len(unknown)} prompts have words that this model does not know; the "
            f"first is {first.text[:60]!r} ({first.key}): {reason}. {remedy}"
        )
    return tuple(known), tuple(unknown)


def find_form(path: Path) -> PromptForm:
    """The form of a file, by its name and how it begins. Raises ValueError where there is no such file."""
    if path.is_dir():
        return "dpg"
    text = _read_text(path)
    suffix = path.suffix.lower()
    if suffix == ".tsv":
        return "parti"
    if suffix == ".csv":
        return "dpg"
    if suffix in (".jsonl", ".ndjson"):
        return "geneval" if '"include"' in text.partition("\n")[0] else "jsonl"
    if suffix == ".json":
        return "coco" if '"annotations"' in text else "imagenet"
    first = text.partition("\n")[0].split(maxsplit=1)
    return "imagenet" if first and _is_synset(first[0]) else "text"


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file of prompts")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: expected UTF-8, byte {error.start} is none; convert it, for example with "
            f"iconv -f latin1 -t utf-8 {path.name}"
        ) from error
    if not text.strip():
        raise ValueError(f"{path}: it is empty; expected a prompt in it")
    return text


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected JSON, got {error}") from error


def _read_table(path: Path, delimiter: str, column: str, key: str | None) -> list[FilePrompt]:
    """Rows of a table with a head; the head's case does not matter."""
    rows = csv.DictReader(io.StringIO(_read_text(path), newline=""), delimiter=delimiter)
    names = {name.strip().lower(): name for name in rows.fieldnames or () if name}
    for wanted in (column, *([key] if key else [])):
        if wanted not in names:
            raise ValueError(f"{path}: expected a column '{wanted}', got {', '.join(names) or 'no head'}")
    return [
        FilePrompt(
            (row[names[column]] or "").strip(),
            f"line {number}" if key is None else str(row[names[key]]),
            {name: row[held] for name, held in names.items() if name != column and row[held]},
        )
        for number, row in enumerate(rows, start=2)
    ]


def _read_parti(path: Path) -> list[FilePrompt]:
    return _read_table(path, "\t", "prompt", None)


def _read_coco(path: Path) -> list[FilePrompt]:
    """The first caption of each image, in the order in which the images first come."""
    found = _read_json(path)
    rows = found.get("annotations") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: expected COCO's captions, an object with a list 'annotations'")
    by_image: dict[str, FilePrompt] = {}
    for turn, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("caption"), str) or "image_id" not in row:
            raise ValueError(
                f"{path}: annotations[{turn}] has no 'caption' with an 'image_id'; take captions_*.json, not "
                "instances_*"
            )
        key = str(row["image_id"])
        by_image.setdefault(key, FilePrompt(row["caption"].strip(), key, {"annotation": row.get("id")}))
    return list(by_image.values())


def _read_lines(path: Path) -> list[FilePrompt]:
    lines = _read_text(path).splitlines()
    return [FilePrompt(line.strip(), f"line {number}") for number, line in enumerate(lines, start=1) if line.strip()]


def _read_json_lines(path: Path) -> list[FilePrompt]:
    prompts = []
    for line in _read_lines(path):
        try:
            row = json.loads(line.text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: {line.key}: expected a JSON object, got {error}") from error
        if isinstance(row, str):
            prompts.append(FilePrompt(row.strip(), line.key))
            continue
        name = next((one for one in _TEXT_FIELDS if isinstance(row, dict) and isinstance(row.get(one), str)), None)
        if name is None:
            raise ValueError(f"{path}: {line.key}: expected an object with one of {', '.join(_TEXT_FIELDS)}")
        details = {key: value for key, value in row.items() if key != name}
        prompts.append(FilePrompt(row[name].strip(), str(row.get("id", line.key)), details))
    return prompts


def _read_geneval(path: Path) -> list[FilePrompt]:
    prompts = _read_json_lines(path)
    for one in prompts:
        if not {"tag", "include"} <= set(one.details):
            raise ValueError(f"{path}: {one.key}: expected GenEval's 'tag' and 'include' beside the prompt")
    return prompts


def _read_dpg(path: Path) -> list[FilePrompt]:
    """A folder of one text an item, or the csv, which names an item once for each of its questions."""
    if path.is_dir():
        texts = sorted(path.glob("*.txt"))
        if not texts:
            raise ValueError(f"{path}: expected a folder with a .txt file for each prompt, found none")
        return [FilePrompt(" ".join(_read_text(one).split()), one.stem) for one in texts]
    by_item: dict[str, FilePrompt] = {}
    for row in _read_table(path, ",", "text", "item_id"):
        by_item.setdefault(row.key, FilePrompt(row.text, row.key))
    return list(by_item.values())


def _read_imagenet(path: Path) -> list[FilePrompt]:
    """Classes in order: the text is the first name of each."""
    if path.suffix.lower() == ".json":
        found = _read_json(path)
        if not isinstance(found, dict) or not all(number.isdecimal() for number in found):
            raise ValueError(
                f"{path}: expected ImageNet's classes, an object from numbers to [synset, name] or to a name"
            )
        classes = {int(number): held if isinstance(held, str) else held[-1] for number, held in found.items()}
        return [_class(number, str(classes[number])) for number in sorted(classes)]
    prompts = []
    for number, line in enumerate(_read_lines(path)):
        synset, _, names = line.text.partition(" ")
        if not _is_synset(synset) or not names:
            raise ValueError(f"{path}: {line.key}: expected 'n01440764 tench' or the like, got {line.text!r}")
        prompts.append(_class(number, names, synset))
    return prompts


def _class(number: int, names: str, synset: str = "") -> FilePrompt:
    details = {"class": number, **({"synset": synset} if synset else {})}
    return FilePrompt(names.partition(",")[0].replace("_", " ").strip(), f"class {number}", details)


def _is_synset(word: str) -> bool:
    return len(word) == 9 and word[0] == "n" and word[1:].isdecimal()


_READERS: Final[dict[PromptForm, Callable[[Path], list[FilePrompt]]]] = {
    "parti": _read_parti,
    "coco": _read_coco,
    "geneval": _read_geneval,
    "dpg": _read_dpg,
    "imagenet": _read_imagenet,
    "jsonl": _read_json_lines,
    "text": _read_lines,
}
