"""What to type to install a part of this package that is missing, from a checkout or from a wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]


def install_hint(*extras: str, root: Path = _ROOT) -> str:
    """The command that adds extras of `pyproject.toml` to this installation.

    Args:
        extras: names of extras, such as "cpu".
        root: the folder that holds the package's parts: a checkout's has a `pyproject.toml`.
    """
    named = ",".join(extras)
    if (root / "pyproject.toml").is_file():
        return f"pip install -e '{'.' if root == Path.cwd() else root}[{named}]'"
    return f"pip install 'underpaint[{named}]'"
