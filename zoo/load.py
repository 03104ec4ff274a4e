"""Finds models by name in a folder (by default the shipped one), and checks the words of their prompt grammar."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.registry import suggest
from underpaint.artifacts.arrays import ArrayFile, ArrayForm
from underpaint.artifacts.manifest import Manifest, ManifestError, check, read
from underpaint.artifacts.model_families import PROMPT_GRAMMAR, TEXTURED_FAMILY
from underpaint.artifacts.model_index import INDEX, ModelIndex, check_shipped, is_manifest, shipped_folder
from underpaint.artifacts.strict_json import parse_json, read_json

FOLDER = shipped_folder()
"""The folder of the shipped models; see `artifacts.model_index` for its location."""
TABLES = Path(__file__).parent
"""The folder of the prompt grammar's tables, which are needed with and without models."""
SCENES: Final = "textured_scenes.json"
"""The file of the prompt grammar's words."""


class Located(NamedTuple):
    """A model file that matches its manifest."""

    path: Path
    manifest: Manifest

    def size(self, setting: str) -> int:
        """Read a count from the manifest's settings; raises ManifestError unless it is a positive integer."""
        size = self.manifest.settings.get(setting)
        if type(size) is not int or size < 1:
            raise ManifestError(
                f"{self.manifest.name}: its manifest's setting {setting}: expected a whole number from 1 on, got "
                f"{size!r}; export the model again"
            )
        return size


def names(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of the models in `folder`, sorted."""
    return tuple(sorted(file.stem for file in folder.glob("*.json") if file.name != INDEX and is_manifest(file)))


def manifest(name: str, folder: Path = FOLDER) -> Manifest:
    """Return the manifest of model `name`; raises ManifestError if there is none."""
    check_shipped(folder)
    path = folder / f"{name}.json"
    if path.parent != folder or path.name == INDEX or not path.is_file() or not is_manifest(path):
        raise ManifestError(f"zoo: there is no model '{name}' in {folder}; {suggest(name, names(folder))}")
    return read(path)


def locate(name: str, kind: str, folder: Path = FOLDER) -> Located:
    """Return the file and manifest of model `name`; raises ManifestError unless it is of `kind`."""
    model = manifest(name, folder)
    if model.kind != kind:
        raise ManifestError(f"zoo: '{name}' is a {model.kind}, expected a {kind}; choose another model")
    return Located(check(model, folder), model)


def read_codebook(folder: Path = FOLDER) -> NDArray[np.float32]:
    """Read the codebook [V, C] of a folder of models; raises the errors of `read_table`."""
    return read_table("codebook", "codebook", folder)


def read_table(name: str, kind: str, folder: Path) -> NDArray[Any]:
    """Read the array in a model's .npz file, which has the model's name; raises ManifestError if that fails."""
    path = locate(name, kind, folder).path
    try:
        with ArrayFile(path) as arrays:
            return arrays.read(name, ArrayForm(dimensions=2))
    except ValueError as error:
        raise ManifestError(f"{path}: expected an array '{name}' ({error}); export the tokenizer again") from error


def takes_grammar(index: ModelIndex) -> bool:
    """Return whether the prompts of a folder's models use the prompt grammar.

    Raises:
        ManifestError: They use a grammar that this version does not know.
    """
    if index.condition != PROMPT_GRAMMAR:
        return False
    if index.family != TEXTURED_FAMILY:
        family = f"the family '{index.family}'" if index.family else "no named family"
        raise ManifestError(
            f"expected models of the family '{TEXTURED_FAMILY}', whose prompt grammar this version knows, got models "
            f"of {family}; train models with 'underpaint train world', or use the version that exported these"
        )
    return True


def check_tables(folder: Path) -> None:
    """Refuse a folder of models whose grammar words differ from this version's, because word ids would differ.

    A folder without a words file is accepted.

    Raises:
        ManifestError: The words differ, or the file is damaged.
    """
    path, own_path = folder / SCENES, TABLES / SCENES
    if not path.is_file():
        return
    try:
        same = path.samefile(own_path) or read_json(path) == read_json(own_path)
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}); export the models again") from error
    if not same:
        raise ManifestError(
            f"{path}: expected the words of this version's {TEXTURED_FAMILY}, got others: the models were trained or "
            "exported by another version; train and export them again, or take that version"
        )


def read_tables(file: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Read the tables in a JSON file of this package.

    Args:
        file: Name of the file.
        kinds: The required tables by name, each with its type: list or dict.

    Returns:
        The tables by name.

    Raises:
        ManifestError: The file is missing, damaged or lacks a table, so the package is incomplete.
    """
    remedy = "the package is damaged: install underpaint again, or restore the file (git checkout)"
    path = TABLES / file
    try:
        tables = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path}: expected the tables of the prompt grammar ({error}); {remedy}") from error
    by_name: dict[str, Any] = tables if isinstance(tables, dict) else {}
    lacking = [name for name, kind in kinds.items() if type(by_name.get(name)) is not kind]
    if lacking:
        raise ManifestError(f"{path}: expected tables {', '.join(kinds)}, got none of {', '.join(lacking)}; {remedy}")
    return by_name
