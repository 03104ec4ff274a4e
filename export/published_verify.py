"""`underpaint check`: the models of an export folder against the checkpoints that they came from."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from underpaint.artifacts.manifest import ManifestError, digest
from underpaint.export.modules import MOST as SAMPLER_MOST
from underpaint.export.published import Request, shape_of, write_graph
from underpaint.export.published_check import MOST, Report, compare
from underpaint.export.published_sampler import KIND as SAMPLER
from underpaint.export.published_sampler import load_trained
from underpaint.export.published_tokenizer import (
    HALVES,
    TOKENIZER_MOST,
    compare_conditioner,
    compare_module,
    compare_tokenizer,
)
from underpaint.export.samplers import cases_of
from underpaint.models.published.options import Published
from underpaint.runtime.engines.shape import read_shape
from underpaint.runtime.exported import RECORD, Record, check_data, read_records
from underpaint.zoo.load import manifest, path

_OTHER: Final = "{}: another checkpoint than {} was exported from; export it again"


@dataclass(frozen=True, slots=True)
class Result:
    """One model's report. allowed: the largest error that passes.

    stand_in: the graph compared is a float32 twin of one that does not run on the CPU.
    """

    name: str
    precision: str
    report: Report
    allowed: float
    stand_in: bool

    @property
    def passed(self) -> bool:
        """Whether every error is within what the precision allows."""
        return all(found <= self.allowed for found in self.report.worst().values())

    def lines(self) -> list[str]:
        """The report in words."""
        what = f"{self.name} ({self.precision}{', compared as float32' if self.stand_in else ''})"
        found = [f"{what}: {'passed' if self.passed else 'FAILED'}, allowed {self.allowed:g}"]
        for case, outputs in self.report.cases.items():
            shown = ", ".join(f"{name} {each.largest:.2g} / {each.mean:.2g}" for name, each in outputs.items())
            found.append(f"  {case}: largest / mean error {shown}")
        if self.name == "target":
            apart = self.report.parting
            same, parts = "greedy decoding draws the same picture", "greedy decoding parts at cell"
            found.append(
                f"  {same}"
                if apart is None
                else f"  {parts} {apart.cell}, where torch's best two lie {apart.margin:.3g} apart"
            )
        return found


def verify(folder: Path, greedy: bool, seed: int) -> Iterator[Result]:
    """Hold decoders, condition, tokenizer and samplers of `folder` against their checkpoints, after all hashes.

    Raises ManifestError on files, manifests or records that changed; and what `models.published.load.load` raises.
    """
    records = read_records(folder)
    between = sorted(name for name, record in records.items() if (record.request or {}).get("kind") == SAMPLER)
    if not {"target", "drafter", *HALVES, *between} & set(records):
        raise ManifestError(f"{folder} holds no target, drafter or tokenizer to check; export one into it")
    files = {name: path(name, folder) for name in records}
    for name in records:
        check_data(folder, name)
    for name in ("target", "drafter"):
        if name in records:
            yield _decoder(folder, name, files[name], records[name], greedy, seed)
    if "condition" in records:
        yield _condition(folder, files["condition"], records["condition"], seed)
    paths = {name: files[name] for name in HALVES if name in records}
    if paths:
        record = records[next(iter(paths))]
        request, loaded = _loaded(folder, next(iter(paths)), record)
        if loaded.vq is None:
            raise ManifestError(f"{folder / RECORD}: '{request.kind}' is no tokenizer; export again")
        reports = compare_tokenizer(loaded.vq.float(), request.precision, paths)
        for name, report in reports.items():
            allowed = TOKENIZER_MOST[request.precision]
            yield Result(name, request.precision, report, allowed, request.precision == "bf16")
    for name in between:
        yield _between(folder, name, files[name], records[name])


def _condition(folder: Path, graph: Path, record: Record, seed: int) -> Result:
    request, loaded = _loaded(folder, "condition", record)
    if loaded.conditioner is None:
        raise ManifestError(f"{folder / RECORD}: '{request.kind}' has no condition of features; export again")
    stored = "fp32" if request.precision == "bf16" else request.precision
    return Result(
        "condition", stored, compare_conditioner(loaded.conditioner.float(), graph, seed), MOST[stored], False
    )


def _between(folder: Path, name: str, graph: Path, record: Record) -> Result:
    request = Request.from_plain(record.request)
    trained = load_trained(request.checkpoint, request.precision)
    if digest(request.checkpoint) != record.checkpoint_sha256:
        raise ManifestError(_OTHER.format(request.checkpoint, name))
    cases = cases_of(trained.network)
    report = compare_module(trained.network, cases.feed, cases.result, cases.inputs, None, graph)
    return Result(name, request.precision, report, SAMPLER_MOST, False)


def _loaded(folder: Path, name: str, record: Record) -> tuple[Request, Published]:
    """A model's checkpoint, which must be the one it was exported from."""
    request = Request.from_plain(record.request)
    loaded = request.loaded()
    if loaded.checkpoint.digest() != record.checkpoint_sha256:
        raise ManifestError(_OTHER.format(request.checkpoint, name))
    return request, loaded


def _decoder(folder: Path, name: str, graph: Path, record: Record, greedy: bool, seed: int) -> Result:
    request, loaded = _loaded(folder, name, record)
    decoder, conditioner = loaded.decoder, loaded.conditioner
    if decoder is None or read_shape(manifest(name, folder).settings, name) != shape_of(decoder, request.precision):
        raise ManifestError(f"{folder}: manifest and record of '{name}' tell of different models; export it again")
    with TemporaryDirectory() as beside:
        if request.precision == "bf16":
            graph = Path(beside) / graph.name
            write_graph(decoder, "fp32", graph, True)
        decoder.float()
        whole = None if conditioner is None else conditioner.float()
        shown = "fp32" if request.precision == "bf16" else request.precision
        found = compare(graph, shown, decoder, whole, greedy and name == "target", seed)
    return Result(name, request.precision, found, MOST[request.precision], request.precision == "bf16")
