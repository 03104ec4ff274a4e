"""Published checkpoints to a folder of ONNX models: written aside, compared with torch, then put in place together."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final, cast

import numpy as np
import onnx

from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.artifacts import manifest
from underpaint.artifacts.manifest import Manifest, ManifestError, digest
from underpaint.export.codes import codebook_of, require_same_codes
from underpaint.export.graph import OPSET
from underpaint.export.published_check import MOST, Report, compare
from underpaint.export.published_decoder import write_conditioner, write_decoder
from underpaint.export.published_sampler import KIND as SAMPLER
from underpaint.export.published_sampler import export_trained, load_trained
from underpaint.export.published_tokenizer import compare_conditioner, export_published_tokenizer, store_codes
from underpaint.export.sampler import write_sampler
from underpaint.export.store import PACKAGES, Origin, draft_manifest, require_parity
from underpaint.export.typed import TypedGraph
from underpaint.models.published.decoder import Conditioner, Decoder
from underpaint.models.published.load import Precision, load
from underpaint.models.published.options import LoadOptions, Published
from underpaint.runtime.engines.context import EngineContext, open_session
from underpaint.runtime.engines.shape import DecoderShape
from underpaint.runtime.exported import BUCKETS, RECORD, Data, Record, read_records

MOST_IN_FILE: Final = 1 << 30
"""Bytes of weights that stay in the graph's own file; protobuf ends at 2 GiB."""
NEIGHBOURS: Final = 1000
"""Columns of the neighbour table: LANTERN's largest published k."""
TOP_K: Final = 1000
_SCRATCH: Final = 64
_LICENCE: Final = "that of the published weights; see their authors' page"


@dataclass(frozen=True, slots=True)
class Request:
    """What to export. target, target_options: the checkpoint that a drafter reads (kind, path)."""

    kind: str
    checkpoint: Path
    precision: str = "fp32"
    options: LoadOptions = field(default_factory=LoadOptions)
    target: tuple[str, Path] | None = None
    target_options: LoadOptions = field(default_factory=LoadOptions)
    top_k: int = TOP_K
    neighbours: int = NEIGHBOURS

    def loaded(self) -> Published:
        """The checkpoint, in the precision asked for."""
        return load(self.kind, self.checkpoint, self.precision, self.options, self.target, self.target_options)

    def to_dict(self) -> dict[str, Any]:
        """The request as JSON holds it."""
        target = None if self.target is None else [self.target[0], str(self.target[1].resolve())]
        return {
            "kind": self.kind,
            "checkpoint": str(self.checkpoint.resolve()),
            "precision": self.precision,
            "options": asdict(self.options),
            "target": target,
            "target_options": asdict(self.target_options),
        }

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "Request":
        """The request in a record; ManifestError where it is not one."""
        try:
            target = values["target"]
            return cls(
                values["kind"],
                Path(values["checkpoint"]),
                values["precision"],
                _options(values["options"]),
                None if target is None else (target[0], Path(target[1])),
                _options(values["target_options"]),
            )
        except (LookupError, TypeError) as error:
            raise ManifestError(f"{RECORD}: damaged, a request lacks its parts ({error!r}); export again") from error


def _options(values: Mapping[str, Any]) -> LoadOptions:
    kept = values.get("kept")
    return LoadOptions(**{**values, "kept": None if kept is None else tuple(kept)})


def export_published(request: Request, folder: Path) -> tuple[Manifest, ...]:
    """Export a checkpoint into `folder`, beside what is there.

    Raises what `load` and `require_same_codes` raise; ParityError where a graph does not compute what torch does;
    OSError, as for a full disk.
    In every case `folder` stays as it was.
    """
    if request.kind == SAMPLER:
        trained = load_trained(request.checkpoint, request.precision)
        with _aside(folder) as staged:
            written: tuple[Manifest, ...] = (export_trained(trained, request.precision, folder, staged),)
            _record(written, request, digest(request.checkpoint), folder, staged)
        return written
    loaded = request.loaded()
    origin = Origin(
        f"{request.kind} checkpoint {request.checkpoint.name}", f"underpaint export --kind {request.kind}", _LICENCE
    )
    require_same_codes(loaded, folder)
    sha = loaded.checkpoint.digest()
    with _aside(folder) as staged:
        if loaded.vq is not None:
            model = loaded.vq.float()
            written = export_published_tokenizer(model, request.precision, request.neighbours, staged, origin)
        else:
            written = _decoder(loaded, request, staged, origin)
        _record(written, request, sha, folder, staged)
    return written


