"""The models of one folder at one resolution, ready to draw: shipped or exported, on ONNX Runtime or TensorRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_families import WITHOUT_CODEBOOK
from underpaint.artifacts.model_index import ModelIndex, ResolutionEntry, read_index
from underpaint.runtime.conditions import Condition, is_typed, parse_condition
from underpaint.runtime.engines.context import CPU, DEVICE, SHARED, EngineContext, EngineError
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.engine import check_clock
from underpaint.runtime.engines.images import ImageDecoder, Picture
from underpaint.runtime.engines.providers import PROVIDERS, check_provider, gpu_backend, provider_record
from underpaint.runtime.engines.target import EngineGridTarget, EngineTarget, under
from underpaint.runtime.engines.tensorrt_files import MODULES as TENSORRT
from underpaint.runtime.methods.method import ModelTables, Timed
from underpaint.zoo.load import FOLDER, check_tables, manifest, read_codebook, read_table, takes_grammar

if TYPE_CHECKING:
    from underpaint.runtime.live.words import WordsReader
    from underpaint.runtime.low_resolution import LowResolution
    from underpaint.runtime.resampling.resampler import Resampler

MAX_NODES: Final = 64
"""Largest number of nodes in a tree that a target scores, including the root."""
BACKENDS: Final = (CPU, *TENSORRT, *PROVIDERS)
"""ONNX Runtime on the CPU, TensorRT engines that `underpaint engine` built, and ONNX Runtime on GPUs."""
ALL_BACKENDS: Final = (*BACKENDS, DEVICE)
"""`BACKENDS`, and the device with its own programs for whole batches (`runtime.device`, `engines.config_only`)."""


@dataclass(slots=True, repr=False)
class Pipeline:
    """The models of one resolution, opened with `Pipeline.open`. Implements `methods.method.PipelineModels`.

    A pipeline has one target and one drafter, so its sessions must take turns.

    Attributes:
        folder, index, entry: The folder of the models, its index, and the index's entry for this resolution.
        sampling: The sampling parameters that the models are meant for.
        decoder: The picture decoder, or None.
        words: Reads prompts in words; None if a prompt must be ids or the name of a feature file.
    """

    folder: Path
    index: ModelIndex
    entry: ResolutionEntry
    tables: ModelTables
    sampling: SamplingParams
    backend: str
    high: EngineTarget
    decoder: ImageDecoder | None
    context: EngineContext
    hashes: dict[str, str]
    max_nodes: int = MAX_NODES
    words: WordsReader | None = None
    _drafter: EngineDrafter | None = None
    _low: LowResolution | None = None

    @classmethod
    def open(
        cls,
        folder: Path = FOLDER,
        *,
        resolution: int | None = None,
        low: Path | None = None,
        backend: str = "cpu",
        context: EngineContext | None = None,
    ) -> Pipeline:
        """Load the models of one resolution from a folder that has a `model_index.json`.

        Args:
            folder: Folder of the models; the shipped models by default.
            resolution: Side of the pictures in pixels; None takes the largest one of the folder.
            low: A second folder whose target draws the same codes on a smaller grid, for methods that draft with it;
                without it, such methods use a smaller target of `folder`.
            backend: One of `ALL_BACKENDS`. ONNX Runtime providers may add a GPU index after a colon, as in "cuda:1".
            context: Threads of the sessions; without it the models share threads, if the process has no session yet.

        Raises:
            ValueError: A ManifestError or EngineError that names the file and what to do.
            OSError: A file cannot be read, or the clock that times passes stands still.
        """
        check_clock()
        check_backend(backend, ALL_BACKENDS)
        index = read_index(folder)
        if not index.resolutions:
            raise ManifestError(
                f"{folder} holds no target; export one with `underpaint export --kind ... --out {folder}`"
            )
        if takes_grammar(index):
            check_tables(folder)
        try:
            entry = index.resolution(resolution)
        except ManifestError as error:
            raise ManifestError(f"{folder}: {error}") from error
        context = context or SHARED
        if context.quantization is not None and backend != DEVICE:
            raise EngineError(
                f"quantization: expected backend 'device', whose kernels read such weights, got {backend!r}"
            )
        if backend != CPU and gpu_backend(backend) is not None:
            context = replace(context, backend=backend)
        sampling = index.sampling()
        target = EngineTarget.open(entry.target, sampling, folder, context, backend)
        parts = index.tokenizer
        if parts.codebook is None and _kind(entry.target, folder) not in WITHOUT_CODEBOOK:
            raise ManifestError(
                f"{folder}: codebook missing; export the tokenizer of its target into this folder (--kind vq, or "
                "chameleon-vq for a Chameleon's)"
            )
        decoder = None if parts.vq_decoder is None else ImageDecoder(parts.vq_decoder, folder, context)
        tables = _tables(folder, index, target.vocab_size)
        _check_together(folder, tables, target, decoder)
        used = (entry.target, entry.drafter, parts.codebook, parts.neighbours, parts.vq_decoder)
        opened = cls(
            folder=folder,
            index=index,
            entry=entry,
            tables=tables,
            sampling=sampling,
            backend=backend,
            high=target,
            decoder=decoder,
            context=context,
            hashes=index.hashes(name for name in (*used, "condition") if name is not None),
        )
        if low is not None:
            opened._low = opened._low_of(low)
        return opened

    def fork(self) -> Pipeline:
        """Another pipeline with the same weights, whose sessions need not take turns with this one's.

        Raises as `loaded_drafter` does.
        """
        drafter, high = self.loaded_drafter, self.high.fork()
        return replace(self, high=high, _drafter=None if drafter is None else drafter.fork(), _low=self.low.fork(high))

    def __repr__(self) -> str:
        return (
            f"<Pipeline {str(self.folder)!r}: {self.title()}, target {self.entry.target!r}, drafter "
            f"{self.entry.drafter!r}, {self.tables.vocab_size:,} codes, backend {self.backend!r}>"
        )

    @property
    def loaded_drafter(self) -> EngineDrafter | None:
        """The drafter, loaded on first use; None if the folder has none.

        Raises ManifestError or EngineError if it cannot be loaded or does not match the target.
        """
        if self._drafter is None and self.entry.drafter is not None:
            drafter = EngineDrafter.open(self.entry.drafter, self.sampling, self.folder, self.context, self.backend)
            drafts, config = drafter.decoder.config, self.high.decoder.config
            if config.grid != drafts.grid or config.dim != drafts.dim or config.vocab_size != drafts.vocab_size:
                raise EngineError(
                    f"{self.folder}: target and drafter do not belong together: grids {tuple(config.grid)} and "
                    f"{tuple(drafts.grid)}, features {config.dim} and {drafts.dim}, codes {config.vocab_size} and "
                    f"{drafts.vocab_size}; export them from one training"
                )
            self._drafter, self.high.features_at_begin = drafter, 1 + drafter.condition_positions
        return self._drafter

    @property
    def low(self) -> LowResolution:
        """The smaller targets and the resamplers, created on first use."""
        if self._low is None:
            self._low = self._low_of(None)
        return self._low

    def _low_of(self, folder: Path | None) -> LowResolution:
        from underpaint.runtime.low_resolution import LowResolution

        context = replace(self.context, lingering=False)  # for models between the passes of the target
        return LowResolution.of(self.folder, self.index, self.entry, self.high, folder, self.backend, context)

    @property
    def grid(self) -> Grid:
        """The grid of image tokens."""
        return self.high.grid

    @property
    def resolution(self) -> int | None:
        """Side of the pictures in pixels; None if the folder does not say."""
        return self.entry.side

    def title(self) -> str:
        """The pictures' size in words, and the quantisation of the weights if any, for table headings."""
        size = f"{self.grid.height} x {self.grid.width} codes" if self.resolution is None else f"{self.resolution} px"
        quantization = self.context.quantization
        return size if quantization is None else f"{size}, {quantization} weights"

    def fingerprint(self) -> Mapping[str, Any]:
        """The models and the engine as JSON; two fingerprints are equal only if the pictures would be equal.

        "sha256": hashes by name of the models opened so far, of their separate weights if any, else of the whole file.
        """
        low = self._low
        smaller = {} if low is None or low.folder == self.folder else {"low": low.to_dict()}
        return {
            "resolution": self.resolution,
            "grid": list(self.grid),
            "target": self.entry.target,
            "drafter": self.entry.drafter,
            "engine": self.backend,
            **({} if self.context.backend == CPU else {"provider": self._provider_record()}),
            "precision": self.high.decoder.config.precision,
            **({} if self.context.quantization is None else {"quantization": self.context.quantization}),
            "threads": self.context.threads,
            "sha256": {**self.hashes, **({} if low is None else low.hashes)},
            **smaller,
        }

    def _provider_record(self) -> Mapping[str, Any] | None:
        return provider_record(self.backend, getattr(self.high.decoder, "options", None))

    def folder_models(self) -> Pipeline:
        """See `runtime.models.OpenModels`."""
        return self

    def condition(self, text: str) -> Condition:
        """Parse a user's text as a condition of these models; raises ValueError that says what was expected."""
        if self.words is not None and self.index.condition in ("ids", "features") and not is_typed(text):
            return self.words.condition(text)
        return parse_condition(text, self.index.condition)

    def read_words_by(self, tokenizer: Path) -> None:
        """Accept prompts in words from now on.

        Args:
            tokenizer: Folder of the model's tokenizer, or of LlamaGen's text encoder and its tokenizer.

        Raises:
            EngineError: The models take no prompts in words, or the folder does not exist.
        """
        from underpaint.runtime.live.words import WordsReader

        export = manifest(self.entry.target, self.folder).export
        options = {} if export is None else dict(export.request.get("options") or {})
        layout, kind = str(options.get("layout", "")), _kind(self.entry.target, self.folder)
        self.words = WordsReader(kind, layout, self.high.decoder.config, tokenizer)

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        """The target with a condition, valid until another is set; raises EngineError if it rejects the condition."""
        target = under(self.high, condition, sampling)
        return Timed(target, target.engine.cost)

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        """The drafter, which gets the condition from the target's features; raises EngineError if there is none."""
        drafter = self.loaded_drafter
        if drafter is None:
            raise EngineError(
                f"{self.folder} holds no drafter for {self.entry.target}; export one into it, or draw by a method that "
                "needs none (ar, zipar)"
            )
        drafter.sample_by(sampling)
        return Timed(drafter, drafter.engine.cost)

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        """The target with a condition, for cells in any order; raises EngineError if no pass fits `cells` cells."""
        self.high.check_pass(cells, sampling)
        target = under(self.high, condition, sampling)
        return Timed(EngineGridTarget(target), target.engine.cost)

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        """Return the target of 1 / `ratio` of the side with a condition, for cells in any order.

        Args:
            condition: The condition.
            sampling: The sampling parameters.
            ratio: The side of this resolution over that of the smaller target.
            cells: Number of cells in the largest pass.
            int8: See `LowResolution.target`.

        Raises:
            EngineError: There is no such target, or no pass of it fits `cells`.
        """
        low = self.low.target(ratio, int8)
        low.check_pass(cells, sampling)
        target = under(low, condition, sampling)
        return Timed(EngineGridTarget(target), target.engine.cost)

    def preview(self, condition: Condition, sampling: SamplingParams) -> None:
        """Return None: the models of a folder draw no preview."""

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """The resampler of tokens between two resolutions; raises EngineError if a model for `kind` is missing."""
        return self.low.resampler(kind, ratio)

    def picture(self, tokens: IntArray) -> Picture:
        """Decode tokens [cells] to a picture [height, width, 3]; raises EngineError without a decoder."""
        if self.decoder is None:
            raise EngineError(
                f"{self.folder} holds no picture decoder; export its tokenizer (--kind vq or chameleon-vq)"
            )
        return self.decoder(tokens, self.grid)


