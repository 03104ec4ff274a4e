"""`underpaint certify`: is a verifier that somebody else wrote lossless?"""

import json
import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.certify_live import DEFAULT_METHODS, certify_live
from underpaint.cli.errors import bad_input, on_interrupt
from underpaint.cli.live import LiveOptions
from underpaint.cli.options import MethodSettings, grouped
from underpaint.cli.outputs import check_replaceable, output_file
from underpaint.cli.terminal import (
    STANDARD_OUTPUT,
    Column,
    Format,
    FormatOption,
    JsonFile,
    ResultTable,
    check_json,
    note,
    show,
    write_json,
)

if TYPE_CHECKING:
    from underpaint.algos.tree import Drawn
    from underpaint.sim.certify.adapters import Interface, Spec
    from underpaint.sim.certify.case import VerifierCase
    from underpaint.sim.certify.certificate import Certificate
    from underpaint.sim.certify.measurement import Effort
    from underpaint.sim.certify.verifier import Verifier


DEFAULT_OUT = Path("failing-case.json")
_NO_LIVE = LiveOptions()
NOTHING = "stopped: nothing was written"
NOT_LOSSLESS = 1
"""The exit code of a verifier that is biased or faulty."""
SCRIPTED_SUFFIX = ".py"
"""The ending of a failing case that is written as a script."""


@grouped
def certify(
    verifier: Annotated[
        str | None,
        typer.Argument(help="module:function, file.py:function, rule:NAME, gallery:NAME, or a command line."),
    ] = None,
    interface: Annotated[
        str,
        typer.Option(
            "--as",
            help="How to call it: function, seeded, session, rule, process, or the layout of eagle, sglang, "
            "flashinfer, vllm, vllm-block, tensorrt-llm or transformers.",
        ),
    ] = "function",
    drawn: Annotated[
        str | None,
        typer.Option(help="How siblings are drawn: iid, without_replacement or top_k. Default: by --as."),
    ] = None,
    chain: Annotated[bool, typer.Option("--chain", help="Judge chains only: no node has two children.")] = False,
    seeds: Annotated[
        bool,
        typer.Option(
            "--own-seed", help="With --as process: the program gets a seed instead of uniforms; tested by samples."
        ),
    ] = False,
    cycles: Annotated[
        int, typer.Option(help="Judge this many cycles in a row, for a session or a rule.", min=1, max=4)
    ] = 1,
    bits: Annotated[
        int | None,
        typer.Option(help="Precision: 53 (float64), 24 (float32), 11 (float16) or 8 (bfloat16). Default: detected."),
    ] = None,
    promise: Annotated[
        list[str] | None,
        typer.Option(
            help='What a relaxed verifier promises: "tv<=0.1", or for one setting "delta=0.2: tv<=0.2". Repeat it.',
            show_default=False,
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 for a boundary finding too.")] = False,
    cases: Annotated[int, typer.Option(help="Number of cases to judge it on.", min=1, max=1000)] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the cases.", min=0, max=MOST_SEED)] = 0,
    margin: Annotated[
        float, typer.Option(help="When tested by samples: the smallest error of a probability that must be found.")
    ] = 0.03,
    timeout: Annotated[
        float, typer.Option(help="Seconds without an answer after which it counts as hanging.", min=0.1, max=86_400)
    ] = 10.0,
    seconds: Annotated[
        float, typer.Option(help="Start no further case after this many seconds.", min=1, max=86_400)
    ] = 300.0,
    shrink_seconds: Annotated[
        float, typer.Option(help="Search at most this many seconds for a smaller failing case.", min=0, max=86_400)
    ] = 15.0,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=output_file,
            help="File for the smallest failing case: .json can be replayed, .py is a script that needs only NumPy "
            "and the verifier. Default: failing-case.json.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Judge only on the case in this file, with its verifier unless another is named."),
    ] = None,
    gallery: Annotated[bool, typer.Option("--gallery", help="List the built-in verifiers, correct and wrong.")] = False,
    live: LiveOptions = _NO_LIVE,
    methods: Annotated[
        str | None,
        typer.Option(
            help="With --live: methods, separated by commas, judged on every picture of a small --grid (2x2); default: "
            f"{DEFAULT_METHODS}.",
            show_default=False,
        ),
    ] = None,
    setting: MethodSettings = None,
    top_k: Annotated[
        int | None, typer.Option(help="With --live: likeliest codes to keep per cell; default: 2.", show_default=False)
    ] = None,
    form: FormatOption = Format.table,
) -> None:
    """Test whether a verifier is lossless. If it is not, show the smallest case, the node and the known mistake.

    With --live, test methods on a transformers model instead, by the exact distribution of small pictures.

    Exit code 0: lossless on every case, or but for a boundary (unless --strict), or within its promise. Exit code 1:
    biased, or faulty: it raises, hangs or returns nonsense. Exit code 2: bad input.
    """
    from underpaint.artifacts.files import check_apart, check_file_writable
    from underpaint.sim.certify.adapters import Spec, interface_of
    from underpaint.sim.certify.certificate import certify as judged
    from underpaint.sim.certify.isolated import open_isolated
    from underpaint.sim.certify.measurement import Effort

    if gallery:
        _list_gallery(form)
        return
    if live.live is not None:
        with bad_input():
            if verifier is not None or replay is not None:
                raise ValueError("--live: expected methods to judge on a live model, got a verifier; leave one out")
        with on_interrupt(lambda: NOTHING):
            if not certify_live(live, methods, setting or (), top_k, json_file, form):
                raise typer.Exit(NOT_LOSSLESS)
        return
    with bad_input():
        live.check(None, None, None, "cpu")
        if methods is not None or setting or top_k is not None:
            raise ValueError("--methods, --set and --top-k need a live model; pass its folder with --live")
        if not 0.001 <= margin < 1.0:
            raise ValueError(f"--margin: expected 0.001 to below 1, got {margin}")
        place = out or DEFAULT_OUT
        if replay is None:
            check_replaceable("--out", place, "py" if place.suffix == SCRIPTED_SUFFIX else "json")
            check_file_writable(place)
        check_json(json_file)
        check_apart({"--out": place, "--json": json_file})
        promises = [_read_promise(text) for text in promise or ()] or [((), None)]
        if json_file is not None and len(promises) > 1:
            raise ValueError(f"--json: expected one --promise, got {len(promises)}; judge one setting at a time")
        named = None
        if verifier is not None:
            named = Spec(verifier, cast("Interface", interface), seeds, bits, promises[0][0])
        if replay is not None:
            case, spec, cycles = _read_case(replay, named)
            kind, only_chains = case.drawn, chain
        elif named is None:
            raise ValueError("name a verifier: module:function, file.py:function, rule:NAME or gallery:NAME")
        else:
            case, spec = None, named
            kind, only_chains = _trees(spec, drawn, chain)
        if cycles > 1 and interface_of(spec) not in ("session", "rule") and not spec.target.startswith("rule:"):
            raise ValueError(f"--cycles: expected a session or a rule, got {spec.target} as {interface_of(spec)}")
        effort = Effort(margin=margin, seed=seed, bits=bits, cycles=cycles)
    code = 0
    for settings, bound in promises:
        one = replace(spec, settings=settings) if settings else spec
        with bad_input():
            opening = open_isolated(one, timeout)
        with on_interrupt(lambda: NOTHING), opening as opened:
            with bad_input():
                _check_first_call(one, opened, kind, only_chains)
            if case is not None:
                _replay(case, opened, effort, spec)
                return
            certificate = judged(opened, kind, only_chains, cases, seed, effort, shrink_seconds, seconds, bound)
        failed = certificate.verdict in ("biased", "faulty") or (strict and certificate.count("boundary") > 0)
        _report(certificate, one, json_file, place if failed and not code else None)
        code = NOT_LOSSLESS if failed else code
    if code:
        raise typer.Exit(code)