def _record(written: tuple[Manifest, ...], request: Request, sha: str, folder: Path, staged: Path) -> None:
    """Add what was written to the records of `folder`, in `staged`."""
    records = dict(read_records(folder)) if (folder / RECORD).is_file() else {}
    for found in written:
        data = staged / f"{found.name}.onnx.data"
        outside = Data(data.name, data.stat().st_size, digest(data)) if data.is_file() else None
        records[found.name] = Record(request.to_dict(), sha, OPSET, BUCKETS, outside)
    plain = {name: asdict(record) for name, record in sorted(records.items())}
    manifest.write_beside(staged / RECORD, (json.dumps(plain, indent=1) + "\n").encode())


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder beside the models whose files move among them at the end, if nothing went wrong."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    staged = Path(mkdtemp(dir=folder, prefix=".export."))
    try:
        yield staged
        # Manifests last: a model without its manifest is not found, one with a wrong manifest is refused.
        for file in sorted(staged.iterdir(), key=lambda file: file.suffix == ".json"):
            os.replace(file, folder / file.name)
    except OSError as error:
        what = f"{error.strerror or error} while writing into {folder}, which stays as it was; make room there"
        raise OSError(error.errno, f"{what}, or choose another folder") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        if made and not any(folder.iterdir()):
            folder.rmdir()


def _decoder(loaded: Published, request: Request, folder: Path, origin: Origin) -> tuple[Manifest, ...]:
    decoder, conditioner = loaded.decoder, loaded.conditioner
    assert decoder is not None
    config = decoder.config
    name = "drafter" if config.drafter else "target"
    path = folder / f"{name}.onnx"
    size = sum(value.numel() * value.element_size() for value in decoder.parameters())
    write_graph(decoder, request.precision, path, size > MOST_IN_FILE)
    report = _compared(path, decoder, conditioner, request.precision, folder)
    draft = draft_manifest(name, name, origin, asdict(shape_of(decoder, request.precision)))
    written = [_manifest(draft, path, report.worst(), folder)]
    if not config.drafter:
        written += _samplers(config.vocab_size, request.top_k, folder, origin)
    if conditioner is not None:
        written.append(_conditioner(conditioner, request.precision, folder, origin))
    codebook = codebook_of(loaded)
    if codebook is not None:
        written += store_codes(codebook, request.neighbours, folder, origin)
    return tuple(written)


def write_graph(decoder: Decoder, precision: str, path: Path, outside: bool) -> None:
    """Write a decoder's graph to `path`; `outside`: its weights to `<path>.data`."""
    if not outside:
        graph = TypedGraph(path.stem, precision)
        write_decoder(decoder, graph)
        graph.write(path)
        return
    with path.with_name(f"{path.name}.data").open("wb") as beside:
        graph = TypedGraph(path.stem, precision, beside, f"{path.name}.data")
        write_decoder(decoder, graph)
        graph.write(path)


def _compared(path: Path, decoder: Decoder, conditioner: Conditioner | None, precision: str, folder: Path) -> Report:
    """The report on a graph against its module in float32, which `decoder` becomes; ParityError on a difference."""
    decoder.float()
    whole = None if conditioner is None else conditioner.float()
    if precision != "bf16":
        report = compare(path, precision, decoder, whole, greedy=False)
    else:  # ONNX Runtime's CPU provider has no bfloat16: the same graph on the same numbers, in float32
        twin = folder / f"twin_{path.name}"
        write_graph(decoder, "fp32", twin, True)
        report = compare(twin, "fp32", decoder, whole, greedy=False)
        twin.unlink()
        twin.with_name(f"{twin.name}.data").unlink()
    require_parity(path.stem, report.worst(), MOST[precision])
    return report


