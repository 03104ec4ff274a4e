"""Writes `model_index.json`: the manifests of a folder determine which models belong together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from underpaint.algos.rows import SamplingParams
from underpaint.artifacts.decoder_config import DecoderConfig, read_config
from underpaint.artifacts.manifest import DRAFT_TARGET, Manifest, ManifestError, write_beside
from underpaint.artifacts.model_families import (
    PROMPT_GRAMMAR,
    PUBLISHED_SAMPLING,
    SAMPLING_BY_KIND,
    TEXTURED_FAMILY,
    TEXTURED_SAMPLING,
)
from underpaint.artifacts.model_index import (
    INDEX,
    REMEDY,
    ModelIndex,
    ResolutionEntry,
    TokenizerEntry,
    entry_of,
    known_condition,
    present_index,
    read_manifests,
)


def build_index(
    folder: Path, *, family: str | None = None, sampling_params: SamplingParams | None = None
) -> ModelIndex:
    """Build the index of the models in `folder` from their manifests.

    The condition comes from the folder's index if that has the same targets, and otherwise from the manifests.

    Args:
        folder: The folder of models.
        family: Family of the models; None keeps that of the folder's index, or leaves it empty without an index.
        sampling_params: Sampling parameters; None keeps those of the folder's index if it has the same targets, and
            otherwise takes those of the manifests. Sampling that a user changed stays if the condition does.

    Raises:
        ManifestError: The manifests contradict each other: two codebooks, two targets of one grid, different numbers
            of codes.
    """
    manifests = read_manifests(folder)
    targets = sorted(_of_kind(manifests, "target"), key=lambda name: _config(manifests[name]).grid)
    before = present_index(folder)
    tokenizer = TokenizerEntry(
        *(_single(manifests, kind, folder) for kind in ("codebook", "neighbours", "image_decoder", "image_encoder"))
    )
    stride = _stride(manifests, tokenizer)
    resolutions = tuple(_resolution(name, manifests, folder, stride) for name in targets)
    _check_pairs(resolutions, manifests, folder)
    drawn_by = [manifests[name] for name in targets]
    if family is None:
        family = before.family if before else ""
    same = before is not None and all(before.models.get(manifest.name) == entry_of(manifest) for manifest in drawn_by)
    condition = before.condition if before and targets and same else _condition(drawn_by, family)
    if sampling_params is None:
        published = before is not None and before.sampling() in (PUBLISHED_SAMPLING, *SAMPLING_BY_KIND.values())
        kept = before is not None and before.resolutions and before.condition == condition
        keep_sampling = kept and (same or not published)
        sampling_params = before.sampling() if before and keep_sampling else _sampling(drawn_by, condition)
    return ModelIndex(
        models={name: entry_of(manifest) for name, manifest in manifests.items()},
        resolutions=resolutions,
        tokenizer=tokenizer,
        condition=known_condition(condition, str(folder)),
        judge=_single(manifests, "judge", folder),
        sampling_params=asdict(sampling_params),
        family=family,
    )


def write_index(folder: Path, *, family: str | None = None, sampling_params: SamplingParams | None = None) -> Path:
    """Write `model_index.json` for the models in `folder` and return its path; see `build_index` for the options."""
    index = build_index(folder, family=family, sampling_params=sampling_params)
    path = folder / INDEX
    write_beside(path, (json.dumps(asdict(index), indent=1, sort_keys=True) + "\n").encode())
    return path


def _of_kind(manifests: Mapping[str, Manifest], kind: str) -> list[str]:
    return [name for name, manifest in manifests.items() if manifest.kind == kind]


def _single(manifests: Mapping[str, Manifest], kind: str, folder: Path) -> str | None:
    """The only model of a kind, or None; raises ManifestError if there are two."""
    names = _of_kind(manifests, kind)
    if len(names) > 1:
        raise ManifestError(f"{folder}: expected one {kind}, got {', '.join(names)}; export into separate folders")
    return names[0] if names else None


def _config(manifest: Manifest) -> DecoderConfig:
    """The config of a target or a drafter; raises ManifestError if its manifest has none."""
    try:
        return read_config(manifest.settings, f"{manifest.name}: settings")
    except ValueError as error:
        raise ManifestError(f"{error}; {REMEDY}") from error


def _stride(manifests: Mapping[str, Manifest], tokenizer: TokenizerEntry) -> int | None:
    """Pixels per code along a side; None if the tokenizer's manifests do not say."""
    for name in (tokenizer.vq_decoder, tokenizer.vq_encoder):
        if name is not None and "stride" in manifests[name].settings:
            return int(manifests[name].settings["stride"])
    return None


