"""Reads the conditions of a prompt file in the form that the models of a folder accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from underpaint.runtime.conditions import Condition
from underpaint.runtime.evaluation.prompt_files import FilePrompt, PromptForm, find_form, known_prompts, read_prompts
from underpaint.runtime.evaluation.prompt_source import PromptSource
from underpaint.runtime.models import OpenModels


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file of prompts, and the selection of prompts to draw.

    Attributes:
        source: The content of the file.
        form: The form of the file; None detects it.
        count: Number of the file's prompts to draw, in file order; None draws all.
        skip: Number of prompts to skip first.
        skip_unknown: Whether to skip prompts that the models have no words for.
        skip_repeated: Whether to draw repeated prompts once.
    """

    source: PromptSource
    form: PromptForm | None = None
    count: int | None = None
    skip: int = 0
    skip_unknown: bool = False
    skip_repeated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON that identifies the file and the selection: name, SHA-256, form, count and skip."""
        return {
            "name": self.source.name,
            "sha256": self.source.sha256(),
            "form": self.form or find_form(self.source),
            "count": self.count,
            "skip": self.skip,
        }


class ChosenPrompts(NamedTuple):
    """The conditions to draw, one per prompt.

    For a prompt file: prompts, in the file's form; unknown, the skipped prompts with the reason; source, the file as
    results record it.
    """

    conditions: tuple[Condition, ...]
    prompts: tuple[FilePrompt, ...] = ()
    unknown: tuple[tuple[FilePrompt, str], ...] = ()
    source: Mapping[str, Any] = MappingProxyType({})


def read_file_conditions(pipeline: OpenModels, file: PromptFile) -> ChosenPrompts:
    """Read the conditions of a file's prompts. Class-conditional models take ImageNet classes by number, others text.

    Raises ValueError as `read_prompts` does, if the models have no words for a prompt (unless such prompts are
    skipped), and if two prompts mean the same to the models.
    """
    repeated: Literal["refuse", "first"] = "first" if file.skip_repeated else "refuse"
    prompts = read_prompts(file.source, file.form, file.count, file.skip, repeated)
    folder_models = pipeline.folder_models()
    classes = folder_models is not None and folder_models.index.condition == "class"

    def condition_of(prompt: FilePrompt) -> Condition:
        number = prompt.details.get("class") if classes else None
        return pipeline.condition(prompt.text if number is None else str(number))

    known_pairs, unknown = known_prompts(prompts, condition_of, file.skip_unknown)
    first: dict[str, FilePrompt] = {}
    pairs: list[tuple[FilePrompt, Condition]] = []
    for prompt, condition in known_pairs:
        other = first.setdefault(condition.caption(), prompt)
        if other is prompt:
            pairs.append((prompt, condition))
        elif not file.skip_repeated:
            raise ValueError(
                f"{file.source.path}: {other.text[:60]!r} ({other.key}) and {prompt.text[:60]!r} ({prompt.key}) are "
                "one prompt to this model; take one out, or pass --skip-repeated"
            )
    source = {**file.to_dict(), "drawn": len(pairs), "unknown": len(unknown)}
    return ChosenPrompts(tuple(one for _, one in pairs), tuple(one for one, _ in pairs), unknown, source)
