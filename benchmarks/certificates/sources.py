"""What the page of certificates judges: functions of public code, taken out of a folder of clones."""

import ast
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from underpaint.algos.tree import Drawn
from underpaint.sim.certify.adapters import Interface


class PublicVerifier(NamedTuple):
    """A public verifier.

    name: of its certificate. project: "owner/name" on GitHub, a folder of the clones; or a package. judged: which part
    of it, in words. build: (folder of the project) -> a callable for `interface`. relaxed: why it is not meant to be
    lossless. count: cases. margin: for samples.
    """

    name: str
    project: str
    judged: str
    build: Callable[[Path], Callable[..., Any]]
    interface: Interface
    drawn: Drawn
    chain: bool = True
    relaxed: str = ""
    count: int = 12
    margin: float = 0.05


class _Torch:
    """PyTorch without pinned memory, which needs a GPU."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch, name)
        if name not in ("tensor", "arange", "ones", "zeros", "empty", "full"):
            return found
        return lambda *values, pin_memory=False, **options: found(*values, **options)


def load(path: Path, names: Sequence[str], **given: Any) -> dict[str, Any]:
    """Functions and classes of a file, without its imports, decorators and annotations.

    Args:
        path: The file.
        names: What to take out of it.
        given: What they need besides PyTorch, NumPy, `random` and `math`.

    Raises:
        ValueError: The file has no such function; the message names it.
    """
    tree = ast.parse(path.read_text(encoding="utf-8").expandtabs(4))  # some files mix tabs and spaces
    kept = [one for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef) and one.name in names]
    missing = set(names) - {one.name for one in kept}
    if missing:
        raise ValueError(f"{path}: expected {', '.join(sorted(missing))}; take the commit that the page names")
    for one in (inner for top in kept for inner in ast.walk(top)):
        if isinstance(one, ast.FunctionDef):
            one.decorator_list, one.returns = [], None
            for argument in (*one.args.args, *one.args.kwonlyargs, *one.args.posonlyargs):
                argument.annotation = None
    module = ast.Module(body=list(kept), type_ignores=[])
    functional = torch.nn.functional
    space: dict[str, Any] = {
        "torch": _Torch(),
        "F": functional,
        "nn": torch.nn,
        "random": random,
        "np": np,
        "math": math,
    }
    space |= {"softmax": functional.softmax, **given}
    exec(compile(module, str(path), "exec"), space)
    return space


def method(path: Path, owner: str, name: str, **given: Any) -> Callable[..., Any]:
    """A method of a class as a function of `self`, without the class's bases."""
    tree = ast.parse(path.read_text(encoding="utf-8").expandtabs(4))  # some files mix tabs and spaces
    for top in tree.body:
        if isinstance(top, ast.ClassDef) and top.name == owner:
            top.bases, top.keywords, top.decorator_list = [], [], []
            top.body = [one for one in top.body if isinstance(one, ast.FunctionDef) and one.name == name]
            part = ast.unparse(ast.Module(body=[top], type_ignores=[]))
            space = _executed(part, path, **given)
            found: Callable[..., Any] = getattr(space[owner], name)
            return found
    raise ValueError(f"{path}: expected class {owner}; take the commit that the page names")


def _executed(text: str, path: Path, **given: Any) -> dict[str, Any]:
    module = ast.parse(text)
    for one in ast.walk(module):
        if isinstance(one, ast.FunctionDef):
            one.decorator_list, one.returns = [], None
            for argument in (*one.args.args, *one.args.kwonlyargs):
                argument.annotation = None
    space: dict[str, Any] = {"torch": torch, "softmax": torch.nn.functional.softmax, "random": random, **given}
    exec(compile(module, str(path), "exec"), space)
    return space
