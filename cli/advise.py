"""`underpaint advise`: recommend a method for a trace and a machine, with its gain and what would change the answer."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.algos.draft.adt import AdtTree
from underpaint.cli.errors import bad_input, continues, on_interrupt
from underpaint.cli.option_values import refuse_given
from underpaint.cli.options import short_hash
from underpaint.cli.outputs import output_folder
from underpaint.cli.tables import Column, ResultTable, figure, interval, show
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json, note, progress

if TYPE_CHECKING:
    from underpaint.sim.advise import Change, MethodOption
    from underpaint.sim.latency.run_times import RunTimes


class _Advice(NamedTuple):
    """Candidates, the fastest first; the machine's run times; changes that would alter the answer; and notes."""

    candidates: "list[MethodOption]"
    prices: "RunTimes"
    changes: "list[Change]"
    notes: list[str]


def advise(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            help="A trace (.npz), or an acceptance log of vLLM, SGLang, TensorRT-LLM or AIPerf (.json, .jsonl, .prom).",
            show_default=False,
        ),
    ],
    machine: Annotated[
        str,
        typer.Option(
            help="machine/model, FILE.toml/model or a cost curve's .json; `underpaint simulate known` lists machines.",
            show_default=False,
        ),
    ],
    batch: Annotated[int, typer.Option(help="Images drawn together.", min=1)] = 1,
    quality: Annotated[
        str, typer.Option(help="lossless, or the largest total variation of the next token, such as 0.1.")
    ] = "lossless",
    precision: Annotated[
        float, typer.Option(help="Half the 95 % interval of a speedup in the coarse sweep, as a share of it.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED)] = 0,
    jobs: Annotated[int | None, typer.Option(help="Number of processes; default: all cores.", min=1, max=1024)] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=output_folder,
            help="Folder of the coarse sweep, for `underpaint plot`; default: under runs/advise, by settings.",
            show_default=False,
        ),
    ] = None,
    form: FormatOption = Format.table,
    json_file: JsonFile = None,
) -> None:
    """Say which method is fastest for your model on a machine, its expected gain, and what would change the answer.

    A coarse sweep simulates chains and trees at many settings, then repeats the best of each policy with other random
    numbers. Intervals cover the choice of recorded images. After Ctrl-C the same command continues. From an acceptance
    log it can answer only for chains.
    """
    from underpaint.artifacts.files import check_apart
    from underpaint.sim.latency.run_times import CURVE
    from underpaint.sim.sweep.plan import TRACE

    with bad_input():
        check_json(json_file)
        bias = _read_quality(quality)
        if not 0.0 < precision < 1.0:
            raise ValueError(f"--precision: expected a share above 0 and below 1, got {precision}")
        suffixed = not machine.endswith(CURVE) and machine.rpartition("/")[2].startswith("batch")
        if "," in machine or suffixed:
            raise ValueError(f"--machine: expected one machine, and its batch as --batch, got {machine!r}")
        if batch > 1 and machine.endswith(CURVE):
            raise ValueError(
                f"--batch: the curve {machine} holds for the batch it was measured with; measure one at that batch, or "
                "leave --batch out"
            )
        named = f"{machine}/batch{batch}" if batch > 1 else machine
        if source.suffix != TRACE:
            of_sweep = ("precision", "seed", "jobs", "out")
            refuse_given(
                context, of_sweep, "needs a trace, as nothing is simulated from an acceptance log; leave it out"
            )
        if out is not None:
            check_apart({"the record of simulations": out / "results.jsonl", "--json": json_file})
    if source.suffix == TRACE:
        advice = _of_trace(source, named, bias, precision, seed, jobs, out)
    else:
        advice = _of_log(source, named, bias)
    _tell(advice, named, form, json_file)


def _read_quality(text: str) -> float:
    """Return the bound on the bias, 0 for lossless; ValueError for other text."""
    from underpaint.algos.numbers import real_number

    if text == "lossless":
        return 0.0
    try:
        bias = real_number(text)
    except ValueError:
        bias = -1.0
    if not 0.0 < bias < 1.0:
        raise ValueError(f"--quality: expected lossless, or a total variation above 0 and below 1, got {text!r}")
    return bias


