"""Options of live models: `--live FOLDER`, the alternative to `--models`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from underpaint.cli.options import DEVICE, NO_DEVICE, DeviceChoice, open_pipeline

if TYPE_CHECKING:
    from underpaint.runtime.live.pipeline import LivePipeline
    from underpaint.runtime.models import OpenModels

_PANEL = "Live models"


@dataclass(frozen=True, slots=True)
class LiveModelOptions:
    """A transformers model, used without an export."""

    live: Annotated[
        Path | None,
        typer.Option(
            help="Folder of an image model of transformers, used without an export: Janus, Emu3, Chameleon, "
            "Lumina-mGPT, GLM-Image, or one of --family; or a checkpoint of LlamaGen or Tar's de-tokenizer. Methods "
            "use the papers' settings by default.",
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
            help="Rows and columns of tokens of a live model's picture, such as 48x48; default: the family's.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class LiveOptions(LiveModelOptions):
    """A transformers model instead of a folder of exported models, optionally with a drafter."""

    drafter: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a drafter for the live model, from `train drafter`, SpecForge or speculators. eagle2, "
            "adt and other methods draft with it.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        typer.Option(
            help="Precision of a live model: float32, bfloat16, float16, or auto for that of its weights.",
            rich_help_panel=_PANEL,
        ),
    ] = "auto"
    verify_near_ties: Annotated[
        Literal["float32"] | None,
        typer.Option(
            help="If the two likeliest tokens of a live model in bfloat16 or float16 are nearly tied, compute again "
            "in float32. Takes 4 more bytes per weight.",
            show_default=False,
            rich_help_panel=_PANEL,
        ),
    ] = None

    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile a live model's layers (torch.compile; CUDA graphs on a GPU), with passes padded to a few "
            "sizes. The first passes take longer.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Folder that turns words into a prompt: the tokenizer of an exported model, LlamaGen's text encoder "
            "(FLAN-T5), or the processor of a live model whose folder has none.",
            show_default=False,
        ),
    ] = None

    def check(
        self, models: object, resolution: int | None, low: Path | None, backend: str, *, on_device: bool = False
    ) -> None:
        """Raise ValueError if options of exported folders and of live models are mixed.

        Args:
            models: Value of --models, or None.
            resolution: Value of --resolution, or None.
            low: Value of --low, or None.
            backend: Value of --backend.
            on_device: Whether the command accepts --backend device.
        """
        if self.live is None:
            live_options = {
                "--family": self.family,
                "--grid": self.grid,
                "--drafter": self.drafter,
                "--dtype": None if self.dtype == "auto" else self.dtype,
                "--verify-near-ties": self.verify_near_ties,
                "--compile": self.compile or None,
            }
            alone = [name for name, value in live_options.items() if value is not None]
            if alone:
                raise ValueError(
                    f"{', '.join(alone)}: expected a live model, got none; name its folder with --live, or leave these "
                    "options out"
                )
            return
        others = {"--models": models, "--resolution": resolution, "--low": low}
        named = [name for name, value in others.items() if value is not None]
        if named or backend not in ("cpu", DEVICE) or (backend == DEVICE and not on_device):
            raise ValueError(
                f"--live runs the model itself, without an export; leave {', '.join(named) or '--backend'} out (--grid "
                "sets another size; for a GPU, compare, generate and serve take --backend device)"
            )

    def open_models(
        self,
        models: Path | None,
        resolution: int | None = None,
        low: Path | None = None,
        backend: str = "cpu",
        on_device: bool = False,
        device: DeviceChoice = NO_DEVICE,
    ) -> "OpenModels":
        """Open the live model, or else the models of a folder; ValueError or OSError with a remedy if that fails."""
        self.check(models, resolution, low, backend, on_device=on_device)
        from underpaint.cli.device import check_device  # which imports commands that take these options

        if self.live is not None:
            return self.open(check_device(device.device) if backend == DEVICE else "cpu")
        pipeline = open_pipeline(models, resolution, low, backend, on_device, device.quantization)
        if self.tokenizer is not None:
            pipeline.read_words_by(self.tokenizer)
        return pipeline

    def open(self, device: str = "cpu") -> "LivePipeline":
        """Open the live model on a device; LiveModelError with a remedy if that fails."""
        assert self.live is not None
        return self.source(threads=1, device=device).open(own_threads=False)

    def source(self, threads: int, device: str = "cpu") -> "LiveSource":
        """Return the source from which each worker opens the live model on `threads` threads."""
        assert self.live is not None
        family = self.family
        if family is not None and family.endswith(".py"):
            family = str(Path(family).absolute())
        drafter = None if self.drafter is None else str(self.drafter.absolute())
        folder = str(self.live.absolute())
        processor = None if self.tokenizer is None else str(self.tokenizer.absolute())
        ties, compiled = self.verify_near_ties, self.compile
        arguments = (folder, family, self.grid, drafter, self.dtype, ties, processor, threads)
        return LiveSource(*arguments, compiled=compiled, device=device)


@dataclass(frozen=True, slots=True)
class LiveSource:
    """A live model on disk. Implements `runtime.evaluation.plan.ModelSource`."""

    folder: str
    family: str | None = None
    grid: str | None = None
    drafter: str | None = None
    dtype: str = "auto"
    verify_near_ties: Literal["float32"] | None = None
    processor: str | None = None
    threads: int = 1
    needs_gpu: bool = False
    compiled: bool = False
    device: str = "cpu"

    def open(self, *, own_threads: bool) -> "LivePipeline":
        """See `ModelSource`."""
        from underpaint.runtime.live.load import open_live

        if own_threads:
            import torch

            torch.set_num_threads(self.threads)
        return open_live(
            Path(self.folder),
            self.family,
            self.grid,
            self.dtype,
            None if self.drafter is None else Path(self.drafter),
            self.device,
            verify_near_ties=self.verify_near_ties,
            processor=None if self.processor is None else Path(self.processor),
            compiled=self.compiled,
        )
