"""Where the shipped models are.

A checkout holds them. Otherwise they are the distribution `underpaint-zoo`, which names its folder by an entry point.
`UNDERPAINT_ZOO` names another folder and goes before both.
"""

import os
from pathlib import Path
from typing import Final

from underpaint.artifacts.manifest import ManifestError

VARIABLE: Final = "UNDERPAINT_ZOO"
GROUP: Final = "underpaint.zoo"
"""Entry points of this group name a folder of models, as a `pathlib.Path`."""
_CHECKOUT: Final = Path(__file__).resolve().parents[1] / "zoo"
_REMEDY: Final = (
    "install them with `pip install underpaint-zoo` (from a checkout: `make setup`), let "
    f"{VARIABLE} name a folder of models, or pass one with --models where the command takes it"
)


def shipped_folder() -> Path:
    """Return the folder of the shipped models. It is missing or empty where no models are installed."""
    if named := os.environ.get(VARIABLE):
        return Path(named).resolve()
    if (_CHECKOUT / "model_index.json").is_file():
        return _CHECKOUT
    from importlib.metadata import entry_points  # slow to import, and a checkout does not need it

    for point in sorted(entry_points(group=GROUP)):
        try:
            return Path(point.load())
        except (ImportError, AttributeError, TypeError):  # a damaged installation: as if there were none
            continue
    return _CHECKOUT


def check_shipped(folder: Path) -> None:
    """Raise ManifestError if `folder` is where the shipped models are expected and there are none."""
    if (folder / "model_index.json").is_file():
        return
    named = os.environ.get(VARIABLE)
    if named and folder == Path(named).resolve():
        raise ManifestError(f"{VARIABLE}: expected a folder of models, which holds model_index.json, got {named}")
    if folder == _CHECKOUT:
        raise ManifestError(f"the shipped models are not installed; {_REMEDY}")
