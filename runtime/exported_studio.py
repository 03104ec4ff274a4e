"""A folder of exported models as something to compare methods on: a target, its drafter, its codebook."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from underpaint.algos.arrays import IntArray
from underpaint.algos.draft import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.artifacts.manifest import ManifestError
from underpaint.artifacts.model_index import INDEX
from underpaint.runtime.codes import Codes
from underpaint.runtime.conditions import Condition
from underpaint.runtime.engines.context import SHARED, EngineContext, EngineError
from underpaint.runtime.engines.costs import costs_beside
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.grid_target import EngineGridTarget
from underpaint.runtime.engines.images import ImageDecoder
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.exported import hashes_of
from underpaint.runtime.exported_low import Low, open_low
from underpaint.runtime.resampling.registry import read_codebook, read_table
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.runtime.studio import Clocked, Picture
from underpaint.zoo.load import names

SAMPLER: Final = SamplingParams(guidance=4.0, top_k=1000)
"""LlamaGen's published sampling."""
MAX_NODES: Final = 64
ONE_ROW: Final = SamplingParams()
NEEDED: Final = frozenset({"target", "drafter", "codebook", "neighbours"})
PARTS: Final = NEEDED | {"condition", "vq_decoder"}
"""All that decides what is drawn."""


def asked(target: EngineTarget, condition: Condition, params: SamplingParams) -> EngineTarget:
    """The target under a condition, until another is set; EngineError where it takes no such condition."""
    target.sample_by(params)
    target.condition(condition)
    return target


@dataclass(slots=True)
class ExportedStudio:
    """The models behind a comparison; no judge, because no published one reads these pictures.

    decoder: None where the folder has no picture decoder: a Chameleon comes without, and still has its codes.
    low: what multi-scale methods draft with; None without a second folder.

    Its `target`, `drafter`, `codes` and `max_nodes` are what `runtime.studio.draw` asks of a studio.
    """

    high: EngineTarget
    codes: Codes
    only_drafter: EngineDrafter
    decoder: ImageDecoder | None
    details: dict[str, Any]
    low: Low | None = None
    sampler: SamplingParams = SAMPLER
    max_nodes: int = MAX_NODES

    @property
    def grid(self) -> Grid:
        """The image as cells."""
        return self.high.grid

    def fingerprint(self) -> dict[str, Any]:
        """The models and the engine, as JSON holds them."""
        return self.details

    def target(self, prompt: Condition, sampler: SamplingParams) -> Clocked[Target]:
        """The target under this condition."""
        target = asked(self.high, prompt, sampler)
        return Clocked(target, target.engine.cost)

    def grid_target(self, prompt: Condition, sampler: SamplingParams, cells: int = 1) -> Clocked[GridTarget]:
        """The target under this condition, cell by cell in any order; EngineError where no pass holds `cells`."""
        self.high.check_pass(cells)
        target = asked(self.high, prompt, sampler)
        return Clocked(EngineGridTarget(target), target.engine.cost)

    def low_target(self, prompt: Condition, sampler: SamplingParams, ratio: int, cells: int = 1) -> Clocked[GridTarget]:
        """The smaller target under this condition; EngineError where there is none of this ratio, or as above."""
        low = self._low(ratio).target
        low.check_pass(cells)
        target = asked(low, prompt, sampler)
        return Clocked(EngineGridTarget(target), target.engine.cost)

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """Tokens between the two resolutions; EngineError where this folder lacks a model that `kind` needs."""
        found, hashes = self._low(ratio).resampler(kind)
        self.details["sha256"] |= hashes
        return found

    def _low(self, ratio: int) -> Low:
        if self.low is None:
            raise EngineError(
                f"an exported folder holds one resolution, and this method drafts at 1 / {ratio} of its side: give the "
                "export of such a target with --low"
            )
        self.low.check(ratio)
        return self.low

    def drafter(self, sampler: SamplingParams) -> Clocked[Drafter]:
        """The drafter."""
        self.only_drafter.sample_by(sampler)
        return Clocked(self.only_drafter, self.only_drafter.engine.cost)

    def picture(self, tokens: IntArray) -> Picture:
        """The picture that tokens [cells] stand for; EngineError without a `decoder`."""
        if self.decoder is None:
            raise EngineError("this folder holds no picture decoder; export its tokenizer (--kind vq or chameleon-vq)")
        return self.decoder(tokens, self.grid)


def open_exported(
    folder: Path, backend: str = "cpu", settings: EngineContext | None = None, low: Path | None = None
) -> ExportedStudio:
    """Load a target, its drafter and its tokenizer from an export folder.

    backend: "cpu" for ONNX Runtime, "tensorrt" or "tensorrt-rtx" for engines built from the same graphs.
    low: the export of a target of the same codes on a smaller grid.
    Without `settings` the models share the process's pool of threads.
    Raises ManifestError or EngineError, naming what is missing and how to make it.
    """
    known = names(folder) if folder.is_dir() else ()
    missing = sorted(NEEDED - set(known))
    if missing or not (folder / INDEX).is_file():
        raise ManifestError(
            f"{folder}: {', '.join(missing) or INDEX} missing; export a target, its drafter and its tokenizer "
            "(--kind vq, or chameleon-vq for a Chameleon's) into this folder"
        )
    settings = settings or SHARED  # target, drafter and tokenizer take turns: pools of their own would fight for cores
    target = EngineTarget.open("target", ONE_ROW, folder, settings, backend)
    drafter = EngineDrafter.open("drafter", ONE_ROW, folder, settings, backend)
    decoder = ImageDecoder("vq_decoder", folder, settings) if "vq_decoder" in known else None
    codebook = read_codebook(folder)
    near = read_table("neighbours", "neighbours", folder).astype(np.int64)
    shape, drafts = target.decoder.shape, drafter.decoder.shape
    sizes = {shape.vocab_size, drafts.vocab_size, codebook.shape[0]}
    sizes |= {decoder.vocab_size} if decoder is not None else set()
    if len(sizes) != 1 or shape.grid != drafts.grid or shape.dim != drafts.dim:
        raise EngineError(f"{folder}: target, drafter and tokenizer do not belong together (codes {sorted(sizes)})")
    details: dict[str, Any] = {
        "engine": backend,
        "precision": shape.precision,
        "grid": list(shape.grid),
        "sha256": hashes_of(folder, PARTS),
    }
    smaller = None if low is None else open_low(low, folder, target, backend, settings)
    if smaller is not None:
        details["low"] = smaller.to_dict()
    return ExportedStudio(
        target,
        Codes(near, codebook, costs_beside(folder)),
        drafter,
        decoder,
        details,
        smaller,
        SAMPLER if shape.guided else replace(SAMPLER, guidance=1.0),
    )
