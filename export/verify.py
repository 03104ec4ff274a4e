"""Compares the models of an export folder with their checkpoints: `underpaint check`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from underpaint.artifacts.manifest import Manifest, ManifestError, check, digest
from underpaint.artifacts.model_index import read_index
from underpaint.export.checkpoint import Request
from underpaint.export.decoder_parity import compare
from underpaint.export.decoders import MOST_EIGHT_BITS, GraphFormat, compared, exported_config
from underpaint.export.modules import MOST as SAMPLER_MOST
from underpaint.export.parity import MOST, Report, compare_conditioner, compare_module
from underpaint.export.samplers import KIND as SAMPLER
from underpaint.export.samplers import cases_of, load_trained
from underpaint.export.tokenizer import HALVES, TOKENIZER_MOST, compare_tokenizer
from underpaint.models.published.options import Published
from underpaint.runtime.engines.context import CPU, EngineContext, EngineError
from underpaint.runtime.engines.engine import manifest_config
from underpaint.runtime.engines.providers import PROVIDERS, check_provider, machine_backends
from underpaint.zoo.load import manifest

_OWN_THREADS: Final = EngineContext()


@dataclass(frozen=True, slots=True)
class Result:
    """One model's report.

    Attributes:
        name: Name of the model.
        precision: Precision of the model.
        report: Its errors.
        allowed: The largest accepted error.
        float32_copy: Whether the compared graph is a float32 copy with the same weights instead of the model's own.
        greedy: Whether greedy decoding was compared, too.
    """

    name: str
    precision: str
    report: Report
    allowed: float
    float32_copy: bool = False
    greedy: bool = False

    @property
    def passed(self) -> bool:
        """Whether every error is within the limit for the precision."""
        return all(error <= self.allowed for error in self.report.worst().values())

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        what = f"{self.name} ({self.precision}{', its weights in a float32 graph' if self.float32_copy else ''})"
        lines = [f"{what}: {'passed' if self.passed else 'FAILED'}, allowed {self.allowed:g}"]
        for case, outputs in self.report.cases.items():
            error_text = ", ".join(f"{name} {each.largest:.2g} / {each.mean:.2g}" for name, each in outputs.items())
            lines.append(f"  {case}: largest / mean error {error_text}")
        if self.greedy:
            apart = self.report.parting
            same, parts = "greedy decoding draws the same picture", "greedy decoding parts at cell"
            lines.append(
                f"  {same}"
                if apart is None
                else f"  {parts} {apart.cell}, where torch's best two lie {apart.margin:.3g} apart"
            )
        return lines


def verify(folder: Path, greedy: bool, seed: int, context: EngineContext = _OWN_THREADS) -> Iterator[Result]:
    """Compare decoders, condition, tokenizer and samplers of `folder` with their checkpoints; checks all hashes first.

    Also raises the errors of `models.published.load.load`.

    Args:
        folder: The export folder.
        greedy: Whether to also draw a picture greedily with the target.
        seed: Seed of the random inputs.
        context: Settings of ONNX Runtime for the graphs.

    Yields:
        The result of each model.

    Raises:
        ManifestError: Files or manifests have changed, or models have no checkpoint that can be read again.
    """
    manifests = {name: manifest(name, folder) for name in read_index(folder).models}
    records = {name: model_manifest for name, model_manifest in manifests.items() if model_manifest.export is not None}
    between = sorted(name for name, model_manifest in records.items() if _kind(model_manifest) == SAMPLER)
    if not {"target", "drafter", *HALVES, *between} & set(records):
        raise ManifestError(
            f"{folder} holds no target, drafter or tokenizer of a published checkpoint to check; export one into it"
        )
    files = {name: check(model_manifest, folder) for name, model_manifest in manifests.items()}
    for name in ("target", "drafter"):
        if name in records:
            yield from _decoder(folder, name, files[name], records[name], greedy, seed, context)
    if "condition" in records:
        yield _condition(files["condition"], records["condition"], seed, context)
    paths: dict[str, Path] = {name: files[name] for name in HALVES if name in records}
    if paths:
        request, loaded = _loaded(records[next(iter(paths))])
        if loaded.vq is None:
            raise ManifestError(f"{folder}: '{request.kind}' is no tokenizer; export again")
        reports = compare_tokenizer(loaded.vq.float(), request.precision, paths, context)
        for name, report in reports.items():
            yield Result(name, request.precision, report, TOKENIZER_MOST[request.precision])
    for name in between:
        yield _between(files[name], records[name], context)


class ProviderResult(NamedTuple):
    """Results of a folder's graphs on one backend of ONNX Runtime, or the reason why they did not run."""

    backend: str
    results: tuple[Result, ...]
    refusal: str | None = None

    @property
    def passed(self) -> bool:
        """Whether all results that exist are close enough to torch."""
        return all(result.passed for result in self.results)

    def line(self) -> str:
        """Return the result as one line of text."""
        provider = "CPUExecutionProvider" if self.backend == CPU else PROVIDERS[self.backend].name
        start = f"{self.backend} ({provider}): "
        if self.refusal is not None:
            return f"{start}not run: {self.refusal}"
        worst = max(error for result in self.results for error in result.report.worst().values())
        names = ", ".join(dict.fromkeys(result.name for result in self.results))
        return f"{start}{'passed' if self.passed else 'FAILED'}, largest error {worst:.2g} of {names}"


