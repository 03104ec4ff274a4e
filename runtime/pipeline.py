"""One folder of models at one resolution, ready to draw: shipped or exported, on ONNX Runtime or on TensorRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes, table_columns
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
"""Nodes of the largest tree that a target scores, its root included."""
BACKENDS: Final = (CPU, *TENSORRT, *PROVIDERS)
"""ONNX Runtime on the CPU, engines that `underpaint engine` built of the same graphs, ONNX Runtime on GPUs."""
ALL_BACKENDS: Final = (*BACKENDS, DEVICE)
"""And the device, which draws whole batches by programs of its own (`runtime.device`); see `engines.elsewhere`."""


@dataclass(slots=True, repr=False)
class Pipeline:
    """The models of one resolution; make one with `Pipeline.open`. Implements `methods.method.PipelineModels`.

    It has one target and one drafter, so sessions of one pipeline must take turns.

    folder, index, entry: where the models are, and what the folder's index says of them. sampling: how they are meant
    to be sampled. decoder: None where the folder has none. words: reads prompts in words; None where a prompt must be
    typed as ids or the file of its features.
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
        """Load the models of `resolution` from a folder that has a `model_index.json`; the shipped one by default.

        resolution: side of the pictures in pixels; None takes the largest of the folder. low: a second folder, whose
        target draws the same codes on a smaller grid, for methods that draft with one; without it, a smaller target of
        the same folder does. backend: one of `ALL_BACKENDS`, those of ONNX Runtime's providers with the GPU's index
        behind a colon, as "cuda:1". context: threads of the sessions; without it the models share their threads, if the
        process has no session yet.
        Raises ManifestError or EngineError (both ValueError), or OSError, naming the file and what to do; OSError too
        where the clock stands still that passes are timed by.
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
        """Another pipeline of the same weights: its sessions need not take turns with this one's.

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
        """The drafter, loaded when it is first asked for; None where the folder has none.

        Raises ManifestError or EngineError where it cannot be loaded, or does not belong to the target.
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
        """Smaller targets, and what lies between: made when they are first asked for."""
        if self._low is None:
            self._low = self._low_of(None)
        return self._low

    def _low_of(self, folder: Path | None) -> LowResolution:
        from underpaint.runtime.low_resolution import LowResolution

        own = replace(self.context, lingering=False)  # for models between the passes of the target
        return LowResolution.of(self.folder, self.index, self.entry, self.high, folder, self.backend, own)

    @property
    def grid(self) -> Grid:
        """The image as cells."""
        return self.high.grid

    @property
    def resolution(self) -> int | None:
        """Side of the pictures in pixels; None where the folder does not tell."""
        return self.entry.side

    def title(self) -> str:
        """The pictures' size in words, for the heads of tables."""
        return f"{self.grid.height} x {self.grid.width} codes" if self.resolution is None else f"{self.resolution} px"

    def fingerprint(self) -> Mapping[str, Any]:
        """The models and the engine, as JSON holds them; equal only if the pictures would be.

        sha256: of every model that was opened so far, by name: of its weights where they lie in a file of their own,
        else of the whole file.
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
        """What was typed, as the models of this folder take it; ValueError says what was expected."""
        if self.words is not None and self.index.condition in ("ids", "features") and not is_typed(text):
            return self.words.condition(text)
        return parse_condition(text, self.index.condition)

    def read_words_by(self, tokenizer: Path) -> None:
        """Take prompts in words from now on.

        Args:
            tokenizer: Folder of the model's tokenizer, or of LlamaGen's text encoder and its tokenizer.

        Raises:
            EngineError: The models take no words, or there is no such folder.
        """
        from underpaint.runtime.live.words import WordsReader

        export = manifest(self.entry.target, self.folder).export
        options = {} if export is None else dict(export.request.get("options") or {})
        layout, kind = str(options.get("layout", "")), _kind(self.entry.target, self.folder)
        self.words = WordsReader(kind, layout, self.high.decoder.config, tokenizer)

    def target(self, condition: Condition, sampling: SamplingParams) -> Timed[Target]:
        """The target under a condition, until another is set; EngineError where it takes no such condition."""
        target = under(self.high, condition, sampling)
        return Timed(target, target.engine.cost)

    def drafter(self, sampling: SamplingParams) -> Timed[Drafter]:
        """The drafter; it reads the condition from the target's features. EngineError where there is none."""
        drafter = self.loaded_drafter
        if drafter is None:
            raise EngineError(
                f"{self.folder} holds no drafter for {self.entry.target}; export one into it, or draw by a method that "
                "needs none (ar, zipar)"
            )
        drafter.sample_by(sampling)
        return Timed(drafter, drafter.engine.cost)

    def grid_target(self, condition: Condition, sampling: SamplingParams, cells: int = 1) -> Timed[GridTarget]:
        """The target under a condition, cell by cell in any order; EngineError where no pass holds `cells`."""
        self.high.check_pass(cells, sampling)
        target = under(self.high, condition, sampling)
        return Timed(EngineGridTarget(target), target.engine.cost)

    def low_target(
        self, condition: Condition, sampling: SamplingParams, ratio: int, cells: int = 1, int8: bool | None = None
    ) -> Timed[GridTarget]:
        """The target of 1 / `ratio` of the side; EngineError where there is none, or no pass of it holds `cells`.

        int8: see `LowResolution.target`.
        """
        low = self.low.target(ratio, int8)
        low.check_pass(cells, sampling)
        target = under(low, condition, sampling)
        return Timed(EngineGridTarget(target), target.engine.cost)

    def preview(self, condition: Condition, sampling: SamplingParams) -> None:
        """None: the models of a folder draw no preview of their own."""

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """Tokens between the two resolutions; EngineError where the folder lacks a model that `kind` needs."""
        return self.low.resampler(kind, ratio)

    def picture(self, tokens: IntArray) -> Picture:
        """The picture [height, width, 3] that tokens [cells] stand for; EngineError without a decoder."""
        if self.decoder is None:
            raise EngineError(
                f"{self.folder} holds no picture decoder; export its tokenizer (--kind vq or chameleon-vq)"
            )
        return self.decoder(tokens, self.grid)


