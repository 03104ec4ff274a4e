"""Exports published checkpoints: writes to a staging folder, compares with torch, then moves all files together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from underpaint.artifacts.decoder_config import Precision
from underpaint.artifacts.decoder_graph import POSITION_BUCKETS
from underpaint.artifacts.manifest import ExportRecord, Manifest, ManifestError, digest
from underpaint.artifacts.model_index import read_manifests
from underpaint.export.decoders import GraphFormat, export_conditioner, export_decoder
from underpaint.export.graph import OPSET
from underpaint.export.samplers import KIND as SAMPLER
from underpaint.export.samplers import export_trained, load_trained
from underpaint.export.store import Origin, staged
from underpaint.export.tokenizer import (
    codebook_of,
    export_published_tokenizer,
    require_runnable,
    require_same_codes,
    store_codes,
)
from underpaint.models.published.families import FAMILIES
from underpaint.models.published.files import read_checkpoint
from underpaint.models.published.load import load
from underpaint.models.published.options import LoadOptions, Published

NEIGHBOURS: Final = 1000
"""Default number of columns of the neighbour table: the largest k that LANTERN's authors publish."""
_WITH_CODES: Final = ("vq", "chameleon", "chameleon-vq")
"""Kinds of checkpoint that may contain a codebook."""
_LICENCE: Final = "that of the published weights; see their authors' page"


@dataclass(frozen=True, slots=True)
class Request:
    """An export request.

    Attributes:
        kind: Kind of the checkpoint.
        checkpoint: Path of the checkpoint.
        precision: Precision of the exported models.
        options: Options for loading the checkpoint.
        target: Kind and path of the checkpoint of a drafter's target, or None.
        target_options: Options for loading that target.
        neighbours: Columns of the neighbour table of a tokenizer, at most its number of codes minus one; None uses
            `NEIGHBOURS`, or all other codes if there are fewer.
        eight_bits: Whether to multiply in 8 bits (drafters).
    """

    kind: str
    checkpoint: Path
    precision: Precision = "fp32"
    options: LoadOptions = field(default_factory=LoadOptions)
    target: tuple[str, Path] | None = None
    target_options: LoadOptions = field(default_factory=LoadOptions)
    neighbours: int | None = None
    eight_bits: bool = False

    def loaded(self) -> Published:
        """Load the checkpoint in the requested precision."""
        return load(self.kind, self.checkpoint, self.precision, self.options, self.target, self.target_options)

    def to_dict(self) -> dict[str, Any]:
        """Return the request as JSON values for a manifest."""
        target = None if self.target is None else [self.target[0], str(self.target[1].resolve())]
        return {
            "kind": self.kind,
            "checkpoint": str(self.checkpoint.resolve()),
            "precision": self.precision,
            "options": asdict(self.options),
            "target": target,
            "target_options": asdict(self.target_options),
            "eight_bits": self.eight_bits,
        }

    @classmethod
    def of(cls, record: ExportRecord | None, name: str) -> "Request":
        """Return the request that exported model `name`; raises ManifestError if its manifest has none."""
        if record is None:
            raise ManifestError(f"{name}: its manifest does not say what it was exported from; export it again")
        values = record.request
        try:
            target = values["target"]
            return cls(
                values["kind"],
                Path(values["checkpoint"]),
                values["precision"],
                _options(values["options"]),
                None if target is None else (target[0], Path(target[1])),
                _options(values["target_options"]),
                eight_bits=values["eight_bits"],
            )
        except (LookupError, TypeError) as error:
            raise ManifestError(f"{name}: its manifest's request lacks its parts ({error!r}); export again") from error


def _options(values: Mapping[str, Any]) -> LoadOptions:
    uncond_keep = values.get("uncond_keep")
    return LoadOptions(**{**values, "uncond_keep": None if uncond_keep is None else tuple(uncond_keep)})