def _of_trace(
    source: Path, machine: str, bias: float, precision: float, seed: int, jobs: int | None, out: Path | None
) -> _Advice:
    from underpaint.artifacts.files import check_folder_writable
    from underpaint.artifacts.run_log import OtherRun, RunLogInUse
    from underpaint.artifacts.workers import WorkerError
    from underpaint.runtime.engines.context import usable_cores
    from underpaint.sim.advise import drafter_changes, finalists, price_changes, screening_plan, simulated
    from underpaint.sim.latency.models import SizeMissing
    from underpaint.sim.latency.run_times import run_times_of
    from underpaint.sim.replay.trace import load
    from underpaint.sim.sweep.plan import check, synthetic_model_of
    from underpaint.sim.sweep.plan import jobs as all_jobs
    from underpaint.sim.sweep.run import Results, run, workers

    with bad_input():
        prices = run_times_of(machine)
        trace, model = load(source), synthetic_model_of(str(source), "{}")
        plan = screening_plan(str(source), model, machine, bias, precision, seed, greedy=trace.greedy)
        planned = all_jobs(plan)
        out = out or Path("runs/advise") / short_hash(plan.to_dict())
        check_folder_writable(out)
        jobs = jobs or usable_cores()
        check(plan, planned, jobs)
        results = Results(out, plan)
    with (
        on_interrupt(lambda: continues(f"{len(results.lines)} of {len(planned)} simulations are done", results.path)),
        bad_input(SizeMissing, RunLogInUse, OtherRun, WorkerError),
    ):
        with progress("screening", len(planned), len(planned) - len(results.missing(planned))) as advance:
            run(plan, results, workers("local", jobs), lambda block: advance(len(results), block))
        chosen, other_seed = finalists(results.lines, machine, bias), seed ^ 1
        biases = {line["key"]: line["token_bias"] for line in results.lines}
        steps = len(chosen) if trace.greedy else 3 * len(chosen)
        with progress("comparing the best", steps, 0) as advance:
            candidates = []
            for job in chosen:
                candidates.append(simulated(model, job, biases[job.key], other_seed, prices.fuses_chains))
                advance(len(candidates), job.policy)
            candidates.sort(key=lambda one: -one.speedup(prices).mean)
            changes = list(price_changes(candidates, candidates[0], prices))
            # Greedy decoding goes by the order of the drafter's tokens, which these changes mostly keep.
            drafters = () if trace.greedy else drafter_changes(trace, candidates, candidates[0], prices, other_seed)
            for turn, change in enumerate(drafters, start=2):
                changes.append(change)
                advance(turn * len(candidates), f"{change.what} {change.change}")
    notes = [*_sizes(model.vocab_size, prices), *_depths(len(model.draft), candidates[0]), str(results.path)]
    notes.append(f"next: underpaint plot {shlex.quote(str(results.path))} --figure pareto --out pareto.pdf")
    return _Advice(candidates, prices, changes, notes)


def _of_log(source: Path, machine: str, bias: float) -> _Advice:
    from underpaint.sim.advise import chain_changes, chains_of, price_changes
    from underpaint.sim.latency.run_times import RepeatedTimes, latency_model_of
    from underpaint.sim.replay.acceptance_log import CANNOT, read_acceptance

    with bad_input():
        prices = RepeatedTimes(latency_model_of(machine))
        log = read_acceptance(source)
        if bias:
            raise ValueError(
                "--quality: an acceptance log has no distributions, so the bias is unknown; leave --quality out, or "
                "pass a trace (docs/how-to/trace-your-own-model.md)"
            )
        if not log.positions:
            raise ValueError(f"{source}: expected drafts of one token or more, got none")
        candidates = sorted(chains_of(log), key=lambda one: -one.speedup(prices).mean)
    changes = [*price_changes(candidates, candidates[0], prices), *chain_changes(log, candidates[0], prices)]
    rates = ", ".join(f"{log.acceptance(position).mean:.3f}" for position in range(1, log.positions + 1))
    notes = [
        f"{log.engine}: {log.steps.size} requests, {log.skipped} more without counts; kept by position: {rates}",
        f"Acceptance counts cannot answer: {'; '.join(CANNOT)}.",
    ]
    return _Advice(candidates, prices, changes, notes)


def _sizes(codes: int, prices: "RunTimes") -> Iterator[str]:
    """Yield a note if the trace and the decoder that gives the times have different vocabulary sizes."""
    from underpaint.sim.latency.machines import RooflineCosts
    from underpaint.sim.latency.run_times import RepeatedTimes

    costs = prices.costs if isinstance(prices, RepeatedTimes) else None
    if isinstance(costs, RooflineCosts) and costs.model.vocab_size != codes:
        yield (
            f"The trace has {codes:,} codes, {costs.model.name} {costs.model.vocab_size:,}: acceptance is the trace's, "
            "times are the decoder's."
        )


