"""Options of live models: `--live FOLDER`, wherever `--models` stands."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.options import USUAL_PRESET

if TYPE_CHECKING:
    from underpaint.runtime.models import OpenModels
    from underpaint.runtime.pipeline import Pipeline

_PANEL = "Live models"


@dataclass(frozen=True, slots=True)
class LiveModelOptions:
    """A model of `transformers`."""

    live: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an image model of transformers, drawn with as it is: Janus, Emu3, Chameleon, Lumina-mGPT, "
            "GLM-Image, or one of --family. Its methods start from the papers' settings.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    family: Annotated[
        str | None,
        typer.Option(
            help="The live model's family, or a .py file with a function `family`; default: by its class.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    grid: Annotated[
        str | None,
        typer.Option(
            help="ROWSxCOLUMNS of tokens of a live model's picture; default: the family's.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class LiveOptions(LiveModelOptions):
    """A model of `transformers` in place of a folder of exported models, and perhaps its drafter."""

    drafter: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a drafter of the live model, of `train drafter`, SpecForge or speculators, for eagle2, adt "
            "and other methods that draft with one.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None

    def check(self, models: Path | None, resolution: int | None, low: Path | None, backend: str) -> None:
        """ValueError where options of folders and of live models are mixed."""
        if self.live is None:
            if self.family is not None or self.grid is not None or self.drafter is not None:
                raise ValueError("--family, --grid and --drafter go with a live model; name its folder with --live")
            return
        others = {"--models": models, "--resolution": resolution, "--low": low}
        named = [name for name, value in others.items() if value is not None]
        if named or backend != "cpu":
            raise ValueError(
                f"--live draws with the model as it is; leave {', '.join(named) or '--backend'} out (--grid asks for "
                "another size)"
            )

    def preset(self, asked: str) -> str:
        """The preset: the papers' settings where the usual one was tuned on other models."""
        from underpaint.runtime.methods.registry import PAPER

        return PAPER if self.live is not None and asked == USUAL_PRESET else asked

    def open(self) -> "OpenModels":
        """The live model; LiveModelError, which says what to do, where it cannot be opened."""
        from underpaint.runtime.live.load import open_live

        assert self.live is not None
        return open_live(self.live, self.family, self.grid, drafter=self.drafter)


def folder_of(models: "OpenModels") -> "Pipeline":
    """The exported folder that a command needs; ValueError for a live model."""
    own = models.folder_models()
    if own is None:
        raise ValueError("--live: this needs exported models; leave it out, or name a folder with --models")
    return own
