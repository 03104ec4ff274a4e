"""`underpaint certify`: is a verifier that somebody else wrote lossless?"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.certify_case import (
    SCRIPTED_SUFFIX,
    beside,
    check_place,
    fails_again,
    read_case,
    spec_to_dict,
    write_case,
)
from underpaint.cli.certify_live import DEFAULT_METHODS, certify_live
from underpaint.cli.errors import bad_input, on_interrupt
from underpaint.cli.live import LiveOptions
from underpaint.cli.option_values import refuse_given
from underpaint.cli.options import MethodSettings, grouped
from underpaint.cli.outputs import output_file
from underpaint.cli.tables import Column, ResultTable, show
from underpaint.cli.terminal import STANDARD_OUTPUT, Format, FormatOption, JsonFile, check_json, write_json

if TYPE_CHECKING:
    from underpaint.algos.tree import Drawn
    from underpaint.sim.certify.adapters import Interface, Spec
    from underpaint.sim.certify.case import VerifierCase
    from underpaint.sim.certify.certificate import Certificate
    from underpaint.sim.certify.verifier import Verifier


DEFAULT_OUT = Path("failing-case.json")
_NO_LIVE = LiveOptions()
NOTHING = "stopped: nothing was written"
NOT_LOSSLESS = 1
"""The exit code of a verifier that is biased or faulty."""
MARGIN, TIMEOUT = 0.03, 10.0
"""The defaults of `--margin` and `--timeout`."""
_OF_CERTIFICATES = ("drawn", "cycles", "cases", "seconds", "shrink_seconds", "out", "json_file")
"""The parameters that a replayed case makes meaningless."""
_OF_VERIFIERS = (
    *(name for name in _OF_CERTIFICATES if name != "json_file"),
    *("interface", "chain", "seeds", "bits", "promise", "strict", "seed", "margin", "timeout"),
)
"""The parameters that live models make meaningless."""


@grouped
def certify(
    context: typer.Context,
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
    ] = MARGIN,
    timeout: Annotated[
        float, typer.Option(help="Seconds without an answer after which it counts as hanging.", min=0.1, max=86_400)
    ] = TIMEOUT,
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
    from underpaint.artifacts.files import check_apart
    from underpaint.sim.certify.adapters import Spec, interface_of, needs_chain
    from underpaint.sim.certify.certificate import certify as judged
    from underpaint.sim.certify.isolated import open_isolated
    from underpaint.sim.certify.measurement import Effort
    from underpaint.sim.certify.reproduce import check_scriptable

    if gallery:
        _list_gallery(form)
        return
    if live.live is not None:
        with bad_input():
            if verifier is not None or replay is not None:
                raise ValueError("--live: expected methods to judge on a live model, got a verifier; leave one out")
            refuse_given(context, _OF_VERIFIERS, "is for judging a verifier; leave it out with --live")
        with on_interrupt(lambda: NOTHING):
            if not certify_live(live, methods, setting or (), top_k, json_file, form):
                raise typer.Exit(NOT_LOSSLESS)
        return
    case: VerifierCase | None = None
    with bad_input():
        live.check(None, None, None, "cpu")
        if methods is not None or setting or top_k is not None:
            raise ValueError("--methods, --set and --top-k need a live model; pass its folder with --live")
        if not 0.001 <= margin < 1.0:
            raise ValueError(f"--margin: expected 0.001 to below 1, got {margin}")
        if form is not Format.table:
            raise ValueError("--format is for --gallery and --live; a certificate is text, or JSON with --json")
        if replay is not None:
            refuse_given(context, _OF_CERTIFICATES, "is for a certificate; leave it out with --replay")
            if verifier is None:
                refuse_given(context, ("interface", "seeds"), "is for another verifier than the file's; name it too")
        place = out or DEFAULT_OUT
        if replay is None:
            check_place(place)
        check_json(json_file)
        check_apart({"--out": place, "the file beside --out": beside(place), "--json": json_file})
        promises = [_read_promise(text) for text in promise or ()] or [((), None)]
        if json_file is not None and len(promises) > 1:
            raise ValueError(f"--json: expected one --promise, got {len(promises)}; judge one setting at a time")
        named = None if verifier is None else Spec(verifier, cast("Interface", interface), seeds, bits)
        if replay is not None:
            case, spec, cycles = read_case(replay, named)
            spec = spec if bits is None else replace(spec, bits=bits)
            kind, only_chains = case.drawn, chain or needs_chain(spec)
        elif named is None:
            raise ValueError("name a verifier: module:function, file.py:function, rule:NAME or gallery:NAME")
        else:
            spec = named
            kind, only_chains = _trees(spec, drawn, chain)
            if place.suffix == SCRIPTED_SUFFIX:
                check_scriptable(spec.target, interface_of(spec))
        if cycles > 1 and interface_of(spec) not in ("session", "rule") and not spec.target.startswith("rule:"):
            raise ValueError(f"--cycles: expected a session or a rule, got {spec.target} as {interface_of(spec)}")
        # Without settings a replay keeps those of its file.
        specs = [replace(spec, settings=settings) if settings else spec for settings, _ in promises]
        effort = Effort(margin=margin, seed=seed, bits=spec.bits, cycles=cycles)
    code = 0
    for one, (_, bound) in zip(specs, promises, strict=True):
        with bad_input():
            opening = open_isolated(one, timeout)
        with on_interrupt(lambda: NOTHING), opening as opened:
            with bad_input():
                _check_first_call(one, opened, kind, only_chains)
            if case is not None:
                code = NOT_LOSSLESS if fails_again(case, opened, effort, one, bound, strict) else code
                continue
            certificate = judged(opened, kind, only_chains, cases, seed, effort, shrink_seconds, seconds, bound)
        _report(certificate, one, json_file)
        if certificate.verdict in ("biased", "faulty") or (strict and certificate.count("boundary") > 0):
            if not code:
                again = _changed(margin, seed, timeout, bound, strict)
                as_text = Format.json if json_file == STANDARD_OUTPUT else Format.table
                write_case(place, certificate, one, again, as_text)
            code = NOT_LOSSLESS
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


def _report(certificate: "Certificate", spec: "Spec", json_file: Path | None) -> None:
    """Print a certificate; also write it to `json_file`, if given."""
    from underpaint.artifacts.results import with_envelope
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.sim.certify.report import certificate_lines

    if json_file is not None:
        values = {"verifier": spec_to_dict(spec), **certificate.to_dict()}
        write_json(json_file, with_envelope("certify", describe_machine(), typed_command(), values))
    lines = certificate_lines(certificate, spec.target, dict(spec.settings))
    typer.echo("\n".join(lines), err=json_file == STANDARD_OUTPUT)


def _changed(margin: float, seed: int, timeout: float, bound: float | None, strict: bool) -> list[str]:
    """Return the options that change how a case is judged, where they are not the defaults."""
    values = {"--margin": (margin, MARGIN), "--seed": (seed, 0), "--timeout": (timeout, TIMEOUT)}
    options = [f"{name}={value}" for name, (value, default) in values.items() if value != default]
    options += [] if bound is None else [f"--promise=tv<={bound}"]
    return [*options, "--strict"] if strict else options


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


def _list_gallery(form: Format) -> None:
    from underpaint.sim.certify.mistakes import MISTAKES
    from underpaint.sim.certify.session_mistakes import SESSION_MISTAKES

    columns = (
        *(Column("name"), Column("layout"), Column("right")),
        *(Column("summary", "what it does", prose=True), Column("reported", prose=True)),
    )

    def row(name: str, layout: str, summary: str, report: str = "") -> dict[str, Any]:
        return {"name": name, "layout": layout, "right": not report, "summary": summary, "reported": report}

    rows = [
        row("right", "function", "token-wise verification with nothing exchanged"),
        row("right-session", "session", "drafter and token-wise verification with nothing exchanged"),
        *(row(one.name, "session", one.summary, one.report) for one in SESSION_MISTAKES),
        *(row(one.name, "function", one.summary, one.report) for one in MISTAKES),
    ]
    show([ResultTable("gallery", columns, rows)], form)