def _depths(depths: int, answer: "MethodOption") -> Iterator[str]:
    """Yield a note if the answer's trees may be deeper than the trace's draft depths."""
    if answer.job is not None and answer.job.policy == "adt" and depths < AdtTree().max_depth:
        yield (
            f"The trace has {depths} draft depths. Trees of adt grow up to {AdtTree().max_depth} levels; deeper tokens "
            "are predicted by the last recorded depth, which favours them. Record more depths to be sure."
        )


def _tell(advice: _Advice, machine: str, form: Format, json_file: Path | None) -> None:
    answer, prices = advice.candidates[0], advice.prices
    speed = answer.speedup(prices)
    rows, changes = list(_rows(advice)), list(_changes(advice))
    wins = speed.mean > 1.0
    if emit_json(json_file, {"machine": machine, "speeds_up": wins, "candidates": rows, "changes": changes}):
        return
    columns = (
        Column("method", prose=True),
        Column("settings", prose=True),
        figure("speedup", "speedup", ".2f", "x"),
        interval("speedup", "95 %", ".2f"),
        figure("tokens_per_cycle", "tokens\na cycle", ".2f"),
        figure("token_bias", "bias", ".3f"),
    )
    change_columns = (
        Column("what"),
        Column("change", prose=True),
        figure("speedup", "the answer's\nspeedup", ".2f", "x"),
        Column("fastest", "fastest then", prose=True),
        figure("fastest_speedup", "its\nspeedup", ".2f", "x"),
    )
    show(
        [
            ResultTable(f"on {machine}, the fastest first", columns, rows),
            ResultTable("what would change the answer", change_columns, changes),
        ],
        form,
    )
    settings = ", ".join(f"{name}={value}" for name, value in answer.settings.items())
    verdict = f"Decode plainly: the best draft, {answer.name} ({settings}), is {speed.mean:.2f} times as fast."
    if wins:
        verdict = (
            f"Build {answer.name} ({settings}): {speed.mean:.2f} times as fast as plain decoding on {machine}, "
            f"{speed.low:.2f} to {speed.high:.2f} over the recorded images."
        )
    typer.echo(verdict, err=form is not Format.table)
    for text in (
        "The interval covers the choice of images only; docs/results/validation.md has the other errors.",
        *advice.notes,
    ):
        note(text, form)
    if method := _method_of(answer):
        note(f"      underpaint compare --methods {method}", form)


def _rows(advice: _Advice) -> Iterator[dict[str, Any]]:
    for one in advice.candidates:
        speed = one.speedup(advice.prices)
        yield {
            "method": one.name,
            "settings": ", ".join(f"{name}={value}" for name, value in one.settings.items()),
            "speedup": speed.mean,
            "speedup_low": speed.low,
            "speedup_high": speed.high,
            "tokens_per_cycle": one.tokens_per_cycle.mean,
            "token_bias": one.token_bias,
        }


def _changes(advice: _Advice) -> Iterator[dict[str, Any]]:
    for one in advice.changes:
        yield {**one._asdict(), "speedup": one.speedup.mean}


def _method_of(answer: "MethodOption") -> str | None:
    """Return the `underpaint compare` method with the answer's policy and rule, and the options that give its settings.

    None if no method has this policy and rule.
    """
    from underpaint.runtime.methods.registry import METHODS, resolve
    from underpaint.runtime.methods.settings import setting_text
    from underpaint.sim.sweep.plan import all_settings_of

    job = answer.job
    for temperature, option in ((1.0, ""), (0.0, " --temperature 0")) if job is not None else ():
        for spec in METHODS:
            preset = resolve(spec.name, temperature).to_dict()
            if job is None or (preset.get("policy"), preset.get("rule")) != (job.policy, job.rule):
                continue
            defaults = all_settings_of("policy", job.policy) | all_settings_of("rule", job.rule)
            known = {**preset["policy_settings"], **preset["rule_settings"]}
            texts = ((name, setting_text(value)) for name, value in {**defaults, **answer.settings}.items())
            changed = (f" --set {spec.name}.{name}={text}" for name, text in texts if text != setting_text(known[name]))
            return "".join((spec.name, *changed, option))
    return None
