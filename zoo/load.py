"""Find the shipped models by name."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.registry import suggest
from underpaint.artifacts.arrays import ArrayFile, ArrayForm
from underpaint.artifacts.manifest import Manifest, ManifestError, check, read
from underpaint.artifacts.model_index import INDEX, check_shipped, is_manifest, shipped_folder

FOLDER = shipped_folder()
"""The folder of the shipped models; `artifacts.model_index` says where that is."""
TABLES = Path(__file__).parent
"""The folder of the prompt grammars' tables, which the code reads with and without models."""


class Located(NamedTuple):
    """A model file that matches its manifest."""

    path: Path
    manifest: Manifest

    def size(self, setting: str) -> int:
        """A setting that counts something; ManifestError unless the manifest holds it as a whole number from 1 on."""
        found = self.manifest.settings.get(setting)
        if type(found) is not int or found < 1:
            raise ManifestError(
                f"{self.manifest.name}: its manifest's setting {setting}: expected a whole number from 1 on, got "
                f"{found!r}; export the model again"
            )
        return found


def names(folder: Path = FOLDER) -> tuple[str, ...]:
    """The models of `folder`, sorted."""
    return tuple(sorted(file.stem for file in folder.glob("*.json") if file.name != INDEX and is_manifest(file)))


def manifest(name: str, folder: Path = FOLDER) -> Manifest:
    """The manifest of model `name`; ManifestError where there is none."""
    check_shipped(folder)
    path = folder / f"{name}.json"
    if path.parent != folder or path.name == INDEX or not path.is_file() or not is_manifest(path):
        raise ManifestError(f"zoo: there is no model '{name}' in {folder}; {suggest(name, names(folder))}")
    return read(path)


def locate(name: str, kind: str, folder: Path = FOLDER) -> Located:
    """The file and manifest of model `name`, which must be of `kind`; ManifestError otherwise."""
    found = manifest(name, folder)
    if found.kind != kind:
        raise ManifestError(f"zoo: '{name}' is a {found.kind}, expected a {kind}; choose another model")
    return Located(check(found, folder), found)


def read_codebook(folder: Path = FOLDER) -> NDArray[np.float32]:
    """The codebook [V, C] of a folder of models; raises as `read_table` does."""
    return read_table("codebook", "codebook", folder)


def read_table(name: str, kind: str, folder: Path) -> NDArray[Any]:
    """The one array, of the model's own name, in an .npz file of a folder; ManifestError where it cannot be read."""
    path = locate(name, kind, folder).path
    try:
        with ArrayFile(path) as held:
            table = held.read(name, ArrayForm(dimensions=2))
    except ValueError as error:
        raise ManifestError(f"{path}: expected an array '{name}' ({error}); export the tokenizer again") from error
    return table
