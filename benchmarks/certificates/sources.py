"""What the page of certificates judges: functions of public code, taken out of a folder of clones."""

import __future__

import ast
import importlib.util
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import numpy as np
import torch

from underpaint.algos.tree import Drawn
from underpaint.sim.certify.adapters import Interface

Verify = Callable[..., Any]


class PublicVerifier(NamedTuple):
    """A public verifier to judge.

    name: the name of its certificate. project: "owner/name" on GitHub, a folder of the clones; or a package. judged:
    the judged part, in words. build: (folder of the project) -> a callable for `interface`. relaxed: why it is not
    meant to be lossless. bits: its precision; None to detect it. count: number of cases. margin: for samples.
    """

    name: str
    project: str
    judged: str
    build: Callable[[Path], Verify]
    interface: Interface = "tensorrt-llm"
    drawn: Drawn = "iid"
    relaxed: str = ""
    chain: bool = True
    bits: int | None = None
    count: int = 12
    margin: float = 0.05


class Unpinned:
    """PyTorch without pinned memory, which needs a GPU."""

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(torch, name)
        if name not in ("tensor", "arange", "ones", "zeros", "empty", "full"):
            return attribute
        return lambda *values, pin_memory=False, **options: attribute(*values, **options)


def load(path: Path, *names: str, **extra_names: Any) -> Any:
    """Load functions and classes of a file, without its imports, decorators, base classes and annotations.

    Args:
        path: The file.
        names: The functions and classes to load; "Class.method" loads only that method, as a function of `self`.
        extra_names: Names that they need besides PyTorch, NumPy, `random` and `math`.

    Returns:
        The first of `names`; the others are in its globals.

    Raises:
        ValueError: The file has no such function; the message names it.
    """
    tree: Any = ast.parse(path.read_text(encoding="utf-8").expandtabs(4))  # some files mix tabs and spaces
    for one in ast.walk(tree):
        if isinstance(one, ast.ClassDef):
            one.bases, one.keywords = [], []
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            one.decorator_list = []
    defs = {one.name: one for one in reversed(tree.body) if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    defs |= {f"{name}.{one.name}": one for name in defs for one in defs[name].body if hasattr(one, "name")}
    if missing := [name for name in names if name not in defs]:
        raise ValueError(f"{path}: expected {missing[0]}; take the commit that the page names")
    space: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "np": np, "math": math}
    space |= {"softmax": torch.nn.functional.softmax, "random": random, **extra_names}
    module = ast.Module(body=[defs[name] for name in names], type_ignores=[])
    flags = __future__.annotations.compiler_flag  # names in annotations are not looked up
    exec(compile(module, str(path), "exec", flags), space)
    return space[defs[names[0]].name]


def load_kernels(path: Path, *names: str) -> Any:
    """Load Triton kernels of a file, without its imports, from a copy: the interpreter reads their source from it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kernels = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in names]
    folder = Path(tempfile.mkdtemp())
    head = "import torch\nimport triton\nimport triton.language as tl\n"
    (folder / path.name).write_text(head + ast.unparse(ast.Module(body=kernels, type_ignores=[])))
    spec = importlib.util.spec_from_file_location(f"kernels_of_{path.stem}", folder / path.name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_module(folder: Path, name: str, **stubs: Any) -> Any:
    """Import a module of a package that is not installed, without the `__init__` of its parent packages.

    stubs: attributes of the modules that replace heavy ones, by module name with "__" for a dot.
    """
    for place in (name, *(other.replace("__", ".") for other in stubs)):
        parts = place.split(".")
        for length in range(1, len(parts)):
            above = sys.modules.setdefault(".".join(parts[:length]), ModuleType(".".join(parts[:length])))
            above.__path__ = [str(folder.joinpath(*parts[:length]))]
    for other, attributes in stubs.items():
        sys.modules[other.replace("__", ".")] = stub = ModuleType(other)
        vars(stub).update(attributes)
    return importlib.import_module(name)
