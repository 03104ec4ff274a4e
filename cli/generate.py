"""`underpaint generate`: pictures from prompts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from underpaint.cli.costs import tables_with_costs
from underpaint.cli.device import PictureJob, draw_on_device, plan_on_device
from underpaint.cli.errors import bad_input, on_interrupt
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.options import (
    DEVICE,
    Backend,
    DeviceOptions,
    Guidance,
    Low,
    Models,
    Preset,
    Resolution,
    Seed,
    Temperature,
    TopK,
    TopP,
    check_costs,
    check_preset,
    checked_temperature,
    grouped,
    read_preset,
    read_sampling,
    short_hash,
)
from underpaint.cli.outputs import check_replaceable, file_or_folder
from underpaint.cli.terminal import is_quiet, progress
from underpaint.runtime.methods import DEFAULT_METHOD

if TYPE_CHECKING:
    from underpaint.runtime.conditions import Condition
    from underpaint.runtime.drawing import Drawing
    from underpaint.runtime.models import OpenModels

DEFAULT_OUT = Path("runs/generate")
_MOST_LETTERS: Final = 60
"""Letters of a prompt in a file's name."""
_NO_FILE = PromptOptions()
_NO_LIVE = LiveOptions()
_NO_DEVICE = DeviceOptions()
_FORMATS: Final[Mapping[str, Literal["PNG", "WEBP"]]] = {".png": "PNG", ".webp": "WEBP"}
"""Lossless picture formats, by file ending."""
_LOOPS = {"host": "", "kernels": ", by kernels launched one by one", "captured": ", by captured cycles"}
"""Text on how a picture was drawn; nothing for the host's loop, which is the usual one."""
_OTHER_FORMATS = (".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".avif")
"""Endings of other picture formats, which never name a folder."""


@grouped
def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help='Prompts in quotes, such as "a woolly fox left of an outlined pumpkin"; see --models.'),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=file_or_folder,
            help="The picture to write (.png or .webp), or the folder for several pictures. Default: under "
            "runs/generate, named by the settings.",
            show_default=False,
        ),
    ] = None,
    prompt_options: PromptOptions = _NO_FILE,
    method: Annotated[
        str, typer.Option(help="The decoding method; see `underpaint methods`. The default is lossless.")
    ] = DEFAULT_METHOD,
    rule: Annotated[str | None, typer.Option(help="Verify the method's drafts by another acceptance rule.")] = None,
    preset: Preset = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method, as name=value; repeat for more.")
    ] = None,
    temperature: Temperature = None,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(help="Pictures per prompt, with seeds counted from --seed.", min=1, max=1_000_000)
    ] = 1,
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    device: DeviceOptions = _NO_DEVICE,
    draft_if_faster: Annotated[
        bool,
        typer.Option(
            "--draft-if-faster",
            help="With --backend device: time a lossless method and plain autoregression on the first pictures, and "
            "draw the others by the faster one. In large batches drafts may cost more time than they save.",
        ),
    ] = False,
    save_tokens: Annotated[
        bool, typer.Option("--save-tokens", help="Also write a .json of tokens and costs for every picture.")
    ] = False,
) -> None:
    """Draw pictures from prompts."""
    from underpaint.artifacts.files import check_file_writable
    from underpaint.runtime.drawing import ImageTask, check_trial, draw_in, noise_of
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.evaluation.comparison import BASELINE
    from underpaint.runtime.methods.registry import TUNED, build_method, resolve, usual_preset

    with bad_input():
        device.check(backend, batches=live.live is not None)
        device.check_live(live.live)
        if draft_if_faster and backend != DEVICE:
            raise ValueError("--draft-if-faster needs --backend device; add it, or leave the option out")
        checked = checked_temperature(temperature)
        live.check(models, resolution, low, backend, on_device=True)
        resolve(method, checked, rule, setting or (), TUNED if preset is None else read_preset(preset))
        texts = list(prompts or ())
        if not texts and prompt_options == _NO_FILE:
            raise ValueError(
                'expected a prompt, such as "a woolly fox left of an outlined pumpkin" of the shipped models, '
                "--prompts FILE or --prompts-count; `underpaint prompts` lists the words"
            )
        # Typed prompts already give the number of pictures. A file or a vocabulary gives it only once it is read, so a
        # folder is accepted for any number of them.
        if texts:
            _check_place(out, len(texts) * seeds > 1)
        into_folder = not texts and (out is None or out.suffix.lower() not in _FORMATS)
        pipeline = live.open_models(models, resolution, low, backend, on_device=True, device=device)
        check_costs(setting or (), pipeline)
        if texts and prompt_options == _NO_FILE:
            conditions: Sequence[Condition] = [pipeline.condition(text) for text in texts]
        else:
            conditions = choose(pipeline, texts, prompt_options).conditions
        into_folder = into_folder or len(conditions) * seeds > 1
        _check_place(out, into_folder)
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline)
        chosen = usual_preset(pipeline) if preset is None else read_preset(preset)
        check_preset(chosen, pipeline)
        config = resolve(method, sampling.temperature, rule, setting or (), chosen)
        if out is None:
            named_by = {"method": method, **config.to_dict(), "sampling": repr(sampling)}
            named_by |= {"draft_if_faster": True} if draft_if_faster else {}
            folder = DEFAULT_OUT / short_hash({**named_by, "model": dict(pipeline.fingerprint())})
        pictures = _picture_jobs(out or folder, conditions, range(seed, seed + seeds), into_folder or out is None)
        for one in pictures:
            noise_of(one.condition, one.seed)
            check_file_writable(one.path)
            check_replaceable("--out", one.path)
            if save_tokens:
                check_file_writable(one.path.with_suffix(".json"))
                check_replaceable("--save-tokens", one.path.with_suffix(".json"))
        if pipeline.decoder is None:
            if live.live is not None:
                raise ValueError(
                    f"--live {live.live}: this model has no picture decoder, so no picture can be written; get the "
                    "tokens from underpaint.accelerate() in Python, or compare methods with `compare`. LlamaGen and "
                    "Tar need their tokenizer, vq_ds16_c2i.pt or vq_ds16_t2i.pt, in the checkpoint's folder"
                )
            raise ValueError(f"{pipeline.folder} has no picture decoder; export its tokenizer into it")
        priced = config.needs_costs and backend != DEVICE
        tables = tables_with_costs(pipeline, [config], sampling) if priced else pipeline.tables
        drawn_by = build_method(method, config, tables)
        on_device = plain = None
        if draft_if_faster:
            check_trial(drawn_by, 1 if device.batch is None else device.batch, len(pictures))
            plain = build_method(BASELINE, resolve(BASELINE, sampling.temperature, None, (), TUNED), tables)
        if backend == DEVICE:
            drawers = [drawn_by] if plain is None else [drawn_by, plain]
            on_device = plan_on_device(pipeline, drawers, sampling, device, conditions)
        for condition in conditions[1:]:
            pipeline.target(condition, sampling)
        first = drawn_by.open(pipeline, conditions[0], sampling)
        batches = None
        if live.live is not None and device.batch is not None and on_device is None:
            from underpaint.runtime.live.batch import open_batches

            batches = open_batches(pipeline, device.batch, sampling)

    def drawings() -> "Iterator[tuple[PictureJob, Drawing]]":
        session, opened = first, conditions[0]
        if batches is not None:
            tasks = [ImageTask(one.condition, one.seed) for one in pictures]
            numbered_drawings = batches.draw(lambda: build_method(method, config, tables), sampling, tasks)
            yield from ((pictures[number], drawing) for number, drawing in numbered_drawings)
            return
        for one in pictures:
            if one.condition is not opened:
                session, opened = drawn_by.open(pipeline, one.condition, sampling), one.condition
            yield one, draw_in(session, drawn_by.name, one.condition, one.seed)

    if on_device is not None:
        draw_on_device(
            on_device,
            drawn_by,
            sampling,
            pictures,
            lambda one, drawing: _finish(pipeline, save_tokens, one, drawing),
            plain,
        )
        return
    finished = 0
    # A pass that the engine cannot run fails only while drawing.
    with (
        on_interrupt(lambda: f"stopped: {finished} of {len(pictures)} pictures are written and kept"),
        bad_input(EngineError),
        progress("drawing", len(pictures)) as advance,
    ):
        for one, drawing in drawings():
            _finish(pipeline, save_tokens, one, drawing)
            finished += 1
            advance(finished)