def export_checkpoint(request: Request, folder: Path) -> tuple[Manifest, ...]:
    """Export a checkpoint into `folder`, next to its other models, and rewrite the folder's index.

    Raises the errors of `load` and `require_same_codes`; ManifestError if `folder` has an older format or its models
    do not belong to these; ParityError if a graph differs from torch; OSError, for example for a full disk. After any
    error `folder` is unchanged.
    """
    form = GraphFormat(request.precision, eight_bits=request.eight_bits)
    if folder.is_dir():
        read_manifests(folder)
    if request.kind == SAMPLER:
        trained = load_trained(request.checkpoint, request.precision)
        origin = Origin("", "", export=_record(request, digest(request.checkpoint)))
        with staged(folder) as aside:
            return (export_trained(trained, request.precision, folder, aside, origin),)
    loaded = request.loaded()
    if request.eight_bits and (loaded.decoder is None or not loaded.decoder.config.drafter):
        raise ValueError(f"--eight-bits: expected a drafter, got {request.kind}: it would change a target's pictures")
    origin = Origin(
        f"{request.kind} checkpoint {request.checkpoint.name}",
        f"underpaint export --kind {request.kind}",
        _LICENCE,
        export=_record(request, loaded.checkpoint.digest()),
    )
    if loaded.vq is not None:
        require_runnable(request.precision)
    require_same_codes(loaded, folder)
    _require_own_target(request, folder)
    if FAMILIES[request.kind].read_target is not None:
        _require_own_drafter(request, loaded.checkpoint.digest(), folder)
    neighbours = _neighbours(request, loaded)
    spec = FAMILIES[request.kind]
    with staged(folder, None if spec.read_target is None else spec.family) as aside:
        if loaded.vq is not None:
            return export_published_tokenizer(loaded.vq.float(), request.precision, neighbours, aside, origin)
        return _decoder(loaded, request, form, neighbours, aside, origin)


def _neighbours(request: Request, loaded: Published) -> int:
    """The number of nearest codes to store per code; raises ValueError if the requested number is out of range."""
    most = loaded.codes - 1
    if request.neighbours is not None and request.kind not in _WITH_CODES:
        raise ValueError(f"--neighbours goes with {', '.join(_WITH_CODES)}, whose codes it is about; leave it out")
    if most < 1 and request.kind in _WITH_CODES:
        raise ValueError(f"{request.checkpoint}: expected at least 2 codes, got {loaded.codes}; check the file")
    if request.neighbours is not None and not 1 <= request.neighbours <= most:
        raise ValueError(
            f"--neighbours: expected 1 to {most:,}, as this checkpoint has {loaded.codes:,} codes, got "
            f"{request.neighbours:,}"
        )
    return min(NEIGHBOURS, most) if request.neighbours is None else request.neighbours


def _require_own_target(request: Request, folder: Path) -> None:
    """Raise ManifestError if a drafter's target is not the folder's target, by the hash of its checkpoint.

    The drafters of LlamaGen's class and caption models have equal shapes, so only the hash distinguishes them.
    """
    if request.target is None:
        return
    kind, path = request.target
    for manifest in read_manifests(folder).values() if folder.is_dir() else ():
        if manifest.kind != "target" or manifest.export is None:
            continue
        exported_kind = manifest.export.request.get("kind")
        if exported_kind != kind or manifest.export.checkpoint_sha256 != read_checkpoint(path).digest():
            raise ManifestError(
                f"{folder}: expected a drafter of its target, {exported_kind} of "
                f"{manifest.export.request.get('checkpoint')}, got one that reads {kind} of {path}; name that target "
                "with --target and --target-kind, or export both into another folder"
            )


def _require_own_drafter(request: Request, sha: str, folder: Path) -> None:
    """Raise ManifestError if the folder has a drafter of another target than the exported one, of this hash."""
    for manifest in read_manifests(folder).values() if folder.is_dir() else ():
        pair = manifest.export.request.get("target") if manifest.kind == "drafter" and manifest.export else None
        if pair is None:
            continue
        kind, path = str(pair[0]), Path(str(pair[1]))
        if kind != request.kind or (path.exists() and read_checkpoint(path).digest() != sha):
            raise ManifestError(
                f"{folder}: its drafter reads {kind} of {path}, got {request.kind} of {request.checkpoint}; export the "
                "target into another folder"
            )


def _record(request: Request, sha: str) -> ExportRecord:
    return ExportRecord(request.to_dict(), sha, OPSET, POSITION_BUCKETS)


def _decoder(
    loaded: Published, request: Request, form: GraphFormat, neighbours: int, folder: Path, origin: Origin
) -> tuple[Manifest, ...]:
    decoder, conditioner = loaded.decoder, loaded.conditioner
    assert decoder is not None
    config = decoder.config
    name = "drafter" if config.drafter else "target"
    written = [export_decoder(name, decoder, conditioner, form, folder, origin)]
    if conditioner is not None:
        written.append(export_conditioner(conditioner, request.precision, folder, origin))
    codebook = codebook_of(loaded)
    if codebook is not None:
        written += store_codes(codebook, neighbours, folder, origin)
    return tuple(written)