def shape_of(decoder: Decoder, precision: str) -> DecoderShape:
    """What an engine must know of a decoder."""
    config = decoder.config
    text = config.rotary == "line" and not config.drafter
    outside = 2 * config.prefix if config.condition == "rows" else 0
    line = None if config.drafter else config.line_token
    if config.condition == "none" or text:
        unconditional: tuple[int, ...] = ()
    elif outside:
        unconditional = tuple(config.vocab_size + config.prefix + row for row in range(config.prefix))
    else:
        unconditional = (config.vocab_size + config.conditions - 1,)
    return DecoderShape(
        vocab_size=config.vocab_size,
        height=config.grid_side,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        head_dim=config.head_dim,
        dim=config.dim,
        capacity=config.cells + _SCRATCH if config.drafter else config.slots,
        prefix=0 if config.drafter else config.prefix,
        cond_ids=config.conditions,
        uncond_ids=unconditional,
        precision=cast(Precision, precision),
        prefix_cells="each" if text or config.rotary == "none" else "one",
        external_cond_rows=outside,
        uncond_keep=() if config.kept is None else config.kept,
        image_start_ids=tuple(config.vocab_size + mark for mark in config.marks),
        eol_token=None if line is None else config.vocab_size + line,
    )


def _manifest(draft: Manifest, path: Path, parity: Mapping[str, float], folder: Path) -> Manifest:
    graph = onnx.load(path, load_external_data=False).graph
    whole = replace(
        draft,
        file=path.name,
        bytes=path.stat().st_size,
        sha256=digest(path),
        shapes={
            value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in (*graph.input, *graph.output)
        },
        parity={case: float(f"{found:.3g}") for case, found in parity.items()},
        versions={package: version(package) for package in PACKAGES},
    )
    manifest.write(whole, folder)
    return whole


def _conditioner(conditioner: Conditioner, precision: str, folder: Path, origin: Origin) -> Manifest:
    path = folder / "condition.onnx"
    stored = "fp32" if precision == "bf16" else precision
    graph = TypedGraph("condition", stored)
    write_conditioner(conditioner, graph)
    graph.write(path)
    prefix, width = conditioner.absent.shape
    parity = compare_conditioner(conditioner, path).worst()
    require_parity("condition", parity, MOST[stored])
    draft = draft_manifest("condition", "condition", origin, {"prefix": prefix, "width": width})
    return _manifest(draft, path, parity, folder)


def _samplers(vocab_size: int, top_k: int, folder: Path, origin: Origin) -> list[Manifest]:
    """The graphs of the row maths, with and without top-k, compared with `algos.rows.sampling_probs`."""
    written = []
    kept = min(top_k, vocab_size)
    for name, count in (("sampler", 0), ("sampler_top_k", kept)):
        path = folder / f"{name}.onnx"
        graph = TypedGraph(name, "fp32")
        write_sampler(graph, vocab_size, count)
        graph.write(path)
        session = open_session(path, EngineContext())
        logits = np.random.default_rng(0).standard_normal((2, 5, vocab_size)).astype(np.float32)
        scalars = {"guidance": np.array([3.0], np.float32), "temperature": np.array([0.7], np.float32)}
        found = session.run(None, {"logits": logits, **scalars})[0]
        wanted = sampling_probs(logits, SamplingParams(guidance=3.0, temperature=0.7, top_k=count))
        parity = {"random": float(np.abs(found - wanted).max())}
        require_parity(name, parity, 1e-5)
        draft = draft_manifest(name, "sampler", origin, {"vocab_size": vocab_size, "top_k": count})
        written.append(_manifest(draft, path, parity, folder))
    return written