def check_backend(backend: str, backends: Sequence[str] = BACKENDS) -> None:
    """Raise EngineError unless a backend is in `backends` and its ONNX Runtime provider, if any, is available here."""
    if backend == CPU:
        return
    gpu = gpu_backend(backend)
    if (backend if gpu is None else gpu.name) not in backends:
        raise EngineError(f"backend: expected one of {', '.join(backends)}, got {backend!r}")
    check_provider(backend)


def _kind(target: str, folder: Path) -> str:
    """The kind of checkpoint that a target was exported from; empty if unknown."""
    export = manifest(target, folder).export
    return "" if export is None else str(export.request.get("kind", ""))


def _tables(folder: Path, index: ModelIndex, codes: int) -> ModelTables:
    """The codebook, and the nearest codes once a rule needs them: stored in the folder, or computed here.

    codes: the target's number of codes, used if the folder has no codebook; there are then no nearest codes.
    """
    name = index.tokenizer.neighbours
    stored = None if name is None else lambda: read_table(name, "neighbours", folder).astype(np.int64)
    return ModelTables.of(None if index.tokenizer.codebook is None else read_codebook(folder), codes, stored)


def _check_together(folder: Path, tables: ModelTables, target: EngineTarget, decoder: ImageDecoder | None) -> None:
    """Raise EngineError unless tokenizer and target have the same number of codes."""
    sizes = {target.decoder.config.vocab_size, tables.vocab_size, *(() if decoder is None else [decoder.vocab_size])}
    if len(sizes) != 1:
        raise EngineError(
            f"{folder}: expected one codebook, got target and tokenizer of {sorted(sizes)} codes; export them from one "
            "training"
        )
