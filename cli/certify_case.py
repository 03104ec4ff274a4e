"""The failing case of `underpaint certify`: the file that holds it, and its replay."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from underpaint.cli.outputs import check_replaceable
from underpaint.cli.terminal import Format, note

if TYPE_CHECKING:
    from underpaint.sim.certify.adapters import Spec
    from underpaint.sim.certify.case import VerifierCase
    from underpaint.sim.certify.certificate import Certificate
    from underpaint.sim.certify.measurement import Effort
    from underpaint.sim.certify.verifier import Verifier

SCRIPTED_SUFFIX = ".py"
"""The ending of a failing case that is written as a script."""


def check_place(place: Path) -> None:
    """Raise ValueError or OSError if a failing case cannot be written to `place`, or would replace a user's file."""
    from underpaint.artifacts.files import check_file_writable

    check_replaceable("--out", place, "py" if place.suffix == SCRIPTED_SUFFIX else "json")
    check_file_writable(place)
    if place.suffix == SCRIPTED_SUFFIX:
        check_replaceable("--out", beside(place), "json")


def beside(place: Path) -> Path:
    """The file for a case that no script can hold."""
    return place.with_name(f"{place.name}.json")


def write_case(place: Path, certificate: "Certificate", spec: "Spec", again: Sequence[str], form: Format) -> None:
    """Write the smallest failing case of a certificate, and print how to repeat it.

    Args:
        place: The file; as a script if it ends in .py. If no script can show the case, the file is `beside`.
        certificate: A certificate with findings.
        spec: The verifier.
        again: The options that a replay needs in order to judge alike.
        form: The format of the output, for the note.
    """
    from underpaint.artifacts.manifest import write_beside
    from underpaint.artifacts.results import with_envelope
    from underpaint.runtime.evaluation.machine import describe_machine, typed_command
    from underpaint.sim.certify.adapters import interface_of, with_whole_path
    from underpaint.sim.certify.certificate import finding_to_dict
    from underpaint.sim.certify.reproduce import script

    first, settings = certificate.first, dict(spec.settings)
    if place.suffix == SCRIPTED_SUFFIX:
        try:
            text = script(first.case, first.measured, spec.target, interface_of(spec), certificate.cycles, settings)
        except ValueError as error:
            note(f"no script was written: {error}", form)
            place = beside(place)
        else:
            write_beside(place, text.encode())
            note(f"the case is in {place}; again with: python {place}", form)
            return
    values = {
        "verifier": {**spec_to_dict(spec), "target": with_whole_path(spec.target)},
        "case": first.case.to_dict(),
        "cycles": certificate.cycles,
        "finding": finding_to_dict(first.measured),
        "looks_like": certificate.to_dict()["looks_like"],
    }
    record = with_envelope("certify-case", describe_machine(), typed_command(), values)
    write_beside(place, (json.dumps(record, indent=1) + "\n").encode())
    note(f"the case is in {place}; again with: {_replay_command(place, spec, again)}", form)


def spec_to_dict(spec: "Spec") -> dict[str, Any]:
    """Convert the name of a verifier to plain values for JSON."""
    return {**asdict(spec), "settings": dict(spec.settings)}


def _replay_command(place: Path, spec: "Spec", again: Sequence[str]) -> str:
    """Return a command that replays the case from any folder, with the loaded plug-ins, a program from this one."""
    from underpaint.algos.plugins import loaded_plugins

    plugins = [f"--plugin={name}" for name in loaded_plugins()]
    command = shlex.join(["underpaint", *plugins, "certify", "--replay", str(place.resolve()), *again])
    return f"cd {shlex.quote(os.getcwd())} && {command}" if spec.interface == "process" else command


def read_case(path: Path, named: "Spec | None") -> "tuple[VerifierCase, Spec, int]":
    """Read a failing case.

    Args:
        path: The file of a case.
        named: The verifier to judge on the case; None for that of the file.

    Returns:
        The case, the verifier and the number of cycles.

    Raises:
        ValueError: The file holds no case, or the verifier has no such trees.
    """
    from underpaint.artifacts.results import read_results
    from underpaint.sim.certify.adapters import Spec, needs_chain
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
    case = case_from_dict(record["case"])
    spec.check_drawn(case.drawn)
    if needs_chain(spec) and case.parents != tuple(range(-1, len(case.parents) - 1)):
        raise ValueError(
            f"{path}: expected a chain, as {spec.target} is judged on chains alone, got a tree of parents "
            f"{list(case.parents)}; name another verifier, or another case"
        )
    return case, spec, record.get("cycles", 1)


def fails_again(
    case: "VerifierCase", opened: "Verifier", effort: "Effort", spec: "Spec", promise: float | None, strict: bool
) -> bool:
    """Judge a verifier on one case, print what it shows, and return whether it fails."""
    from underpaint.sim.certify.certificate import verdict_of
    from underpaint.sim.certify.measure import find_bits, measure
    from underpaint.sim.certify.report import case_lines, finding_lines
    from underpaint.sim.certify.search import precision_case

    bits = effort.bits or find_bits(opened, precision_case(case.drawn))
    measurement = measure(case, opened, replace(effort, bits=bits))
    verdict = verdict_of([measurement], promise, bits)
    typer.echo(f"{spec.target}: {verdict} on this case")
    typer.echo("\n".join((*case_lines(case, measurement), *finding_lines(measurement))))
    return verdict in ("biased", "faulty") or (strict and measurement.kind == "boundary")
