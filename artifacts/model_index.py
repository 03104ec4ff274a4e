"""`model_index.json`: which models of a folder belong together, and how to tell that none of them was replaced.

A folder of models, shipped or exported, holds a manifest beside every model file (`artifacts.manifest`) and one index.
The index names the target and the drafter of each resolution, the tokenizer that all of them share, and the SHA-256 of
every file. A folder in which one file was replaced is refused: its models would draw noise without an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.algos.registry import suggest
from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.manifest import Manifest, ManifestError, read, write_beside
from underpaint.artifacts.model_families import (
    CONDITIONS,
    EMOJI_FAMILY,
    GRAMMAR_SAMPLING,
    GRAMMAR_TABLES,
    PROMPT_GRAMMAR,
    PUBLISHED_SAMPLING,
)
from underpaint.artifacts.typed_json import build_typed

INDEX: Final = "model_index.json"
INDEX_FORMAT: Final = 2
"""Version of the index, and of the folder as a whole."""
_REMEDY: Final = "make the folder again: `underpaint export --kind ... --out FOLDER` writes every model and the index"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model: what it is, and the SHA-256 of its file and of the weights beside it (None: they are in the file)."""

    kind: str
    sha256: str
    weights_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ResolutionEntry:
    """The models of one resolution.

    side: of the pictures in pixels; None where the folder holds no tokenizer that tells it. grid: rows and columns of
    codes. reference: the judge's view of real pictures at this resolution.
    """

    side: int | None
    grid: tuple[int, int]
    target: str
    drafter: str | None = None
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class TokenizerEntry:
    """The parts of the tokenizer that all resolutions share; None for what the folder does not hold."""

    codebook: str | None = None
    neighbours: str | None = None
    vq_decoder: str | None = None
    vq_encoder: str | None = None


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """What a folder of models holds; see the module.

    condition: one of `CONDITIONS`. judge: the classifier that reads the pictures; None where there is none.
    sampling_params: fields of `algos.rows.SamplingParams`, how the models are meant to be sampled. family: of the
    checkpoint, such as "llamagen"; empty where nothing tells.
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
        """How the models are meant to be sampled."""
        return build_typed(SamplingParams, self.sampling_params, f"{INDEX}: sampling_params")

    def hashes(self, names: Iterable[str]) -> dict[str, str]:
        """The SHA-256 of models by name: of the weights where they lie in a file of their own, else of the file.

        A new export of the same weights so changes no record of a result. Names that the folder lacks are left out.
        """
        known = {name: self.models[name] for name in sorted(set(names)) if name in self.models}
        return {name: entry.weights_sha256 or entry.sha256 for name, entry in known.items()}

    def resolution(self, asked: int | None = None) -> ResolutionEntry:
        """The entry of pictures of `asked` px a side, or of `asked` rows of codes; without it, the largest.

        Raises ManifestError where there is none, naming those there are.
        """
        if asked is None:
            return self.resolutions[-1]
        for entry in self.resolutions:
            if asked == (entry.grid[0] if entry.side is None else entry.side):
                return entry
        known = ", ".join(str(entry.grid[0] if entry.side is None else entry.side) for entry in self.resolutions)
        raise ManifestError(f"resolution {asked}: the folder draws {known}; choose one of these")


def read_manifests(folder: Path) -> dict[str, Manifest]:
    """The manifests of a folder by model, sorted by name. Other JSON files (cost curves, tables) are left out."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        if path.name != INDEX and is_manifest(path):
            found[path.stem] = read(path)
    return found


