"""`underpaint train drafter`: train a drafter for a live or exported target, on pictures that the target draws."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from underpaint.cli.errors import on_interrupt
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveModelOptions
from underpaint.cli.option_values import option_words
from underpaint.cli.options import Models
from underpaint.cli.terminal import note, progress
from underpaint.cli.train.options import Run, report

if TYPE_CHECKING:
    from underpaint.runtime.live.model import LiveModel
    from underpaint.training.drafter_costs import DrafterCosts
    from underpaint.training.loop import LoopSettings

_VALIDATION_PICTURES = 64
"""Number of pictures held out for validation; an eighth if there are few."""


class Eagle(StrEnum):
    """The EAGLE version of the drafter. EAGLE-2 drafts trees with the network of EAGLE-1."""

    one = "1"
    two = "2"
    three = "3"


class Loss(StrEnum):
    """The training loss of the drafter's distributions."""

    distillation = "distillation"
    lk_alpha = "lk-alpha"
    lk_lambda = "lk-lambda"


class DrafterLayout(StrEnum):
    """Libraries with their own layout of drafters."""

    specforge = "specforge"
    speculators = "speculators"


def drafter(
    *,
    models: Models = None,
    live: LiveModelOptions,
    prompts: PromptOptions,
    pictures: Annotated[
        int, typer.Option(help="Pictures per prompt, with seeds counted from --seed.", min=1, max=1_000_000)
    ] = 1,
    eagle: Annotated[
        Eagle, typer.Option(help="1 or 2: one layer on the target's last features. 3: on those of three layers.")
    ] = Eagle.one,
    drafted_codes: Annotated[
        int | None,
        typer.Option(help="With --eagle 3: draft only this many of the commonest codes. Default: all.", min=1),
    ] = None,
    loss: Annotated[
        Loss,
        typer.Option(
            help="distillation: cross-entropy to the target. lk-alpha, lk-lambda: acceptance itself (LK losses)."
        ),
    ] = Loss.distillation,
    feature_weight: Annotated[
        float, typer.Option(help="Weight of EAGLE-1's loss on the distance to the target's features.", min=0, max=1e6)
    ] = 0.5,
    passes: Annotated[int, typer.Option(help="Levels of a draft that training unrolls.", min=1, max=16)] = 3,
    batch: Annotated[int, typer.Option(help="Pictures of a step.", min=1, max=4096)] = 16,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.", min=1e-9, max=1)] = 5e-4,
    validate_every: Annotated[
        int, typer.Option(help="Steps between two measurements of acceptance on held-out prompts.", min=1)
    ] = 500,
    layout: Annotated[
        DrafterLayout | None,
        typer.Option(help="With --eagle 3: also write the drafter into OUT/LAYOUT in the format of this library."),
    ] = None,
    run: Run,
) -> None:
    """Train a drafter: the target draws pictures, then EAGLE learns to draft them. A stopped run continues.

    The target is a live model (--live); use the result with --live FOLDER --drafter OUT. Or it is the target of an
    exported class-conditional folder (--models), and the drafter is exported into that folder.
    """
    from underpaint.export.trained_drafter import open_exported
    from underpaint.models.eagle3 import Eagle3Decoder
    from underpaint.runtime.evaluation.machine import typed_command
    from underpaint.runtime.live.drafter import read_drafter
    from underpaint.runtime.live.drafter_layouts import code_ids, write_layout
    from underpaint.runtime.live.generate import AcceleratedModel
    from underpaint.runtime.live.load import open_live
    from underpaint.runtime.methods import DEFAULT_METHOD
    from underpaint.runtime.methods.registry import PAPER
    from underpaint.training.distillation import DrafterSettings
    from underpaint.training.drafter_costs import drafter_costs
    from underpaint.training.live_drafter import check_drafter, draw_pictures, train_live_drafter
    from underpaint.training.loop import LoopSettings

    with run.started("runs/drafter") as folder:
        if (live.live is None) == (models is None):
            both = "both" if models is not None else "neither"
            raise ValueError(f"expected --live FOLDER or --models DIR, whose target draws the pictures, got {both}")
        if layout is not None and eagle is not Eagle.three:
            raise ValueError(f"--layout {layout}: expected a drafter of --eagle 3, which it keeps, got --eagle {eagle}")
        if prompts.prompts_file is None:
            raise ValueError("--prompts: expected a file of prompts, which the target draws, got none; name one")
        exported = None if models is None else open_exported(models, run.device)
        if exported is None:
            assert live.live is not None
            pipeline = open_live(live.live, live.family, live.grid, device=run.device)
        else:
            pipeline = exported.pipeline
        fast = AcceleratedModel(pipeline, DEFAULT_METHOD, (), PAPER)
        ids = [condition.ids for condition in choose(pipeline, (), prompts).conditions for _ in range(pictures)]
        settings = DrafterSettings(
            batch=batch,
            passes=passes,
            feature_weight=feature_weight,
            validated=min(_VALIDATION_PICTURES, max(1, len(ids) // 8)),
            loss=loss.value,
        )
        version: Literal[1, 3] = 3 if eagle is Eagle.three else 1
        if layout is not None:
            code_ids(pipeline.live)
        check_drafter(pipeline.live, ids, settings, version, drafted_codes)
        loop = LoopSettings(steps=5000, learning_rate=learning_rate, validate_every=validate_every)
        common = run.common(loop)
        costs = drafter_costs(pipeline.live, settings, version, drafted_codes)
        note(_costs_text(costs, pipeline.live, len(ids), common["loop"]))
        with (
            on_interrupt(lambda: f"stopped while drawing; the same command continues {folder}"),
            progress("drawing pictures", len(ids)) as advance,
        ):
            drawn_pictures = draw_pictures(fast, ids, folder, seed=run.seed, progress=lambda done, _: advance(done))
        outcome = train_live_drafter(
            pipeline.live,
            drawn_pictures,
            folder,
            settings=settings,
            loop=common["loop"],
            seed=run.seed,
            eagle=version,
            drafted_codes=drafted_codes,
            exported=None if exported is None else exported.drafter,
        )
        if exported is not None and outcome.finished:
            exported.export(typed_command())
        if layout is not None:
            trained = read_drafter(pipeline.live, folder)
            assert isinstance(trained, Eagle3Decoder)
            write_layout(pipeline.live, trained, folder / layout, layout.value, str((live.live or Path()).resolve()))
        report(outcome, folder)
    words = ["--models", str(models)]
    if models is None:
        words = [*option_words(live), *option_words(prompts), "--drafter", str(folder)]
    note("next: " + shlex.join(["underpaint", "compare", *words, "--methods", "eagle2"]))


def _costs_text(costs: "DrafterCosts", live: "LiveModel", pictures: int, loop: "LoopSettings") -> str:
    """Describe the memory and time that the run takes."""
    from underpaint.training.drafter_costs import measured_speed

    speed = measured_speed(next(live.body.parameters()))
    drawing, training = costs.hours(speed, pictures, loop.steps)
    length = f"{loop.steps:,} steps {training:.2g} hours at least"
    if loop.minutes is not None:
        length = f"{loop.minutes:g} minutes at most"
    return (
        f"memory: target {costs.target_bytes / 1e9:.2f} GB, drafter {costs.drafter_bytes / 1e9:.2f} GB "
        f"({costs.drafter_parameters / 1e6:.1f} M weights), a batch {costs.batch_bytes / 1e9:.2f} GB\n"
        f"time: drawing {pictures:,} pictures {drawing:.2g} hours at most, training {length} "
        f"({speed.operations / 1e12:.2g} TFLOPS and {speed.bytes / 1e9:.0f} GB/s measured here)"
    )
