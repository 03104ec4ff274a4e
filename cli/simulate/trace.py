"""`underpaint trace`: record the distributions of target and drafter at every cell, for the simulator."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from underpaint.cli.costs import tables_with_costs
from underpaint.cli.errors import bad_input
from underpaint.cli.evaluation.prompts import PromptOptions, choose
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import read_names, refuse_given, settings_by_method
from underpaint.cli.options import (
    Backend,
    Guidance,
    Low,
    MethodSettings,
    Models,
    Resolution,
    Seed,
    Temperature,
    TopK,
    TopP,
    checked_temperature,
    grouped,
    read_sampling,
)
from underpaint.cli.outputs import output_file
from underpaint.cli.terminal import note, progress

if TYPE_CHECKING:
    from underpaint.runtime.models import OpenModels
    from underpaint.sim.replay.trace import Trace

APART = 64
"""Number of built-in prompts that a trace skips by default, because `underpaint compare` starts from them."""


_IMAGES: Final = 16
_MOST_IMAGES: Final = 500
_NO_LIVE = LiveOptions()
_KEEP: Final = 256
"""Default number of likeliest tokens to keep."""
DEFAULT_OUT: Final = Path("runs/trace.npz")


@grouped
def trace(
    context: typer.Context,
    prompts: Annotated[
        list[str] | None, typer.Argument(help="What to draw, as for `generate`; default: built-in prompts.")
    ] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts", help="A file of prompts; see `compare`. Default: built-in prompts.", show_default=False
        ),
    ] = None,
    prompts_count: Annotated[
        int | None,
        typer.Option(
            help="Images, each with a different prompt; default: 16 built-in prompts, or all of --prompts.",
            min=1,
            max=_MOST_IMAGES,
            show_default=False,
        ),
    ] = None,
    prompts_skip: Annotated[
        int | None,
        typer.Option(
            help="Number of prompts to leave out; default: 64 built-in ones, which `compare` draws first.",
            min=0,
            show_default=False,
        ),
    ] = None,
    temperature: Temperature = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to predict, separated by commas. Also records MuLo-SD's drafted rows, and the drawings of "
            "methods that a trace cannot replay (Jacobi windows, adaptive ZipAR, VVS)."
        ),
    ] = "",
    preset: Annotated[
        str | None,
        typer.Option(help="Draw the prompts of --methods with this preset only: tuned or paper.", show_default=False),
    ] = None,
    setting: MethodSettings = None,
    depths: Annotated[int, typer.Option(help="How many tokens past the root to follow the drafter.", min=1)] = 6,
    keep: Annotated[
        int | None, typer.Option(help="Likeliest tokens kept of each distribution; default: 256, or all.", min=1)
    ] = None,
    seed: Seed = 0,
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    resolution: Resolution = None,
    low: Low = None,
    backend: Backend = "cpu",
    own_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Logits of your own model, an .npz file or a folder of them, instead of a model to draw with; or, "
            "with --to, a trace or an engine's acceptance log: docs/how-to/trace-your-own-model.md.",
            show_default=False,
        ),
    ] = None,
    acceptance: Annotated[
        Path | None,
        typer.Option(
            "--to",
            parser=output_file,
            help="With --from TRACE or LOG: write its acceptance counts as AIPerf does (.jsonl), not a trace.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        int, typer.Option(help="With --to and a trace: drafted tokens of the chains that are counted.", min=1, max=64)
    ] = 4,
    out: Annotated[
        Path | None,
        typer.Option(parser=output_file, help=f"The .npz file to write; default: {DEFAULT_OUT}.", show_default=False),
    ] = None,
) -> None:
    """Draw by plain autoregression and record the distributions of target and drafter at every cell.

    With --from, the distributions come from a file of your own model. --temperature, --top-k and --top-p are applied to
    its logits, and --grid gives its rows and columns.

    With --to, write the acceptance counts of a trace, or of a log of vLLM, SGLang, TensorRT-LLM or AIPerf, in AIPerf's
    format: one JSON line per request or image.

    At temperature 0 the trace has the distributions at temperature 1, which greedy rules read. Record other prompts
    than you compare on: `underpaint compare` starts from the first prompt (--prompts-skip). Pass --methods and --set as
    to `compare` for MuLo-SD, and for methods that a trace of plain autoregression cannot replay, such as Jacobi
    windows. Their prompts are drawn with both presets, unless --preset names one.
    """
    from underpaint.algos.protocols import Grid
    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.files import check_file_writable
    from underpaint.cli.simulate.trace_methods import MethodRecorders
    from underpaint.runtime.drawing import noise_of
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.methods.registry import PRESETS, TUNED, resolve, usual_preset
    from underpaint.sim.replay.own_logits import misplaced, trace_of_own
    from underpaint.sim.replay.recording import Recorder

    trace_file = DEFAULT_OUT if out is None else out
    with bad_input():
        checked = checked_temperature(temperature)
        options = {one.name for one in context.command.params}
        if acceptance is not None:
            converting = {"own_file", "acceptance", "length", "seed"}
            refuse_given(context, options - converting, "does not go with --to, which only counts; leave it out")
            if own_file is not None and own_file.suffix != ".npz":
                refuse_given(context, ("length", "seed"), "needs a trace, and a log is only converted; leave it out")
            _write_acceptance(own_file, acceptance, length, seed)
            return
        refuse_given(context, ("length",), "needs --to; leave it out")
        if trace_file.suffix != ".npz":
            raise ValueError(f"--out {trace_file}: expected a name that ends in .npz")
        if own_file is not None:
            reading = {"own_file", "temperature", "top_k", "top_p", "grid", "keep", "out"}
            refuse_given(
                context,
                options - reading,
                "does not go with --from, as nothing is drawn; leave it out (apply guidance to the logits before you "
                "store them)",
            )
            sampling = SamplingParams(temperature=checked, top_k=top_k or 0, top_p=1.0 if top_p is None else top_p)
            check_file_writable(trace_file)
            grid = None if live.grid is None else Grid.read(live.grid)
            recorded = trace_of_own(_own_files(own_file, trace_file), sampling, grid, keep or _KEEP)
            _finish(recorded, trace_file)
            if warning := misplaced(recorded):
                note(f"Beware: {warning}.")
            return
        if live.grid and live.live is None:
            raise ValueError("--grid needs --from or --live; exported models have their own grid, so leave --grid out")
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"--preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
        if not methods:
            refuse_given(context, ("preset",), "needs --methods, whose pictures are drawn with it; leave it out")
        names = read_names(methods)
        settings = settings_by_method(setting or [], names)
        for name in names:
            resolve(name, checked, None, settings[name], preset or TUNED)
        check_file_writable(trace_file)
        pipeline = live.open_models(models, resolution, low, backend)
        sampling = read_sampling(temperature, guidance, top_k, top_p, pipeline)
        config = resolve("ar", sampling.temperature)
        usual = preset or usual_preset(pipeline)
        presets = (usual,) if preset else (usual, *(other for other in PRESETS if other != usual))
        configs = [
            (name, resolve(name, sampling.temperature, None, settings[name], each))
            for each in presets
            for name in names
        ]
        if pipeline.loaded_drafter is None:
            pipeline.drafter(sampling)  # raises an error with a remedy
        keep = min(_KEEP, pipeline.tables.vocab_size) if keep is None else keep
        chosen = not prompts and prompts_file is None and live.live is None
        conditions = choose(
            pipeline,
            prompts or (),
            PromptOptions(
                prompts_file,
                prompts_count=(prompts_count or _IMAGES) if chosen else prompts_count,
                prompts_skip=(APART if chosen else 0) if prompts_skip is None else prompts_skip,
            ),
        ).conditions
        if len(conditions) > _MOST_IMAGES:
            raise ValueError(
                f"--prompts: expected at most {_MOST_IMAGES} images, got {len(conditions)}; pass --prompts-count"
            )
        read_trace_sizes(pipeline, depths, keep, len(conditions))
        recorder = Recorder(pipeline.tables.codebook, pipeline.tables.neighbours, depths, keep)
        tables = tables_with_costs(pipeline, [one for _, one in configs], sampling)
        recorders = MethodRecorders(pipeline, tables, sampling, configs, len(names), keep, seed, conditions[0])
    used = config.target_sampling(sampling)
    with bad_input(EngineError), progress("recording", len(conditions)) as advance:
        for done, condition in enumerate(conditions, start=1):
            target, drafter = pipeline.target(condition, used).model, pipeline.drafter(used).model
            image = recorder.add(target, drafter, noise_of(condition, seed), greedy=sampling.temperature == 0)
            recorders.add(condition, image)
            advance(done)
    recorded = recorder.trace(
        {
            "model": dict(pipeline.fingerprint()),
            "sampler": dataclasses.asdict(sampling),
            "prompts": [condition.caption() for condition in conditions],
            "seed": seed,
        },
        *recorders.traces(),
    )
    _finish(recorded, trace_file)


def _finish(recorded: "Trace", out: Path) -> None:
    """Write the trace, and print a summary."""
    from underpaint.sim.replay.trace import save

    save(recorded, out)
    figures = [
        float(recorded.acceptance[:, depth, depth + 1 :].mean()) for depth in range(recorded.acceptance.shape[1])
    ]
    overlaps = ", ".join(f"{share:.3f}" for share in figures) or "no drafter"
    typer.echo(
        f"{recorded.tokens.shape[0]} images of {recorded.grid.cells} cells. Likeliest token "
        f"{recorded.target_probs[..., 0].mean():.3f}, entropy {recorded.target_entropy.mean():.2f} nats, overlap of "
        f"drafter and target by tokens past the root: {overlaps}"
    )
    typer.echo(str(out))
    name = shlex.quote(str(out))
    if not recorded.draft_probs.shape[1]:
        note("Without draft_logits no method can be simulated: docs/how-to/trace-your-own-model.md")
        return
    note(f"next: underpaint advise {name} --machine a100/llamagen-xl")
    note(
        f"      underpaint simulate sweep --model {name} --policies eagle2,adt --rules "
        f"{'greedy' if recorded.greedy else 'point'} --machines a100/llamagen-xl"
    )


def _write_acceptance(source: Path | None, out: Path, length: int, seed: int) -> None:
    """Write the acceptance counts of a trace or a log, and print the kept share by position."""
    from underpaint.artifacts.files import check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.sim.replay.acceptance_log import CANNOT, acceptance_of, aiperf_lines, read_acceptance
    from underpaint.sim.replay.trace import load, replay

    if source is None:
        raise ValueError("--to needs --from TRACE.npz or --from LOG, the source of the acceptance counts; add it")
    if out.suffix != ".jsonl":
        raise ValueError(f"--to {out}: expected a name that ends in .jsonl")
    check_file_writable(out)
    if source.suffix == ".npz":
        own = load(source)
        log = acceptance_of(replay(own, source.stem), length, seed, greedy=own.greedy)
    else:
        log = read_acceptance(source)
    write_beside(out, aiperf_lines(log))
    rates = ", ".join(f"{log.acceptance(position).mean:.3f}" for position in range(1, log.positions + 1))
    typer.echo(f"{log.steps.size} requests of {log.engine}, {int(log.steps.sum()):,} cycles. Kept by position: {rates}")
    typer.echo(str(out))
    note(f"Acceptance counts cannot answer: {'; '.join(CANNOT)}.")
    note(f"next: underpaint advise {shlex.quote(str(out))} --machine a100/llamagen-xl")


def _own_files(path: Path, out: Path) -> list[Path]:
    """The files of logits at a path; in a folder, without a trace that was written there before."""
    files = sorted(file for file in path.glob("*.npz") if file.resolve() != out.resolve()) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"--from {path}: expected a folder with .npz files, got none in it")
    return files


def read_trace_sizes(pipeline: "OpenModels", depths: int, keep: int, images: int) -> None:
    """Raise ValueError, with the largest possible value, if a trace's sizes exceed the model's or the memory."""
    from underpaint.algos.memory import check_memory

    cells, codes = pipeline.grid.cells, pipeline.tables.vocab_size
    if depths >= cells:
        raise ValueError(f"--depths: expected at most {cells - 1}, the number of cells after the first, got {depths}")
    if keep > codes:
        raise ValueError(f"--keep: expected at most {codes}, the codes of this model, got {keep}")
    # The current image needs distributions of target and drafts in float64; a recorded one, kept tokens and masses.
    check_memory("recording an image", "--depths", depths, 3 * 8 * cells * codes)
    check_memory("the recorded images", "--prompts-count", images, 2 * 16 * cells * (depths + 1) * keep)