def is_manifest(path: Path) -> bool:
    """Whether a JSON file is a model's manifest, and no table beside the models. A damaged file counts as one."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return True
    return isinstance(held, dict) and {"kind", "sha256"} <= held.keys()


def build_index(
    folder: Path,
    *,
    family: str | None = None,
    condition: str | None = None,
    sampling_params: SamplingParams | None = None,
) -> ModelIndex:
    """The index of what `folder` holds, from its manifests.

    family, condition, sampling_params: what is left out is taken from the index that the folder has, where it is of
    the same targets, and else from their manifests. Raises ManifestError where the manifests contradict each other: two
    codebooks, two targets of one grid, other numbers of codes.
    """
    manifests = read_manifests(folder)
    targets = sorted(_of_kind(manifests, "target"), key=lambda name: _grid(manifests[name]))
    before = _present(folder)
    tokenizer = TokenizerEntry(
        *(_single(manifests, kind, folder) for kind in ("codebook", "neighbours", "image_decoder", "image_encoder"))
    )
    stride = _stride(manifests, tokenizer)
    resolutions = tuple(_resolution(name, manifests, folder, stride) for name in targets)
    _check_pairs(resolutions, manifests, folder)
    drawn_by = [manifests[name] for name in targets]
    if family is None:
        family = before.family if before else ""
    same = before is not None and all(before.models.get(found.name) == _entry(found) for found in drawn_by)
    if condition is None:
        condition = before.condition if before and targets and same else _condition(folder, drawn_by, family)
    if sampling_params is None:
        kept = before is not None and before.resolutions and before.condition == condition
        sampling_params = before.sampling() if before and kept else _sampling(drawn_by, condition, family)
    return ModelIndex(
        models={name: _entry(found) for name, found in manifests.items()},
        resolutions=resolutions,
        tokenizer=tokenizer,
        condition=_known_condition(condition, str(folder)),
        judge=_single(manifests, "judge", folder),
        sampling_params=asdict(sampling_params),
        family=family,
    )


def write_index(
    folder: Path,
    *,
    family: str | None = None,
    condition: str | None = None,
    sampling_params: SamplingParams | None = None,
) -> Path:
    """Write `model_index.json` of what `folder` holds and return its path; the options are those of `build_index`."""
    index = build_index(folder, family=family, condition=condition, sampling_params=sampling_params)
    path = folder / INDEX
    write_beside(path, (json.dumps(asdict(index), indent=1, sort_keys=True) + "\n").encode())
    return path


def read_index(folder: Path) -> ModelIndex:
    """The index of a folder of models, compared with every manifest there.

    Raises ManifestError: no folder, no index (a folder of an older format), a model that is missing, was added or was
    replaced since the index was written. What to do is part of the message. The model files themselves are compared
    with their manifests when they are loaded (`artifacts.manifest.check`).
    """
    index = _parsed(folder)
    manifests = read_manifests(folder)
    missing = sorted(index.models.keys() - manifests.keys())
    added = sorted(manifests.keys() - index.models.keys())
    if missing or added:
        what = f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(added)} besides"
        raise ManifestError(f"{folder}: {INDEX} names other models, the folder {what}; {_REMEDY}")
    for name, entry in index.models.items():
        if entry != _entry(manifests[name]):
            raise ManifestError(
                f"{folder}: '{name}' is not the one that {INDEX} names (sha256 {entry.sha256[:12]}, found "
                f"{manifests[name].sha256[:12]}): files of two exports are mixed; {_REMEDY}"
            )
    return index


def _parsed(folder: Path) -> ModelIndex:
    """The index as written; ManifestError where there is none or it is damaged."""
    if not folder.is_dir():
        raise ManifestError(f"no folder {folder}; make one with `underpaint export --kind ... --out {folder}`")
    path = folder / INDEX
    if not path.is_file():
        older = any(folder.glob("*.onnx"))
        why = f"it has no {INDEX}, so it is of an older format" if older else f"it has no {INDEX}"
        raise ManifestError(f"{folder} is no folder of models that this version opens: {why}; {_REMEDY}")
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held.get("format") != INDEX_FORMAT:
            raise ManifestError(f"{path}: expected format {INDEX_FORMAT}, got {held.get('format')}; {_REMEDY}")
        index = build_typed(ModelIndex, _without_costs(held), str(path))
        _check_names(index)
        index.sampling()
        _known_condition(index.condition, str(path))
    except ManifestError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ManifestError(f"{path}: damaged ({error}); {_REMEDY}") from error
    return index


def _without_costs(held: Mapping[str, Any]) -> dict[str, Any]:
    """An index without the cost curves that folders once named: every machine measures its own now."""
    entries = held["resolutions"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return dict(held)
    kept = [{name: value for name, value in entry.items() if name != "costs"} for entry in entries]
    return {**held, "resolutions": kept}


def _check_names(index: ModelIndex) -> None:
    """Raise ValueError where the index names a model that it does not list, or a file outside the folder."""
    parts: list[str | None] = [index.judge, *asdict(index.tokenizer).values()]
    for entry in index.resolutions:
        parts += [entry.target, entry.drafter, entry.reference]
    unknown = sorted({name for name in parts if name is not None and name not in index.models})
    if unknown:
        raise ValueError(f"it names {', '.join(unknown)}, which is not among its models")


def _present(folder: Path) -> ModelIndex | None:
    return _parsed(folder) if (folder / INDEX).is_file() else None


def family_of(folder: Path) -> str:
    """The family that a folder's index names; empty where it has none. ManifestError on an index that is damaged."""
    before = _present(folder)
    return before.family if before else ""


