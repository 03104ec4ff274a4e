"""`model_index.json`: which models of a folder belong together, and hashes that reveal a replaced one.

A folder of models, shipped or exported, has a manifest next to every model file (`artifacts.manifest`) and one index.
The index names the target and the drafter of each resolution, their shared tokenizer, and the SHA-256 of every file. A
folder in which one file was replaced is refused: its models would draw noise without an error.

A checkout contains the shipped models. Otherwise the distribution `underpaint-zoo` provides them, and names its folder
in an entry point. `UNDERPAINT_ZOO` names another folder and has priority over both.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.algos.registry import suggest
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.manifest import Manifest, ManifestError, read
from underpaint.artifacts.model_families import (
    CONDITIONS,
    PUBLISHED_SAMPLING,
)
from underpaint.artifacts.strict_json import build_typed, check_format, read_json, read_object

INDEX: Final = "model_index.json"
INDEX_FORMAT: Final = 2
"""Version of the index and of the whole folder."""
REMEDY: Final = "make the folder again: `underpaint export --kind ... --out FOLDER` writes every model and the index"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model: its kind, and the SHA-256 of its file and of its separate weights (None: they are in the file)."""

    kind: str
    sha256: str
    weights_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ResolutionEntry:
    """The models of one resolution.

    Attributes:
        side: Side of the pictures in pixels; None if no tokenizer in the folder determines it.
        grid: Rows and columns of codes.
        target: Name of the target.
        drafter: Name of the drafter, or None.
        reference: Name of the judge's readings of real pictures at this resolution, or None.
        draft_target: Name of the target with 8-bit products, which drafts for larger resolutions, or None.
    """

    side: int | None
    grid: tuple[int, int]
    target: str
    drafter: str | None = None
    reference: str | None = None
    draft_target: str | None = None


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The parts of the tokenizer that all resolutions share; None for missing parts."""

    codebook: str | None = None
    neighbours: str | None = None
    vq_decoder: str | None = None
    vq_encoder: str | None = None


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """The content of a folder of models; see the module.

    Attributes:
        models: All models by name.
        resolutions: The models of each resolution.
        tokenizer: The tokenizer that all resolutions share.
        condition: One of `CONDITIONS`.
        judge: Name of the classifier that reads the pictures, or None.
        sampling_params: Intended fields of `algos.rows.SamplingParams`.
        family: Family of the checkpoint, such as "llamagen"; empty if unknown.
        format: Version of the index, `INDEX_FORMAT`.
    """

    models: Mapping[str, ModelEntry]
    resolutions: tuple[ResolutionEntry, ...]
    tokenizer: TokenizerEntry = field(default_factory=TokenizerEntry)
    condition: str = "class"
    judge: str | None = None
    sampling_params: Mapping[str, Any] = field(default_factory=lambda: asdict(PUBLISHED_SAMPLING))
    family: str = ""
    format: int = INDEX_FORMAT

    def sampling(self) -> SamplingParams:
        """The sampling parameters that the models are meant for."""
        return build_typed(SamplingParams, self.sampling_params, f"{INDEX}: sampling_params")

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """The SHA-256 of models by name: of the weights if they have a file of their own, else of the file.

        A new export of the same weights therefore changes no record of results. Unknown names are left out.
        """
        entries = {name: self.models[name] for name in sorted(set(names)) if name in self.models}
        return {name: entry.weights_sha256 or entry.sha256 for name, entry in entries.items()}

    def resolution(self, size: int | None = None) -> ResolutionEntry:
        """The entry for pictures with `size` pixels or rows of codes per side; None returns the largest.

        Raises ManifestError, with the known resolutions, if there is none.
        """
        if size is None:
            return self.resolutions[-1]
        for entry in self.resolutions:
            if size == (entry.grid[0] if entry.side is None else entry.side):
                return entry
        choices = ", ".join(str(entry.grid[0] if entry.side is None else entry.side) for entry in self.resolutions)
        raise ManifestError(f"resolution {size}: the folder draws {choices}; choose one of these")


def read_manifests(folder: Path) -> dict[str, Manifest]:
    """The manifests of a folder by model name, sorted; ignores other JSON files (cost curves, tables)."""
    manifests = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != INDEX and is_manifest(path):
            manifests[path.stem] = read(path)
    return manifests


def is_manifest(path: Path) -> bool:
    """Whether a JSON file is a model's manifest rather than a table. A damaged file counts as a manifest."""
    try:
        content = read_json(path)
    except ValueError:
        return True
    return isinstance(content, dict) and {"kind", "sha256"} <= content.keys()


