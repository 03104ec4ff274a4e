"""Options that choose the prompts to draw: typed ones, a file's, or built-in ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.algos.registry import suggest

if TYPE_CHECKING:
    from underpaint.runtime.evaluation.file_conditions import ChosenPrompts, PromptFile
    from underpaint.runtime.models import OpenModels


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """Options that choose the prompts to draw."""

    prompts_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            help="A file of prompts: PartiPrompts' tsv, COCO's captions, GenEval's or DPG-Bench's, ImageNet's "
            "classes, JSON lines, or one prompt per line.",
            show_default=False,
        ),
    ] = None
    prompts_form: Annotated[
        str | None,
        typer.Option(
            help="Form of the file: parti, coco, geneval, dpg, imagenet, jsonl or text. Default: detected from its "
            "name and first line.",
            show_default=False,
        ),
    ] = None
    prompts_count: Annotated[
        int | None,
        typer.Option(
            help="Number of prompts: from the file (default: all), or built-in ones (default: 8).",
            min=1,
            show_default=False,
        ),
    ] = None
    prompts_skip: Annotated[
        int,
        typer.Option(
            help="Number of prompts to leave out at the beginning, such as those that settings were tuned on.", min=0
        ),
    ] = 0
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Leave out prompts with words that the model does not know.")
    ] = False
    skip_repeated: Annotated[
        bool, typer.Option("--skip-repeated", help="Draw a prompt once if the file has it twice.")
    ] = False

    def file(self) -> "PromptFile | None":
        """Read the prompt file to its end, or return None; ValueError if an option needs a file and none can be read.

        Call this once, because a pipe gives its content only once.
        """
        from underpaint.runtime.evaluation.file_conditions import PromptFile
        from underpaint.runtime.evaluation.prompt_files import PROMPT_FORMS
        from underpaint.runtime.evaluation.prompt_source import PromptSource

        if self.prompts_file is None:
            if self.prompts_form is not None or self.skip_unknown or self.skip_repeated:
                raise ValueError(
                    "--prompts-form, --skip-unknown and --skip-repeated need --prompts FILE; add it, or leave them out"
                )
            return None
        form = next((choice for choice in PROMPT_FORMS if choice == self.prompts_form), None)
        if form is None and self.prompts_form is not None:
            raise ValueError(
                f"--prompts-form: unknown form '{self.prompts_form}'; {suggest(self.prompts_form, PROMPT_FORMS)}"
            )
        source = PromptSource.read(self.prompts_file)
        return PromptFile(source, form, self.prompts_count, self.prompts_skip, self.skip_unknown, self.skip_repeated)


def choose(
    pipeline: "OpenModels", texts: Sequence[str], options: PromptOptions, file: "PromptFile | None" = None
) -> "ChosenPrompts":
    """Return typed prompts, a file's, or built-in ones; print on standard error how many of a file are left out.

    Args:
        pipeline: The opened models.
        texts: Typed prompts.
        options: The options that choose prompts.
        file: The file that `options` names, if it was read already, as for several models.

    Raises:
        ValueError: There are both typed prompts and a file.
    """
    from underpaint.runtime.evaluation.comparison import read_conditions
    from underpaint.runtime.evaluation.file_conditions import ChosenPrompts, read_file_conditions

    if texts and options.prompts_file is not None:
        raise ValueError("expected --prompts FILE or prompts on the command line, got both; leave one out")
    file = file or options.file()
    if file is None:
        return ChosenPrompts(read_conditions(pipeline, texts, options.prompts_count, options.prompts_skip))
    chosen = read_file_conditions(pipeline, file)
    if chosen.unknown:
        prompt, reason = chosen.unknown[0]
        total = len(chosen.unknown) + len(chosen.conditions)
        typer.echo(
            f"{len(chosen.unknown)} of {total} prompts are left out; the first, {prompt.text[:60]!r} ({prompt.key}): "
            f"{reason}",
            err=True,
        )
    return chosen