def _check_place(out: Path | None, into_folder: bool) -> None:
    """Raise ValueError unless `--out` names a picture, or a folder of pictures, that can be written."""
    from underpaint.artifacts.files import check_file_writable, check_folder_writable

    if out is not None and into_folder and out.suffix.lower() in _FORMATS:
        raise ValueError(f"--out {out}: expected a folder for several pictures, got a file name; name a folder")
    picture = not into_folder or (out is not None and out.suffix.lower() in _OTHER_FORMATS)
    if out is not None and picture and out.suffix.lower() not in _FORMATS:
        raise ValueError(f"--out {out}: expected a name that ends in {', '.join(_FORMATS)}")
    if out is not None and not into_folder:
        check_file_writable(out)
    else:
        check_folder_writable(out or DEFAULT_OUT)


def _picture_jobs(out: Path, conditions: "Sequence[Condition]", seeds: range, into_folder: bool) -> list[PictureJob]:
    """Return every picture with its file: NUMBER-PROMPT-seedSEED.png in a folder, numbered in the order of prompts."""
    if not into_folder:
        return [PictureJob(conditions[0], seeds[0], out)]
    return [
        PictureJob(condition, seed, out / f"{place:04d}-{_slug(condition.caption())}-seed{seed}.png")
        for place, condition in enumerate(conditions)
        for seed in seeds
    ]


