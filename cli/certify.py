"""`underpaint certify`: is a verifier that somebody else wrote lossless?"""

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from underpaint.algos.chance import MOST_SEED
from underpaint.cli.errors import STOPPED, bad_input
from underpaint.cli.outputs import check_replaceable, json_output
from underpaint.cli.terminal import (
    STANDARD_OUTPUT,
    Column,
    Format,
    FormatOption,
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
    from underpaint.sim.certify.measurement import Effort, Measurement
    from underpaint.sim.certify.verifier import Verifier


DEFAULT_OUT = Path("failing-case.json")
NOT_LOSSLESS = 1
"""The exit code of a verifier that is not lossless."""


def certify(
    verifier: Annotated[
        str | None,
        typer.Argument(help="module:function, file.py:function, rule:NAME, gallery:NAME, or a command line."),
    ] = None,
    interface: Annotated[
        str, typer.Option("--as", help="How it is called: function, seeded, rule, tree, chain, vllm or process.")
    ] = "function",
    drawn: Annotated[
        str | None,
        typer.Option(help="How siblings are drawn: iid, without_replacement or top_k. Default: by --as."),
    ] = None,
    chain: Annotated[bool, typer.Option("--chain", help="Judge chains alone: no node has two children.")] = False,
    seeds: Annotated[
        bool, typer.Option("--own-seed", help="With --as process: it draws by a seed of its own, judge it by samples.")
    ] = False,
    cases: Annotated[int, typer.Option(help="Cases to judge it on.", min=1, max=1000)] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the cases.", min=0, max=MOST_SEED)] = 0,
    margin: Annotated[
        float, typer.Option(help="Where it is judged by samples: find a probability that is off by this much.")
    ] = 0.03,
    timeout: Annotated[
        float, typer.Option(help="Seconds without an answer that count as hung.", min=0.1, max=86_400)
    ] = 10.0,
    seconds: Annotated[
        float, typer.Option(help="Begin no further case after so many seconds.", min=1, max=86_400)
    ] = 300.0,
    shrink_seconds: Annotated[
        float, typer.Option(help="Look so long for a smaller failing case.", min=0, max=86_400)
    ] = 15.0,
    out: Annotated[
        Path | None,
        typer.Option(
            parser=json_output,
            help="Where the smallest failing case is written; it replays. Default: failing-case.json.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", parser=json_output, help="Write the whole certificate; - is standard output."),
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Judge on the case in this file alone; with its verifier unless one is named.")
    ] = None,
    gallery: Annotated[bool, typer.Option("--gallery", help="List the verifiers that ship, right and wrong.")] = False,
    form: FormatOption = Format.table,
) -> None:
    """Judge a verifier of speculative decoding: lossless or not, and if not, the smallest case, its node and its slip.

    Exit code 0: lossless on every case; 1: not; 2: bad input. A verifier that crashes, hangs or returns nonsense is not
    lossless.
    """
    from underpaint.artifacts.files import check_apart, check_file_writable
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import with_envelope
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.sim.certify.adapters import Spec, with_whole_path
    from underpaint.sim.certify.certificate import certify as judge
    from underpaint.sim.certify.certificate import check_first_call
    from underpaint.sim.certify.isolated import open_isolated
    from underpaint.sim.certify.measurement import Effort

    if gallery:
        _list_gallery(form)
        return
    with bad_input():
        if not 0.001 <= margin < 1.0:
            raise ValueError(f"--margin: expected 0.001 to below 1, got {margin}")
        place = out or DEFAULT_OUT
        if replay is None:
            check_replaceable("--out", place, "json")
            check_file_writable(place)
        check_json(json_file)
        check_apart({"--out": place, "--json": json_file})
        effort = Effort(margin=margin, seed=seed)
        named = None if verifier is None else Spec(verifier, cast("Interface", interface), seeds)
        case: VerifierCase | None = None
        if replay is not None:
            case, spec = _read_case(replay, named)
            drawn = case.drawn
        elif named is None:
            raise ValueError("name a verifier: module:function, file.py:function, rule:NAME or gallery:NAME")
        else:
            spec = named
        kind, only_chains = _trees(spec, drawn, chain)
        opening = open_isolated(spec, timeout)
    with stopped_by_interrupt(), opening as opened:
        with bad_input():
            try:
                check_first_call(opened, kind, only_chains)
            except ValueError as error:
                raise ValueError(f"verifier {spec.target!r}: {error}") from error
        if case is not None:
            _replay(case, opened, effort, spec)
            return
        found = judge(opened, kind, only_chains, cases, seed, effort, shrink_seconds, seconds)
    machine, command = describe_machine(), typed_command()
    if json_file is not None:
        values = {"verifier": asdict(spec), **found.to_dict()}
        write_json(json_file, with_envelope("certify", machine, command, values))
    as_text = Format.json if json_file == STANDARD_OUTPUT else Format.table
    typer.echo("\n".join(_shown(found, spec)), err=json_file == STANDARD_OUTPUT)
    if found.lossless:
        return
    assert found.failing is not None
    plain = found.to_dict()
    held = {name: plain[name] for name in ("finding", "looks_like")}
    whole = {**asdict(spec), "target": with_whole_path(spec.target)}
    case_values = {"verifier": whole, "case": found.failing.to_dict(), **held}
    write_beside(place, _as_json(with_envelope("certify-case", machine, command, case_values)))
    note(f"the case is in {place}; again with: {_replay_command(place, spec)}", as_text)
    raise typer.Exit(NOT_LOSSLESS)


@contextmanager
def stopped_by_interrupt() -> Iterator[None]:
    """Turn Ctrl-C into one line and its exit code."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped: nothing was written", err=True)
        raise typer.Exit(STOPPED) from None


def _replay_command(out: Path, spec: "Spec") -> str:
    """What replays the case in any folder: with the plug-ins that were loaded, and a program in its own folder."""
    from underpaint.algos.plugins import loaded_plugins

    plugins = [f"--plugin={name}" for name in loaded_plugins()]
    command = shlex.join(["underpaint", *plugins, "certify", "--replay", str(out.resolve())])
    return f"cd {shlex.quote(os.getcwd())} && {command}" if spec.interface == "process" else command


def _trees(spec: "Spec", drawn: str | None, chain: bool) -> "tuple[Drawn, bool]":
    """How the trees are drawn, and whether they are chains; ValueError where the verifier covers no such trees."""
    from underpaint.algos.tree import DRAWN
    from underpaint.sim.certify.adapters import drawn_by, needs_chain

    kind = drawn or drawn_by(spec)
    for known in DRAWN:
        if kind == known:
            spec.check_drawn(known)
            return known, chain or needs_chain(spec)
    raise ValueError(f"--drawn: expected one of {', '.join(DRAWN)}, got {kind!r}")


def _read_case(path: Path, named: "Spec | None") -> "tuple[VerifierCase, Spec]":
    from underpaint.artifacts.results import read_results
    from underpaint.sim.certify.adapters import Spec
    from underpaint.sim.certify.case import case_from_dict

    found = read_results(path)
    if found["kind"] != "certify-case":
        raise ValueError(f"{path}: expected a failing case that certify wrote, got results of kind '{found['kind']}'")
    held = found["verifier"]
    spec = named or Spec(held["target"], held.get("interface", "function"), held.get("seeds", False))
    return case_from_dict(found["case"]), spec


def _replay(case: "VerifierCase", opened: "Verifier", effort: "Effort", spec: "Spec") -> None:
    from underpaint.sim.certify.measure import measure

    found = measure(case, opened, effort)
    typer.echo(f"{spec.target}: {'not lossless' if found.failed else 'lossless'} on this case")
    typer.echo("\n".join((*_case_lines(case), *_finding_lines(case, found))))
    if found.failed:
        raise typer.Exit(NOT_LOSSLESS)


def _shown(found: "Certificate", spec: "Spec") -> list[str]:
    trees = f"'{found.drawn}' {'chains' if found.chain else 'trees'}"
    judged = f"{found.cases} cases, {found.asked:,} decisions, {found.seconds:.1f} s"
    if found.lossless:
        ways = {
            "quantiles": f"exact by quantiles; with confidence 0.999 no more than {found.unseen:.2g} of the uniforms "
            "can decide otherwise unseen",
            "decisions": "exact, every recorded decision weighed",
            "samples": f"by samples; a probability off by {found.unseen:g} or more is missed once in 1,000",
        }
        return [
            f"{spec.target}: lossless on {trees}",
            f"  {judged}; largest total variation {found.largest:.3g}",
            *(f"  {ways[how]}" for how in found.how),
        ]
    assert found.failing is not None
    assert found.finding is not None
    lines = [f"{spec.target}: NOT lossless on {trees}", f"  {judged}"]
    lines += _case_lines(found.failing) + _finding_lines(found.failing, found.finding)
    if found.looks_like is not None:
        like = found.looks_like
        how = "decides exactly as" if like.same else f"is nearest (distance {like.distance:.2g}) to"
        lines.append(f"  it {how} the known slip {' / '.join(like.names)}: {like.summary} ({like.report})")
    else:
        lines.append("  it looks like none of the known slips")
    if not found.shrunk and not (found.finding.fault is not None and found.finding.fault.kind == "hang"):
        lines.append("  there may be a smaller case: look longer with --shrink-seconds")
    return lines


def _case_lines(case: "VerifierCase") -> list[str]:
    parents = ", ".join(f"{node}<-{above}" for node, above in enumerate(case.parents) if node)
    return [
        f"  case: {case.vocab_size} tokens, nodes {parents}, drawn '{case.drawn}'"
        + (f", banned {list(case.banned)}" if case.banned else ""),
        f"    target's weights {[list(row) for row in case.target]}, draft's {[list(row) for row in case.draft]}",
    ]


def _finding_lines(case: "VerifierCase", found: "Measurement") -> list[str]:
    lines: list[str] = []
    if found.fault is not None:
        where = "" if found.fault.node is None else f" at node {found.fault.node}"
        lines.append(f"  {found.fault.kind}{where}: {found.fault.detail}")
        if found.fault_tokens:
            noise = f", noise {[float(f'{one:.6g}') for one in found.fault_noise]}" if found.fault_noise else ""
            lines.append(f"    on the tree of tokens {list(found.fault_tokens)}{noise}")
    if found.difference is not None:
        one = found.difference
        after = f"after tokens {list(one.before)}" if one.before else "at the root"
        lines.append(
            f"  total variation {one.total_variation:.4g}; it parts from the target at node {one.node}, {after}:"
        )
        lines.append(f"    the next token should have {_row(one.wanted)}, it has {_row(one.found)}")
    elif found.fault is None:
        lines.append(f"  total variation {found.total_variation:.3g}")
    return lines


def _row(row: tuple[float, ...]) -> str:
    return "(" + ", ".join(f"{one:.4f}" for one in row) + ")"


def _as_json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1) + "\n").encode()


def _list_gallery(form: Format) -> None:
    from underpaint.sim.certify.public_samplers import EXAMPLES
    from underpaint.sim.certify.slips import SLIPS

    columns = (
        *(Column("name"), Column("layout"), Column("right")),
        *(Column("summary", "what it does", prose=True), Column("reported", prose=True)),
    )
    plain = {"layout": "function", "right": True, "summary": "token-wise verification with nothing exchanged"}
    rows: list[dict[str, Any]] = [{"name": "right", **plain, "reported": ""}]
    for name, example in EXAMPLES.items():
        told = {"summary": example.summary, "reported": example.report}
        rows.append({"name": name, "layout": example.interface, "right": not example.report, **told})
    for slip in SLIPS:
        told = {"summary": slip.summary, "reported": slip.report}
        rows.append({"name": slip.name, "layout": "function", "right": False, **told})
    show([ResultTable("gallery", columns, rows)], form)