def read_index(folder: Path) -> ModelIndex:
    """Read the index of a folder of models, and compare it with every manifest there.

    Raises ManifestError, with a remedy, if there is no folder or no index (as in an older format), or if a model is
    missing, or was added or replaced after the index was written. Model files are compared with their manifests only
    when they are loaded (`artifacts.manifest.check`).
    """
    index = _parsed(folder)
    manifests = read_manifests(folder)
    missing = sorted(index.models.keys() - manifests.keys())
    added = sorted(manifests.keys() - index.models.keys())
    if missing or added:
        what = f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(added)} besides"
        raise ManifestError(f"{folder}: {INDEX} names other models, the folder {what}; {REMEDY}")
    for name, entry in index.models.items():
        if entry != entry_of(manifests[name]):
            raise ManifestError(
                f"{folder}: '{name}' is not the one that {INDEX} names (sha256 {entry.sha256[:12]}, found "
                f"{manifests[name].sha256[:12]}): files of two exports are mixed; {REMEDY}"
            )
    return index


def _parsed(folder: Path) -> ModelIndex:
    """The index as written; raises ManifestError if it is missing or damaged."""
    check_shipped(folder)
    if not folder.is_dir():
        raise ManifestError(f"no folder {folder}; make one with `underpaint export --kind ... --out {folder}`")
    path = folder / INDEX
    if not path.is_file():
        older = any(folder.glob("*.onnx"))
        why = f"it has no {INDEX}, so it is of an older format" if older else f"it has no {INDEX}"
        raise ManifestError(f"{folder} is no folder of models that this version opens: {why}; {REMEDY}")
    try:
        values = read_object(path)
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}); {REMEDY}") from error
    try:
        check_format(values.get("format"), INDEX_FORMAT, REMEDY)
    except ValueError as error:
        raise ManifestError(f"{path}: {error}") from error
    try:
        index = build_typed(ModelIndex, values, str(path))
        _check_names(index)
        index.sampling()
        known_condition(index.condition, str(path))
    except ManifestError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ManifestError(f"{path}: damaged ({error}); {REMEDY}") from error
    return index


def _check_names(index: ModelIndex) -> None:
    """Raise ValueError if the index names a model that it does not list."""
    parts: list[str | None] = [index.judge, *asdict(index.tokenizer).values()]
    for entry in index.resolutions:
        parts += [entry.target, entry.drafter, entry.reference, entry.draft_target]
    unknown = sorted({name for name in parts if name is not None and name not in index.models})
    if unknown:
        raise ValueError(f"it names {', '.join(unknown)}, which is not among its models")


def present_index(folder: Path) -> ModelIndex | None:
    """A folder's index, not compared with its models, or None; raises ManifestError if it is damaged."""
    return _parsed(folder) if (folder / INDEX).is_file() else None


def family_of(folder: Path) -> str:
    """The family in a folder's index; empty without one. Raises ManifestError if the index is damaged."""
    before = present_index(folder)
    return before.family if before else ""


def entry_of(manifest: Manifest) -> ModelEntry:
    """The entry of a model in an index."""
    weights = asdict(manifest).get("weights")
    return ModelEntry(manifest.kind, manifest.sha256, weights["sha256"] if weights else None)


def known_condition(condition: str, where: str) -> str:
    """Return the condition; raises ManifestError if it is no known kind."""
    if condition not in CONDITIONS:
        raise ManifestError(f"{where}: there is no condition '{condition}'; {suggest(condition, CONDITIONS)}")
    return condition


VARIABLE: Final = "UNDERPAINT_ZOO"
GROUP: Final = "underpaint.zoo"
"""Entry points of this group name a folder of models as a `pathlib.Path`."""
_CHECKOUT: Final = Path(__file__).resolve().parents[1] / "zoo"
_REMEDY: Final = (
    "install them with `pip install underpaint-zoo` (from a checkout: `make setup`), let "
    f"{VARIABLE} name a folder of models, or pass one with --models where the command takes it"
)


def shipped_folder() -> Path:
    """Return the folder of the shipped models, which is missing or empty if none are installed."""
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