def _slug(text: str) -> str:
    """Return a prompt in a form that fits into a file name, with a hash if the form leaves something out."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else " " for letter in text.lower())
    words = "-".join(kept.split())
    if len(words) <= _MOST_LETTERS and "-".join(text.replace(", ", " ").split()) == words:
        return words or "picture"
    return f"{words[: _MOST_LETTERS - 9].rstrip('-') or 'picture'}-{short_hash({'prompt': text})[:8]}"


def _finish(pipeline: "OpenModels", save_tokens: bool, one: PictureJob, drawing: "Drawing") -> None:
    """Write a picture and print a line about it; with --quiet, only its path."""
    _write(pipeline, one, drawing, save_tokens)
    typer.echo(str(one.path) if is_quiet() else _summary_line(one, drawing))


def _write(pipeline: "OpenModels", one: PictureJob, drawing: "Drawing", save_tokens: bool) -> None:
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.engines.images import encoded

    picture = pipeline.picture(drawing.tokens_array())
    write_beside(one.path, encoded(picture, _FORMATS[one.path.suffix.lower()]))
    if save_tokens:
        from dataclasses import asdict

        record = {**asdict(drawing), "grid": list(pipeline.grid), "model": dict(pipeline.fingerprint())}
        write_beside(one.path.with_suffix(".json"), (json.dumps(record) + "\n").encode())


def _summary_line(one: PictureJob, drawing: "Drawing") -> str:
    count, passes = len(drawing.tokens), drawing.target_nfe
    return (
        f"{one.path}: {one.condition.caption()!r} by {drawing.method}, {drawing.seconds:.2f} s, {count} tokens in "
        f"{passes} target and {drawing.drafter_nfe} drafter passes ({count / passes:.2f} tokens per target pass)"
        f"{_LOOPS[drawing.loop]}"
    )
