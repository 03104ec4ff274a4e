"""`underpaint env`: facts about an installation for a bug report."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, requires
from typing import Any, Final

from underpaint.cli.errors import bad_input
from underpaint.cli.tables import Column, ResultTable, show
from underpaint.cli.terminal import Format, FormatOption, JsonFile, check_json, emit_json
from underpaint.runtime.evaluation.machine import package_version

_ENGINES: Final = ("onnxruntime", "onnxruntime-gpu", "torch", "triton", "tensorrt", "tensorrt-rtx-cu13")
_REQUIREMENT: Final = re.compile(
    r"""(?P<package>[\w.-]+)[^;]*;(?P<marker>.*?)(?:\band\s+)?extra == ['"](?P<extra>[\w-]+)['"]"""
)


def env(form: FormatOption = Format.table, json_file: JsonFile = None) -> None:
    """Show versions, processor, engines, installed extras and the shipped models' hashes, for a bug report."""
    with bad_input():
        check_json(json_file)
    described = describe_environment()
    if emit_json(json_file, described):
        return
    rows = [{"name": name, "value": value} for name, value in _flat(described)]
    show([ResultTable("environment", [Column("name"), Column("value", prose=True)], rows)], form)


def describe_environment() -> dict[str, Any]:
    """Describe everything that decides how this installation behaves, as values that JSON can hold.

    Returns:
        `underpaint`: the version. `machine`: processor, cores, memory, system, and versions that decide speed. `gpu`:
        name and driver of each NVIDIA GPU. `engines`: the version of each engine, or None. `providers`: for each
        backend of ONNX Runtime on a GPU its providers with their options, or why it cannot be used. `extras`: for each
        extra "installed" or the packages that are missing. `models`: folder and SHA-256 of the shipped models, or
        `error`.
    """
    import underpaint
    from underpaint.artifacts.model_index import read_index
    from underpaint.runtime.engines.providers import PROVIDERS
    from underpaint.runtime.evaluation.machine import describe_machine
    from underpaint.zoo.load import FOLDER

    models: dict[str, Any]
    try:
        index = read_index(FOLDER)
        models = {
            "folder": str(FOLDER),
            "underpaint-zoo": package_version("underpaint-zoo"),
            **index.hashes(index.models),
        }
    except (ValueError, OSError) as error:
        models = {"error": str(error)}
    return {
        "underpaint": underpaint.__version__,
        "machine": describe_machine(),
        "gpu": _gpus(),
        "engines": {name: package_version(name) for name in _ENGINES},
        "providers": {name: _provider(name) for name in PROVIDERS},
        "extras": _extras(),
        "models": models,
    }


def _provider(backend: str) -> str:
    """Return the options of a backend's providers on one line, or the reason why it cannot be used."""
    from underpaint.runtime.engines.context import EngineError
    from underpaint.runtime.engines.providers import check_provider, gpu_backend

    try:
        check_provider(backend)
    except EngineError as error:
        return f"not usable: {error}"
    gpu = gpu_backend(backend)
    assert gpu is not None
    options = gpu.options(graphs=True)
    return "; ".join(f"{name} {' '.join(f'{key}={value}' for key, value in each.items())}" for name, each in options)


def _extras() -> dict[str, str]:
    """Return "installed" or the missing packages of each extra; empty in a checkout that is not installed."""
    try:
        lines = requires("underpaint") or []
    except PackageNotFoundError:
        return {}
    missing: dict[str, list[str]] = {}
    for match in filter(None, map(_REQUIREMENT.match, lines)):
        absent = missing.setdefault(match["extra"], [])
        if "linux" in match["marker"] and sys.platform != "linux":
            continue
        if package_version(match["package"]) is None:
            absent.append(match["package"])
    return {extra: f"lacks {', '.join(absent)}" if absent else "installed" for extra, absent in missing.items()}


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"nvidia-smi failed: {error}"]
    return done.stdout.splitlines()


def _flat(described: dict[str, Any]) -> list[tuple[str, str]]:
    """Return one table row per value; values in a group are named `group.name`."""
    rows = []
    for name, value in described.items():
        if isinstance(value, dict):
            rows += [(f"{name}.{part}", "-" if one is None else str(one)) for part, one in value.items()]
        else:
            rows.append((name, ", ".join(value) or "-" if isinstance(value, list) else str(value)))
    return rows
