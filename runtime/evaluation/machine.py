"""The machine of a measurement, and the command that made it."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from underpaint.runtime.engines.context import usable_cores

_PACKAGES = ("numpy", "onnxruntime", "onnxruntime-gpu")


def describe_machine() -> dict[str, Any]:
    """Processor, cores available to this process, memory, system, and the versions that affect speed."""
    return {
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_bytes": _memory_bytes(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: number for name in _PACKAGES if (number := package_version(name)) is not None},
    }


def typed_command() -> str:
    """The command of this process, ready to run again: `underpaint compare ...`, `python -m benchmarks.device ...`."""
    typed = sys.orig_argv[1:]
    if typed and Path(typed[0]).is_file():
        return shlex.join([Path(typed[0]).name, *typed[1:]])
    return shlex.join(["python", *typed])


def _processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, with family and model if the system reports them, as rented machines share one name."""
    first: dict[str, str] = {}
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            first.setdefault(name.strip(), value.strip())
    if "model name" not in first:
        return platform.processor() or platform.machine()
    details = [f"{name.removeprefix('cpu ')} {first[name]}" for name in ("cpu family", "model") if name in first]
    return first["model name"] + (f" ({', '.join(details)})" if details else "")


def _memory_bytes() -> int | None:
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def package_version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
