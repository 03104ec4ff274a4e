"""Scripts that show what a certificate found, with the project's own code and without this project."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.certificates.sources import PublicVerifier
from underpaint.sim.certify.case import case_from_dict
from underpaint.sim.certify.measurement import DistributionDifference, Measurement
from underpaint.sim.certify.reproduce import script
from underpaint.sim.certify.verifier import Fault

HEAD = '''"""{title}

Run: python {name}.py FOLDER   # of a clone of https://github.com/{project} at {version}
"""
import __future__, ast, collections, contextlib, functools, math, random, sys, types
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import torch
'''
OWN_NOISE = "scripted_noise = lambda *_: contextlib.nullcontext()  # theirs\n"
GIVEN_NOISE = """noise = iter({tests})
random.random = lambda: next(noise)
torch.rand = lambda shape, *_, **__: torch.tensor([next(noise) for _ in range(int(np.prod(shape)))]).reshape(shape)
torch.rand_like = lambda one, **_: torch.rand(one.shape)
"""
THEIRS = "theirs = SimpleNamespace(verify={name}(Path(sys.argv[1]){settings}))\n"


def script_of(verifier: PublicVerifier, record: dict[str, Any]) -> str | None:
    """The script of a record's worst finding; None where it has none, or one that no short script shows."""
    finding = next(iter(record["certificate"]["findings"]), None)
    if finding is None:
        return None
    seen = finding["finding"]
    if verifier.interface == "function" and (seen["difference"] is None or not verifier.chain):
        return None  # needs scripted noise, or a draft tree with its methods
    given = {name: seen[name] for name in ("how", "total_variation", "unseen")}
    difference, fault = seen["difference"], seen["fault"]
    if difference is not None:
        difference = DistributionDifference(**{**difference, "before": tuple(difference["before"])})
    measured = Measurement(
        **given,
        asked=0,
        difference=difference,
        fault=None if fault is None else Fault(**fault),
        fault_tokens=tuple(seen["fault_tokens"]),
        fault_noise=tuple(seen["fault_noise"]),
    )
    try:
        text = script(case_from_dict(finding["case"]), measured, "theirs:verify", verifier.interface, 1)
    except ValueError:
        return None
    body = text.partition("import theirs as theirs\n")[2]
    build = verifier.build if isinstance(verifier.build, partial) else partial(verifier.build)
    settings = "".join(f", {name}={value!r}" for name, value in build.keywords.items())
    if "R[" not in body:
        body = "".join(line for line in body.splitlines(keepends=True) if not line.startswith("R = "))
    adapter = "".join(_plain(one) + "\n" for one in _needed(build.func))
    tests = list(measured.fault_noise[1:])
    noise = OWN_NOISE if difference is not None else GIVEN_NOISE.format(tests=tests)
    title = f"{record['name']}: {text.partition('from the target')[2].partition(' (found by')[0]}"
    title = f"{record['project']}, {record['judged']}: parts from the target{title.partition(': ')[2]}"
    head = HEAD.format(title=title, name=record["name"], project=record["project"], version=record["version"])
    if "from transformers" in adapter:
        head += "sys.path.pop(0)  # this folder has a transformers.py too\n"
    head += "from math import inf\n" if re.search(r"\binf\b", adapter + body) else ""
    return head + adapter + noise + THEIRS.format(name=build.func.__name__, settings=settings) + body


def _needed(function: Any, seen: dict[str, Any] | None = None) -> list[Any]:
    """A function and those of this project that it uses, each after what it uses."""
    seen = {} if seen is None else seen
    for name in _names(function):
        other = inspect.getmodule(function).__dict__.get(name)
        ours = getattr(other, "__module__", "").partition(".")[0] in ("benchmarks", "underpaint")
        if ours and name not in (*seen, "scripted_noise") and callable(other) and other is not function:
            _needed(other, seen)
    seen[function.__name__] = function
    return list(seen.values())


def _names(function: Any) -> Iterator[str]:
    yield from (one.id for one in ast.walk(_tree(function)) if isinstance(one, ast.Name))


def _tree(function: Any) -> ast.Module:
    """The source without annotations and docstrings."""
    tree = ast.parse(inspect.getsource(function))
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            if ast.get_docstring(one) and len(one.body) > 1:
                one.body = one.body[1:]
            if isinstance(one, ast.FunctionDef):
                one.returns = None
                for argument in (*one.args.args, *one.args.kwonlyargs, one.args.vararg, one.args.kwarg):
                    if argument is not None:
                        argument.annotation = None
        for name, value in ast.iter_fields(one):
            if isinstance(value, list):
                plain = [
                    ast.Assign([item.target], item.value, lineno=0)
                    if isinstance(item, ast.AnnAssign) and item.value is not None
                    else item
                    for item in value
                ]
                setattr(one, name, plain)
    return tree


def _plain(function: Any) -> str:
    return ast.unparse(_tree(function))