def verify_providers(folder: Path, seed: int, on_cpu: tuple[Result, ...]) -> Iterator[ProviderResult]:
    """Run the same graphs on every provider of this ONNX Runtime; `on_cpu` are the known results of the CPU."""
    for backend in machine_backends():
        if backend == CPU:
            yield ProviderResult(backend, on_cpu)
            continue
        try:
            check_provider(backend)
            yield ProviderResult(backend, tuple(verify(folder, False, seed, EngineContext(backend=backend))))
        except EngineError as error:
            yield ProviderResult(backend, (), str(error))


def _kind(model_manifest: Manifest) -> object:
    request = None if model_manifest.export is None else model_manifest.export.request
    return request.get("kind") if isinstance(request, Mapping) else None


def _condition(graph: Path, model_manifest: Manifest, seed: int, context: EngineContext) -> Result:
    request, loaded = _loaded(model_manifest)
    if loaded.conditioner is None:
        raise ManifestError(f"{model_manifest.name}: '{request.kind}' has no condition of features; export again")
    stored = "fp32" if request.precision == "bf16" else request.precision
    report = compare_conditioner(loaded.conditioner.float(), graph, seed, context)
    return Result(model_manifest.name, stored, report, MOST[stored])


def _between(graph: Path, model_manifest: Manifest, context: EngineContext) -> Result:
    request = Request.of(model_manifest.export, model_manifest.name)
    trained = load_trained(request.checkpoint, request.precision)
    _require_checkpoint(model_manifest, request, digest(request.checkpoint))
    cases = cases_of(trained.network)
    report = compare_module(trained.network, cases.feed, cases.inputs, graph, context)
    return Result(model_manifest.name, request.precision, report, SAMPLER_MOST)


def _loaded(model_manifest: Manifest) -> tuple[Request, Published]:
    """Load a model's checkpoint, which must be the one that it was exported from."""
    request = Request.of(model_manifest.export, model_manifest.name)
    loaded = request.loaded()
    _require_checkpoint(model_manifest, request, loaded.checkpoint.digest())
    return request, loaded


def _require_checkpoint(model_manifest: Manifest, request: Request, sha: str) -> None:
    if model_manifest.export is None or sha != model_manifest.export.checkpoint_sha256:
        raise ManifestError(
            f"{request.checkpoint}: another checkpoint than {model_manifest.name} was exported from; export it again"
        )


def _decoder(
    folder: Path, name: str, graph: Path, model_manifest: Manifest, greedy: bool, seed: int, context: EngineContext
) -> Iterator[Result]:
    request, loaded = _loaded(model_manifest)
    decoder, conditioner = loaded.decoder, loaded.conditioner
    if decoder is None or manifest_config(model_manifest.settings, name) != exported_config(decoder, request.precision):
        raise ManifestError(f"{folder}: settings and request of '{name}' tell of different models; export it again")
    decoder.float()
    whole = None if conditioner is None else conditioner.float()
    greedy = greedy and name == "target"
    if request.precision == "bf16" and context.backend == CPU:
        yield Result(name, "bf16", compared(name, decoder, whole, GraphFormat(), seed), MOST["fp32"], True)
    report = compare(graph, request.precision, decoder, whole, greedy, seed, context)
    allowed = MOST_EIGHT_BITS if request.eight_bits else MOST[request.precision]
    yield Result(name, request.precision, report, allowed, greedy=greedy)