def _entry(found: Manifest) -> ModelEntry:
    weights = asdict(found).get("weights")
    return ModelEntry(found.kind, found.sha256, weights["sha256"] if weights else None)


def _of_kind(manifests: Mapping[str, Manifest], kind: str) -> list[str]:
    return [name for name, found in manifests.items() if found.kind == kind]


def _single(manifests: Mapping[str, Manifest], kind: str, folder: Path) -> str | None:
    """The one model of a kind; ManifestError where there are two."""
    held = _of_kind(manifests, kind)
    if len(held) > 1:
        raise ManifestError(f"{folder}: expected one {kind}, got {', '.join(held)}; export into separate folders")
    return held[0] if held else None


def _grid(found: Manifest) -> tuple[int, int]:
    try:
        return int(found.settings["height"]), int(found.settings["width"])
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{found.name}: expected settings height and width ({error!r}); {_REMEDY}") from error


def _stride(manifests: Mapping[str, Manifest], tokenizer: TokenizerEntry) -> int | None:
    """Pixels a code, a side."""
    for name in (tokenizer.vq_decoder, tokenizer.vq_encoder):
        if name is not None and "stride" in manifests[name].settings:
            return int(manifests[name].settings["stride"])
    return None


def _resolution(target: str, manifests: Mapping[str, Manifest], folder: Path, stride: int | None) -> ResolutionEntry:
    grid = _grid(manifests[target])
    drafters = [name for name in _of_kind(manifests, "drafter") if _grid(manifests[name]) == grid]
    if len(drafters) > 1:
        raise ManifestError(
            f"{folder}: expected one drafter of {grid[0]} x {grid[1]} codes, got {', '.join(drafters)}; export into "
            "separate folders"
        )
    side = None if stride is None else stride * grid[0]
    return ResolutionEntry(
        side=side,
        grid=grid,
        target=target,
        drafter=drafters[0] if drafters else None,
        reference=_reference(side, manifests),
    )


def _reference(side: int | None, manifests: Mapping[str, Manifest]) -> str | None:
    for name in _of_kind(manifests, "reference"):
        if side in manifests[name].settings.get("sides", ()):
            return name
    return None


def _check_pairs(resolutions: Iterable[ResolutionEntry], manifests: Mapping[str, Manifest], folder: Path) -> None:
    """ManifestError unless every grid has one target, and all draw as many codes."""
    grids = [entry.grid for entry in resolutions]
    if len(set(grids)) != len(grids):
        raise ManifestError(f"{folder}: two targets draw one grid; export them into separate folders")
    kinds = {"target", "drafter", "codebook", "image_decoder", "image_encoder"}
    sizes = {
        name: int(found.settings["vocab_size"])
        for name, found in manifests.items()
        if found.kind in kinds and "vocab_size" in found.settings
    }
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ManifestError(f"{folder}: expected models of one codebook, got numbers of codes: {told}; {_REMEDY}")


def _condition(folder: Path, targets: Iterable[Manifest], family: str) -> str:
    """What the targets take: from the folder's family or words, and else from their manifests."""
    if family in GRAMMAR_TABLES or (not family and (folder / GRAMMAR_TABLES[EMOJI_FAMILY]).is_file()):
        return PROMPT_GRAMMAR
    for found in targets:
        if found.settings.get("external_cond_rows"):
            return "features"
        if found.settings.get("prefix", 1) != 1:
            return "ids"
    return "class"


def _sampling(targets: Iterable[Manifest], condition: str, family: str) -> SamplingParams:
    """That of a family of our own; else the published one, without guidance where no target knows no condition."""
    if condition == PROMPT_GRAMMAR:
        return GRAMMAR_SAMPLING.get(family, GRAMMAR_SAMPLING[EMOJI_FAMILY])
    keys = ("uncond_ids", "uncond_keep")
    if any(found.settings.get(key) for found in targets for key in keys):
        return PUBLISHED_SAMPLING
    return SamplingParams(top_k=PUBLISHED_SAMPLING.top_k)


def _known_condition(condition: str, where: str) -> str:
    if condition not in CONDITIONS:
        raise ManifestError(f"{where}: there is no condition '{condition}'; {suggest(condition, CONDITIONS)}")
    return condition
