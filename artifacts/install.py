"""The command that installs a missing part of this package, from a checkout or from a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]


def install_hint(*extras: str, root: Path = _ROOT) -> str:
    """The command that adds extras of `pyproject.toml` to this installation.

    Args:
        extras: Names of extras, such as "cpu".
        root: Folder of the package's parts; a checkout has a `pyproject.toml` there.
    """
    named = ",".join(extras)
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if root == Path.cwd() else root}[{named}]'"
    return f"pip install 'underpaint[{named}]'"