def _resolution(target: str, manifests: Mapping[str, Manifest], folder: Path, stride: int | None) -> ResolutionEntry:
    grid = _config(manifests[target]).grid
    side = None if stride is None else stride * grid[0]
    return ResolutionEntry(
        side=side,
        grid=grid,
        target=target,
        drafter=_beside("drafter", grid, manifests, folder),
        reference=_reference(side, manifests),
        draft_target=_draft_target(target, grid, manifests, folder),
    )


def _beside(kind: str, grid: tuple[int, int], manifests: Mapping[str, Manifest], folder: Path) -> str | None:
    """The only model of a kind for a grid, or None; raises ManifestError if there are two."""
    names = [name for name in _of_kind(manifests, kind) if _config(manifests[name]).grid == grid]
    if len(names) > 1:
        raise ManifestError(
            f"{folder}: expected one {kind.replace('_', ' ')} of {grid[0]} x {grid[1]} codes, got {', '.join(names)}; "
            "export into separate folders"
        )
    return names[0] if names else None


def _draft_target(target: str, grid: tuple[int, int], manifests: Mapping[str, Manifest], folder: Path) -> str | None:
    """The draft target of `grid` with the weights of `target`; ignores one left by an export of other weights."""
    weights = manifests[target].content_sha256
    same = {name: manifest for name, manifest in manifests.items() if manifest.content_sha256 == weights}
    return _beside(DRAFT_TARGET, grid, same, folder)


def _reference(side: int | None, manifests: Mapping[str, Manifest]) -> str | None:
    for name in _of_kind(manifests, "reference"):
        if side in manifests[name].settings.get("sides", ()):
            return name
    return None


def _check_pairs(resolutions: Iterable[ResolutionEntry], manifests: Mapping[str, Manifest], folder: Path) -> None:
    """Raise ManifestError unless every grid has one target, and all models have the same number of codes."""
    grids = [entry.grid for entry in resolutions]
    if len(set(grids)) != len(grids):
        raise ManifestError(f"{folder}: two targets draw one grid; export them into separate folders")
    kinds = {"target", "drafter", DRAFT_TARGET, "codebook", "image_decoder", "image_encoder"}
    sizes = {
        name: int(manifest.settings["vocab_size"])
        for name, manifest in manifests.items()
        if manifest.kind in kinds and "vocab_size" in manifest.settings
    }
    if len(set(sizes.values())) > 1:
        sizes_text = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ManifestError(f"{folder}: expected models of one codebook, got numbers of codes: {sizes_text}; {REMEDY}")


def _condition(targets: Iterable[Manifest], family: str) -> str:
    """The condition that the targets take: from the folder's family, or else from their manifests."""
    if family == TEXTURED_FAMILY:
        return PROMPT_GRAMMAR
    for config in map(_config, targets):
        if config.condition == "external":
            return "features"
        if config.prefix != 1:
            return "ids"
    return "class"


def _sampling(targets: Iterable[Manifest], condition: str) -> SamplingParams:
    """The targets' published sampling parameters; without guidance if no target has an unconditional row."""
    manifests = list(targets)
    if condition == PROMPT_GRAMMAR:
        return TEXTURED_SAMPLING
    published = next((SAMPLING_BY_KIND[kind] for kind in map(_kind, manifests) if kind in SAMPLING_BY_KIND), None)
    sampling = published or PUBLISHED_SAMPLING
    return sampling if any(_config(manifest).guided for manifest in manifests) else replace(sampling, guidance=1.0)


def _kind(target: Manifest) -> str:
    """The kind of checkpoint that a target was exported from (for a Chameleon, its layout); empty if unknown."""
    request = {} if target.export is None else target.export.request
    options = request.get("options")
    kind = request.get("kind")
    if kind == "chameleon":
        kind = options.get("layout") if isinstance(options, Mapping) else None
    return kind if isinstance(kind, str) else ""