def _check_first_call(spec: "Spec", opened: "Verifier", drawn: "Drawn", chain: bool) -> None:
    from underpaint.sim.certify.certificate import check_first_call

    try:
        check_first_call(opened, drawn, chain)
    except ValueError as error:
        raise ValueError(f"verifier {spec.target!r}: {error}") from error


def _read_promise(text: str) -> tuple[tuple[tuple[str, float], ...], float | None]:
    """Parse "tv<=0.1" or "name=value, name=value: tv<=0.1" into settings and bound; ValueError for other text."""
    settings_text, colon, claim = text.rpartition(":")
    claim = "".join(claim.split())
    try:
        settings = []
        for part in settings_text.split(",") if colon else ():
            name, value = part.split("=")
            settings.append((name.strip(), float(value)))
        if not claim.startswith("tv<=") or not 0.0 <= float(claim[4:]) <= 1.0:
            raise ValueError(text)
        return tuple(settings), float(claim[4:])
    except ValueError:
        raise ValueError(
            f'--promise: expected "tv<=X" with X from 0 to 1, or "name=value: tv<=X", got {text!r}'
        ) from None


def _report(certificate: "Certificate", spec: "Spec", json_file: Path | None, place: Path | None) -> None:
    """Print a certificate; also write it to `json_file`, and its smallest failing case to `place`, if given."""
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import with_envelope
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.sim.certify.adapters import interface_of, with_whole_path
    from underpaint.sim.certify.certificate import finding_to_dict
    from underpaint.sim.certify.report import certificate_lines
    from underpaint.sim.certify.reproduce import script

    machine, command = describe_machine(), typed_command()
    if json_file is not None:
        values = {"verifier": _spec_to_dict(spec), **certificate.to_dict()}
        write_json(json_file, with_envelope("certify", machine, command, values))
    as_text = Format.json if json_file == STANDARD_OUTPUT else Format.table
    lines = certificate_lines(certificate, spec.target, dict(spec.settings))
    typer.echo("\n".join(lines), err=json_file == STANDARD_OUTPUT)
    if place is None:
        return
    first = certificate.first
    if place.suffix == SCRIPTED_SUFFIX:
        with bad_input():
            text = script(first.case, first.measured, spec.target, interface_of(spec), certificate.cycles)
        write_beside(place, text.encode())
        note(f"the case is in {place}; again with: python {place}", as_text)
        return
    values = {
        "verifier": {**_spec_to_dict(spec), "target": with_whole_path(spec.target)},
        "case": first.case.to_dict(),
        "cycles": certificate.cycles,
        "finding": finding_to_dict(first.measured),
        "looks_like": certificate.to_dict()["looks_like"],
    }
    write_beside(place, _as_json(with_envelope("certify-case", machine, command, values)))
    note(f"the case is in {place}; again with: {_replay_command(place, spec)}", as_text)


