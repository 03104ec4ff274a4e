"""Reads prompts from the published file formats, and finds those that a model has no words for."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args

from underpaint.artifacts.strict_json import parse_json
from underpaint.runtime.evaluation.prompt_source import PromptSource, TableRow, lines_of, rows_of

PromptForm: TypeAlias = Literal["parti", "coco", "geneval", "dpg", "imagenet", "jsonl", "text"]
"""parti: the tsv of PartiPrompts. coco: a captions json of 2014 or 2017. geneval: GenEval's evaluation_metadata.jsonl.
dpg: the csv of DPG-Bench or its folder of texts. imagenet: a class index (json) or a list of synsets. jsonl: objects
with a prompt. text: one prompt per line."""
PROMPT_FORMS: Final[tuple[PromptForm, ...]] = get_args(PromptForm)

Read = TypeVar("Read")
_TEXT_FIELDS: Final = ("prompt", "caption", "text")


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """One prompt of a file.

    Attributes:
        text: The prompt.
        key: Its name in the file: a line number, the id of an image or item, or a class.
        details: The file's other fields, which a benchmark's scorer may need.
    """

    text: str
    key: str
    details: Mapping[str, Any] = field(default_factory=dict)


def read_prompts(
    source: PromptSource,
    form: PromptForm | None = None,
    count: int | None = None,
    skip: int = 0,
    repeated: Literal["refuse", "first"] = "refuse",
) -> tuple[FilePrompt, ...]:
    """Read the prompts of a file, in file order.

    Args:
        source: The content of the file or folder.
        form: The form of the file; None detects it from the file's name and first lines.
        count: Number of prompts to return; None returns all.
        skip: Number of prompts to leave out first.
        repeated: Whether to refuse repeated prompts, or to keep the first of them.

    Raises:
        ValueError: The file is not UTF-8 or of another form, lacks a column, has an empty prompt, repeated prompts or
            one key for two prompts, or has fewer prompts than requested.
    """
    path = source.path
    if skip < 0 or (count is not None and count < 1):
        raise ValueError(f"prompts: expected skip >= 0 and count >= 1, got {skip} and {count}")
    if source.folder and form not in (None, "dpg"):
        raise ValueError(
            f"{path}: expected a file of the form {form}, got a folder, which is read as one prompt per .txt file; "
            "name a file, or leave --prompts-form out"
        )
    prompts = _READERS[form or find_form(source)](source)
    if not prompts:
        raise ValueError(f"{path}: expected at least one prompt, got none; write one, or name another file")
    empty = [one.key for one in prompts if not one.text]
    if empty:
        raise ValueError(f"{path}: the prompt of {empty[0]} is empty; take the line out, or write it")
    times = Counter(one.text for one in prompts)
    if repeated == "refuse" and len(times) < len(prompts):
        text = next(text for text, seen in times.items() if seen > 1)
        where = ", ".join([one.key for one in prompts if one.text == text][:5])
        raise ValueError(
            f"{path}: {len(prompts) - len(times)} prompts are repeated, the first is {text[:60]!r} ({where}): "
            "pictures of one prompt and seed are the same; take them out, or pass --skip-repeated"
        )
    by_text: dict[str, FilePrompt] = {}
    for one in prompts:
        by_text.setdefault(one.text, one)
    distinct = list(by_text.values())
    key, uses = Counter(one.key for one in distinct).most_common(1)[0]
    if uses > 1:
        raise ValueError(f"{path}: the id {key!r} names {uses} prompts; give each an id of its own")
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
    """Split prompts into those that a model knows, with the results of `read`, and others with the reason.

    Args:
        prompts: The prompts of a file.
        read: Reads a prompt; raises ValueError for an unknown one.
        skip_unknown: Whether to leave out unknown prompts.

    Raises:
        ValueError: None of the prompts is known, or some are unknown and not left out; the message gives their number.
    """
    known_pairs: list[tuple[FilePrompt, Read]] = []
    unknown: list[tuple[FilePrompt, str]] = []
    for one in prompts:
        try:
            known_pairs.append((one, read(one)))
        except ValueError as error:
            unknown.append((one, str(error)))
    if unknown and (not skip_unknown or not known_pairs):
        first, reason = unknown[0]
        remedy = "none of them can be drawn" if not known_pairs else "--skip-unknown draws the rest"
        raise ValueError(
            f"{len(unknown)} of {len(known_pairs) + len(unknown)} prompts have words that this model does not know; "
            f"the first is {first.text[:60]!r} ({first.key}): {reason}. {remedy}"
        )
    return tuple(known_pairs), tuple(unknown)


def find_form(source: PromptSource) -> PromptForm:
    """Detect the form of a file by the suffix of its name, or without one (as for a pipe) by how its content begins."""
    if source.folder:
        return "dpg"
    text, suffix = source.text(), source.path.suffix.lower()
    first = text.lstrip().partition("\n")[0]
    if suffix == ".tsv":
        return "parti"
    if suffix == ".csv":
        return "dpg"
    if suffix in (".jsonl", ".ndjson"):
        return "geneval" if '"include"' in first else "jsonl"
    if suffix == ".json":
        return "coco" if '"annotations"' in text else "imagenet"
    if not suffix:
        form = _form_of_content(text, first.rstrip())
        if form is not None:
            return form
    words = first.split(maxsplit=1)
    return "imagenet" if words and _is_synset(words[0]) else "text"


def _form_of_content(text: str, first: str) -> PromptForm | None:
    """The form of a text that begins with JSON or a table header; None for plain lines."""
    if first.startswith("{"):
        if first.endswith("}") and not ('"annotations"' in first or len(text.strip()) == len(first)):
            return "geneval" if '"include"' in first else "jsonl"
        if '"annotations"' in text:
            return "coco"
        return "jsonl" if any(f'"{name}"' in first for name in _TEXT_FIELDS) else "imagenet"
    names = [name.strip().lower() for name in first.split("\t")]
    if len(names) > 1 and "prompt" in names:
        return "parti"
    return "dpg" if {"item_id", "text"} <= {name.strip().lower() for name in first.split(",")} else None


def _read_parti(source: PromptSource) -> list[FilePrompt]:
    return [
        FilePrompt(row.fields["prompt"].strip(), f"line {row.line}", _others(row, "prompt"))
        for row in rows_of(source, "\t", ("prompt",))
    ]


def _others(row: TableRow, *but: str) -> dict[str, str]:
    return {name: value for name, value in row.fields.items() if name and name not in but and value}


def _read_coco(source: PromptSource) -> list[FilePrompt]:
    """The first caption of each image, with images in the order of their first captions."""
    path = source.path
    captions = parse_json(source.text(), str(path))
    rows, images = (captions.get(name) if isinstance(captions, dict) else None for name in ("annotations", "images"))
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: expected COCO's captions, an object with a list 'annotations'")
    by_image: dict[str, FilePrompt] = {}
    for turn, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("caption"), str) or not _is_id(row.get("image_id")):
            raise ValueError(
                f"{path}: annotations[{turn}] has no 'caption' with an 'image_id'; take captions_*.json, not "
                "instances_*"
            )
        key = str(row["image_id"])
        by_image.setdefault(key, FilePrompt(row["caption"].strip(), key, {"annotation": row.get("id")}))
    if not isinstance(images, list) or not all(isinstance(one, dict) and _is_id(one.get("id")) for one in images):
        raise ValueError(f"{path}: expected COCO's captions with a list 'images' of objects with an 'id'")
    absent = by_image.keys() - {str(one["id"]) for one in images}
    if absent:
        first = next(key for key in by_image if key in absent)
        raise ValueError(
            f"{path}: {len(absent)} captions are of images that 'images' does not list, the first of image {first}; "
            "take both lists from one release"
        )
    return list(by_image.values())


def _is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and value != ""


def _read_lines(source: PromptSource) -> list[FilePrompt]:
    return [FilePrompt(line.text, f"line {line.number}") for line in lines_of(source.text())]


def _read_json_lines(source: PromptSource) -> list[FilePrompt]:
    prompts = []
    for line in _read_lines(source):
        where = f"{source.path}: {line.key}"
        row = parse_json(line.text, where)
        if isinstance(row, str):
            prompts.append(FilePrompt(row.strip(), line.key))
            continue
        name = next((one for one in _TEXT_FIELDS if isinstance(row, dict) and isinstance(row.get(one), str)), None)
        if name is None:
            raise ValueError(f"{where}: expected an object with one of {', '.join(_TEXT_FIELDS)}")
        key = row.get("id", line.key)
        if not _is_id(key):
            raise ValueError(f"{where}: expected an 'id' that is a text or a whole number, got {json.dumps(key)[:60]}")
        details = {key: value for key, value in row.items() if key != name}
        prompts.append(FilePrompt(row[name].strip(), str(key), details))
    return prompts


def _read_geneval(source: PromptSource) -> list[FilePrompt]:
    prompts = _read_json_lines(source)
    for one in prompts:
        if not {"tag", "include"} <= set(one.details):
            raise ValueError(f"{source.path}: {one.key}: expected GenEval's 'tag' and 'include' beside the prompt")
    return prompts


def _read_dpg(source: PromptSource) -> list[FilePrompt]:
    """Read a folder with one text per item, or the csv, which lists an item once per question."""
    path = source.path
    if source.folder:
        if not source.contents:
            raise ValueError(f"{path}: expected a folder with a .txt file for each prompt, found none")
        return [FilePrompt(" ".join(source.text(one).split()), Path(one).stem) for one in source.contents]
    by_item: dict[str, FilePrompt] = {}
    for row in rows_of(source, ",", ("text", "item_id")):
        one = FilePrompt(" ".join(row.fields["text"].split()), row.fields["item_id"].strip())
        if not one.key:
            raise ValueError(f"{path}: line {row.line}: expected an item_id, got an empty field")
        if by_item.setdefault(one.key, one).text != one.text:
            raise ValueError(f"{path}: line {row.line}: item {one.key} has another text than before; keep one")
    return list(by_item.values())


def _read_imagenet(source: PromptSource) -> list[FilePrompt]:
    """Read classes in order; the prompt is the first name of each."""
    path = source.path
    if source.text().lstrip().startswith(("{", "[")):
        classes = parse_json(source.text(), str(path))
        if not isinstance(classes, dict) or not all(_is_number(one) for one in classes):
            raise ValueError(
                f"{path}: expected ImageNet's classes, an object from numbers to [synset, name] or to a name"
            )
        return [_class(int(number), _class_name(classes[number], number, path)) for number in sorted(classes, key=int)]
    prompts = []
    for number, line in enumerate(_read_lines(source)):
        synset, _, names = line.text.partition(" ")
        if not _is_synset(synset) or not names:
            raise ValueError(f"{path}: {line.key}: expected 'n01440764 tench' or the like, got {line.text!r}")
        prompts.append(_class(number, names, synset))
    return prompts


def _is_number(text: str) -> bool:
    """Whether a text is a class number as in JSON keys: 0, or digits without a leading 0."""
    return re.fullmatch("0|[1-9][0-9]{0,8}", text) is not None


def _class_name(value: object, number: str, path: Path) -> str:
    name = value[-1] if isinstance(value, list) and value else value
    if not isinstance(name, str):
        raise ValueError(f"{path}: class {number}: expected [synset, name] or a name, got {json.dumps(value)[:60]}")
    return name


def _class(number: int, names: str, synset: str = "") -> FilePrompt:
    details = {"class": number, **({"synset": synset} if synset else {})}
    return FilePrompt(names.partition(",")[0].replace("_", " ").strip(), f"class {number}", details)


def _is_synset(word: str) -> bool:
    return re.fullmatch("n[0-9]{8}", word) is not None


_READERS: Final[dict[PromptForm, Callable[[PromptSource], list[FilePrompt]]]] = {
    "parti": _read_parti,
    "coco": _read_coco,
    "geneval": _read_geneval,
    "dpg": _read_dpg,
    "imagenet": _read_imagenet,
    "jsonl": _read_json_lines,
    "text": _read_lines,
}
