"""The public verifiers that are judged, as verifiers.csv lists them: which part of which project, by which adapter.

An adapter is a function of `batches`, `chains` or `trees`; its settings are written `name=value; name=value`.
"""

import ast
import csv
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.certificates import batches, chains, trees
from benchmarks.certificates.sources import PublicVerifier

MODULES: Final = {"batches": batches, "chains": chains, "trees": trees}


def _value(text: str) -> Any:
    if text in ("yes", "no"):
        return text == "yes"
    if text.startswith("torch."):
        return getattr(torch, text.removeprefix("torch."))
    return ast.literal_eval(text) if text[0].isdigit() else text


def _verifier(row: dict[str, Any]) -> PublicVerifier:
    module, _, function = row["adapter"].partition(".")
    settings = dict(setting.split("=") for setting in row["settings"].split("; ") if setting)
    return PublicVerifier(
        row["name"],
        row["project"],
        row["judged"],
        partial(getattr(MODULES[module], function), **{name: _value(text) for name, text in settings.items()}),
        interface=row["interface"],
        drawn=row["drawn"],
        relaxed=row["relaxed"],
        chain=row["chain"] == "yes",
        bits=int(row["bits"]) if row["bits"] else None,
        count=int(row["count"]),
        margin=float(row["margin"]),
    )


with Path(__file__).with_name("verifiers.csv").open(encoding="utf-8", newline="") as _file:
    VERIFIERS: Final = tuple(map(_verifier, csv.DictReader(_file)))