def _spec_to_dict(spec: "Spec") -> dict[str, Any]:
    return {**asdict(spec), "settings": dict(spec.settings)}


def _replay_command(out: Path, spec: "Spec") -> str:
    """Return a command that replays the case from any folder, with the loaded plug-ins, a program from this one."""
    from underpaint.algos.plugins import loaded_plugins

    plugins = [f"--plugin={name}" for name in loaded_plugins()]
    command = shlex.join(["underpaint", *plugins, "certify", "--replay", str(out.resolve())])
    return f"cd {shlex.quote(os.getcwd())} && {command}" if spec.interface == "process" else command


def _trees(spec: "Spec", drawn: str | None, chain: bool) -> "tuple[Drawn, bool]":
    """Return how siblings are drawn, and whether trees are chains; ValueError if the verifier has no such trees."""
    from underpaint.algos.tree import DRAWN
    from underpaint.sim.certify.adapters import drawn_by, needs_chain

    kind = drawn or drawn_by(spec)
    for choice in DRAWN:
        if kind == choice:
            spec.check_drawn(choice)
            return choice, chain or needs_chain(spec)
    raise ValueError(f"--drawn: expected one of {', '.join(DRAWN)}, got {kind!r}")


def _read_case(path: Path, named: "Spec | None") -> "tuple[VerifierCase, Spec, int]":
    from underpaint.artifacts.results import read_results
    from underpaint.sim.certify.adapters import Spec
    from underpaint.sim.certify.case import case_from_dict

    record = read_results(path)
    if record["kind"] != "certify-case":
        raise ValueError(f"{path}: expected a failing case that certify wrote, got results of kind '{record['kind']}'")
    verifier = record["verifier"]
    spec = named or Spec(
        verifier["target"],
        verifier.get("interface", "function"),
        verifier.get("seeds", False),
        verifier.get("bits"),
        tuple(verifier.get("settings", {}).items()),
    )
    return case_from_dict(record["case"]), spec, record.get("cycles", 1)


def _replay(case: "VerifierCase", opened: "Verifier", effort: "Effort", spec: "Spec") -> None:
    from underpaint.sim.certify.measure import find_bits, measure
    from underpaint.sim.certify.report import case_lines, finding_lines

    measurement = measure(case, opened, replace(effort, bits=effort.bits or find_bits(opened, case)))
    verdict = "lossless but for a boundary" if measurement.kind == "boundary" else measurement.kind
    typer.echo(f"{spec.target}: {verdict} on this case")
    typer.echo("\n".join((*case_lines(case, measurement), *finding_lines(measurement))))
    if measurement.kind in ("biased", "faulty"):
        raise typer.Exit(NOT_LOSSLESS)


def _as_json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()


def _list_gallery(form: Format) -> None:
    from underpaint.sim.certify.session_slips import SESSION_SLIPS
    from underpaint.sim.certify.slips import SLIPS

    columns = (
        *(Column("name"), Column("layout"), Column("right")),
        *(Column("summary", "what it does", prose=True), Column("reported", prose=True)),
    )

    def row(name: str, layout: str, summary: str, report: str = "") -> dict[str, Any]:
        return {"name": name, "layout": layout, "right": not report, "summary": summary, "reported": report}

    rows = [
        row("right", "function", "token-wise verification with nothing exchanged"),
        row("right-session", "session", "drafter and token-wise verification with nothing exchanged"),
        *(row(one.name, "session", one.summary, one.report) for one in SESSION_SLIPS),
        *(row(one.name, "function", one.summary, one.report) for one in SLIPS),
    ]
    show([ResultTable("gallery", columns, rows)], form)
