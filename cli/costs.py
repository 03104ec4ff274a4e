"""`underpaint costs`: pass costs on this machine, measured once and kept. Other commands read the curve here too."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from underpaint.cli.errors import bad_input, on_interrupt
from underpaint.cli.live import LiveOptions
from underpaint.cli.options import (
    Backend,
    Guidance,
    Models,
    Resolution,
    TopK,
    TopP,
    grouped,
    read_sampling,
)
from underpaint.cli.outputs import json_output
from underpaint.cli.tables import Column, ResultTable, figure, show
from underpaint.cli.terminal import Format, FormatOption, note, note_files, progress

if TYPE_CHECKING:
    from underpaint.algos.rows import SamplingParams
    from underpaint.artifacts.cost_curve import CostCurveFile
    from underpaint.runtime.methods.method import ModelTables
    from underpaint.runtime.methods.registry import MethodConfig
    from underpaint.runtime.models import OpenModels

_NO_LIVE = LiveOptions()


@grouped
def costs(
    models: Models = None,
    live: LiveOptions = _NO_LIVE,
    resolution: Resolution = None,
    backend: Backend = "cpu",
    guidance: Guidance = None,
    top_k: TopK = None,
    top_p: TopP = None,
    renew: Annotated[bool, typer.Option("--renew", help="Measure again.")] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Also measure every family of methods, for `simulate predict`; takes many minutes.",
        ),
    ] = False,
    form: FormatOption = Format.table,
    export: Annotated[
        Path | None, typer.Option(parser=json_output, help="Also write the curve as JSON to this file.")
    ] = None,
) -> None:
    """Show the cost curve of this machine: milliseconds of a pass by its size. It is measured on first use, then kept.

    The curve is stored in the user's cache folder (XDG_CACHE_HOME, or else ~/.cache), by processor, engine, models,
    threads and rows per pass. Methods that choose drafts by cost read it there.
    """
    from underpaint.artifacts.files import check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.runtime.costs.machine_curve import curve_path
    from underpaint.runtime.engines.context import EngineError

    with bad_input():
        if export is not None:
            check_file_writable(export)
        pipeline = live.open_models(models, resolution, None, backend)
        sampling = read_sampling(1.0, guidance, top_k, top_p, pipeline)
        if pipeline.loaded_drafter is None:
            remedy = "export one into it first" if live.live is None else "train one, and name it with --drafter"
            raise ValueError(f"{pipeline.folder} has no drafter for {pipeline.high.decoder.name}; {remedy}")
    with bad_input(EngineError):  # as of guidance on models without an unconditional row
        curve = _curve(pipeline, sampling, renew=renew, full=full)
    assert curve is not None
    _show(curve, form)
    path = curve_path(pipeline, sampling)
    note(f"Kept in {path}" if path.is_file() else f"Not kept: {path} cannot be written", form)
    if export is not None:
        write_beside(export, curve.content)
        then = "underpaint simulate sweep --machines"
        note_files((export,), f"{then} {shlex.quote(str(export))} simulates on this machine", form)


def curve_for(pipeline: "OpenModels", sampling: "SamplingParams", *, measure: bool = True) -> "CostCurveFile | None":
    """Return this machine's cost curve; None if the models have no drafter.

    Args:
        pipeline: The opened models.
        sampling: The sampling parameters.
        measure: Whether to measure it now if none is kept; otherwise the result is None then.
    """
    from underpaint.runtime.costs.machine_curve import read_stored_curve

    if measure:
        return _curve(pipeline, sampling)
    return read_stored_curve(pipeline, sampling)


def tables_with_costs(
    pipeline: "OpenModels", configs: "Sequence[MethodConfig]", sampling: "SamplingParams", left_out: bool = False
) -> "ModelTables":
    """Return the pipeline's tables, with this machine's costs if one of the methods chooses by them.

    Args:
        pipeline: The opened models.
        configs: The configurations of the methods.
        sampling: The sampling parameters.
        left_out: Whether those methods use their own defaults instead, and nothing is measured.
    """
    from underpaint.runtime.costs.machine_curve import with_costs

    return pipeline.tables if left_out else with_costs(pipeline, pipeline.tables, configs, sampling, _curve)


def _curve(
    pipeline: "OpenModels", sampling: "SamplingParams", *, renew: bool = False, full: bool = False
) -> "CostCurveFile | None":
    """Return the kept curve, or measure one now with a progress bar; None if the models have no drafter."""
    from underpaint.runtime.costs.machine_curve import curve_of, read_stored_curve

    if pipeline.loaded_drafter is None:
        return None
    then = "begins again" if renew else "continues it"
    unfinished = f"stopped: the cost curve is not finished; the same command {then}"
    with on_interrupt(lambda: unfinished):
        curve = None if renew else read_stored_curve(pipeline, sampling)
        if curve is not None and not full:
            return curve
        with progress("measuring what passes cost on this machine, once") as advance:
            return curve_of(pipeline, sampling, lambda done, most: advance(done, total=most), renew=renew, full=full)


def _show(curve: "CostCurveFile", form: Format) -> None:
    about = curve.measured_on
    title = f"{about.get('processor')}, {about.get('threads')} threads, {about.get('engine')}"
    columns: tuple[Column, ...] = (
        Column("nodes", right=True),
        figure("target_ms", "target\npass, ms", ".3f"),
        figure("times_one_node", "times\none node", ".2f"),
        figure("target_in_cycles_ms", "in\ncycles, ms", ".3f"),
        figure("drafter_ms", "drafter\npass, ms", ".3f"),
        figure("chain_ms", "chain in\none call, ms", ".3f"),
    )
    within = curve.in_cycle
    verify, draft = dict(curve.verify_ms), dict(curve.draft_ms)
    inside, chains, windows = (
        ({}, {}, {}) if within is None else map(dict, (within.target_ms, within.chain_ms, within.window_ms))
    )
    if windows:
        columns += (figure("windows_ms", "in Jacobi\nwindows, ms", ".3f"),)
    rows = [
        {
            "nodes": size,
            "target_ms": verify.get(size),
            "times_one_node": verify[size] / verify[1] if size in verify else None,
            "target_in_cycles_ms": inside.get(size),
            "drafter_ms": draft.get(size),
            "chain_ms": chains.get(size),
            "windows_ms": windows.get(size),
        }
        for size in sorted({*verify, *draft, *chains})
    ]
    show([ResultTable(f"{curve.model.get('target')} and {curve.model.get('drafter')} on {title}", columns, rows)], form)
    note(f"On this machine {curve.knee.describe()}. Fingerprint {curve.fingerprint[:12]}.", form)
    warning = curve.disturbed()
    if warning is not None:
        note(f"Beware: {warning}.", form)
