"""Speculative decoding of visual autoregressive image models: a testbed, and the runtime that deploys it.

    import underpaint

    pipeline = underpaint.open_pipeline()
    drawing = underpaint.draw(pipeline, "a woolly fox left of an outlined pumpkin", "adt")
    report = underpaint.compare(pipeline, ["eagle2", "adt"], ["a woolly fox left of an outlined pumpkin"])
    exact = underpaint.exact_report("lantern")

What is exported here is loaded when it is first asked for, so that `import underpaint` stays quick.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from underpaint.api import (
        METHODS,
        POLICIES,
        RULES,
        ComparisonReport,
        Condition,
        Drawing,
        ExactReport,
        MethodSpec,
        Pipeline,
        PolicySpec,
        RuleSpec,
        SamplingParams,
        compare,
        draw,
        exact_report,
        open_pipeline,
        register_rule,
    )
    from underpaint.runtime.live.custom_generate import custom_generate as generate
    from underpaint.runtime.live.generate import LiveModel, accelerate
    from underpaint.runtime.live.recorder import TraceRecorder

    __version__: str

__all__ = [
    "METHODS",
    "POLICIES",
    "RULES",
    "ComparisonReport",
    "Condition",
    "Drawing",
    "ExactReport",
    "LiveModel",
    "MethodSpec",
    "Pipeline",
    "PolicySpec",
    "RuleSpec",
    "SamplingParams",
    "TraceRecorder",
    "__version__",
    "accelerate",
    "compare",
    "draw",
    "exact_report",
    "generate",
    "open_pipeline",
    "register_rule",
]

# ONNX Runtime's official builds send what models a process opens to their authors, and keep a file of it in the user's
# home folder, unless this is set before they are imported. Whoever wants that sets it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# In a checkout the folders of the project lie beside this one; an installed copy holds them itself. With this line
# `import underpaint` works in a bare checkout too, as on a machine without a package index.
_beside = Path(__file__).resolve().parent.parent
if (_beside / "algos" / "chance.py").is_file() and not (_beside / "underpaint" / "algos").is_dir():
    __path__.append(str(_beside))


_LIVE = {
    "accelerate": "generate:accelerate",
    "generate": "custom_generate:custom_generate",
    "LiveModel": "model:LiveModel",
    "TraceRecorder": "recorder:TraceRecorder",
}
"""Names of live models, which need PyTorch, and where they are in `runtime.live`."""


def __getattr__(name: str) -> Any:
    """An exported name (PEP 562)."""
    if name == "__version__":
        return _version()
    if name in _LIVE:
        module, _, attribute = _LIVE[name].partition(":")
        return getattr(import_module(f"underpaint.runtime.live.{module}"), attribute)
    if name in __all__:
        return getattr(import_module("underpaint.api"), name)
    raise AttributeError(f"module 'underpaint' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What is exported, whether it is loaded or not."""
    return sorted({*globals(), *__all__})


def _version() -> str:
    """The version of the installed package, or of the checkout where none is installed."""
    from importlib.metadata import PackageNotFoundError, version

    project = _beside / "pyproject.toml"
    if (_beside / "algos" / "chance.py").is_file() and project.is_file():
        import tomllib

        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
    try:
        return version("underpaint")
    except PackageNotFoundError:
        return "unknown"