def check_backend(backend: str, known: Sequence[str] = BACKENDS) -> None:
    """EngineError unless a backend is one of `known`, and a provider of ONNX Runtime that it names can be had here."""
    if backend == CPU:
        return
    gpu = gpu_backend(backend)
    if (backend if gpu is None else gpu.name) not in known:
        raise EngineError(f"backend: expected one of {', '.join(known)}, got {backend!r}")
    check_provider(backend)


def _kind(target: str, folder: Path) -> str:
    """The kind of checkpoint that a target was exported from; empty where nothing tells."""
    export = manifest(target, folder).export
    return "" if export is None else str(export.request.get("kind", ""))


def _tables(folder: Path, index: ModelIndex, codes: int) -> ModelTables:
    """The codebook, and the nearest codes when a rule asks for them: from the folder, or else found here.

    codes: of the target, where the folder has no codebook; there are no nearest codes then.
    """
    if index.tokenizer.codebook is None:
        return ModelTables(np.empty((codes, 0), dtype=np.int64), np.empty((codes, 0)))
    codebook, stored = read_codebook(folder), index.tokenizer.neighbours

    @cache
    def near() -> IntArray:
        if stored is not None:
            return read_table(stored, "neighbours", folder).astype(np.int64)
        codes = codebook.shape[0]
        return _nearest_of(codebook.tobytes(), codebook.dtype.str, codebook.shape, table_columns(codes)).copy()

    return ModelTables(near, codebook)


@lru_cache(maxsize=2)
def _nearest_of(codes: bytes, dtype: str, shape: tuple[int, ...], k: int) -> IntArray:
    """`nearest_codes`, found once for what is opened in turn by one tokenizer; the caller copies it."""
    return nearest_codes(np.frombuffer(codes, dtype).reshape(shape), k)


def _check_together(folder: Path, tables: ModelTables, target: EngineTarget, decoder: ImageDecoder | None) -> None:
    """EngineError unless all draw the same codes."""
    sizes = {target.decoder.config.vocab_size, tables.vocab_size, *(() if decoder is None else [decoder.vocab_size])}
    if len(sizes) != 1:
        raise EngineError(
            f"{folder}: expected one codebook, got target and tokenizer of {sorted(sizes)} codes; export them from one "
            "training"
        )
