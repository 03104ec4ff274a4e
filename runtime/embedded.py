"""The shipped models as a studio, one per resolution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from underpaint.algos.accept.neighbours import nearest_codes
from underpaint.algos.arrays import IntArray
from underpaint.algos.draft import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.target import GridTarget
from underpaint.algos.step import Drafter, Target
from underpaint.artifacts.manifest import ManifestError
from underpaint.runtime.codes import Codes
from underpaint.runtime.conditions import of_prompt
from underpaint.runtime.engines.context import SHARED, EngineContext, EngineError
from underpaint.runtime.engines.costs import costs_beside
from underpaint.runtime.engines.drafter import EngineDrafter
from underpaint.runtime.engines.grid_target import EngineGridTarget
from underpaint.runtime.engines.images import ImageDecoder
from underpaint.runtime.engines.judge import OnnxJudge
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.evaluation.quality import REFERENCE_KIND, Reading, Reference, load_reference, reference_name
from underpaint.runtime.resampling.registry import models_behind, open_resampler, read_codebook
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.runtime.studio import Clocked, Picture
from underpaint.zoo.load import FOLDER, locate, manifest, names
from underpaint.zoo.prompts import SLOT_VALUES, Prompt
from underpaint.zoo.sides import SHIPPED_SIDES, SIDES

SHIPPED_SAMPLER: Final[Mapping[int, SamplingParams]] = {
    64: SamplingParams(top_k=5),
    128: SamplingParams(top_k=5),
    256: SamplingParams(top_k=5),
}
"""How the shipped models were tuned to be sampled, by side in pixels: guidance 2 is baked into their weights. None of
256 px ship; what the others take is taken there too."""
MAX_NODES: Final = 64
NEIGHBOURS: Final = 100
"""Columns of the table of nearest codes: the most that a rule's `k` can ask for."""


@dataclass(slots=True)
class EmbeddedStudio:
    """Implements `runtime.studio.Studio` on the shipped models. Engines are made once for each number of rows.

    targets: by side in pixels; others than `side` are loaded when they are first asked for.
    """

    side: int
    grid: Grid
    codes: Codes
    reference: Reference
    sampler: SamplingParams
    targets: dict[int, EngineTarget]
    only_drafter: EngineDrafter
    decoder: ImageDecoder
    judge: OnnxJudge
    hashes: dict[str, str]
    folder: Path
    settings: EngineContext
    max_nodes: int = MAX_NODES
    _resamplers: dict[tuple[str, int], Resampler] = field(default_factory=dict)

    def fingerprint(self) -> Mapping[str, Any]:
        """See `Studio`."""
        return {
            "side": self.side,
            "grid": list(self.grid),
            "target": self.targets[self.side].decoder.name,
            "drafter": self.only_drafter.decoder.name,
            "engine": "ONNX Runtime on the CPU, target in float32",
            "threads": self.settings.threads,
            "sha256": dict(self.hashes),
            "judge_accuracy": dict(self.reference.accuracy),
        }

    def target(self, prompt: Prompt, sampler: SamplingParams) -> Clocked[Target]:
        """See `Studio`."""
        target = self._conditioned(self.side, prompt, sampler)
        return Clocked(target, target.engine.cost)

    def grid_target(self, prompt: Prompt, sampler: SamplingParams, cells: int = 1) -> Clocked[GridTarget]:
        """See `Studio`; any number of `cells` will do."""
        target = self._conditioned(self.side, prompt, sampler)
        return Clocked(EngineGridTarget(target), target.engine.cost)

    def low_target(self, prompt: Prompt, sampler: SamplingParams, ratio: int, cells: int = 1) -> Clocked[GridTarget]:
        """See `Studio`. EngineError where the folder holds no such target, or one that draws other codes."""
        side = low_side(self.side, ratio)
        if f"target{side}" not in names(self.folder):
            raise EngineError(f"ratio {ratio}: {self.folder} holds no target{side} to draft with; {self._ratios()}")
        target = self._conditioned(side, prompt, sampler)
        codes, wanted = target.vocab_size, self.targets[self.side].vocab_size
        if codes != wanted:
            raise EngineError(
                f"target{side} draws {codes} codes, target{self.side} {wanted}; export both from one training"
            )
        return Clocked(EngineGridTarget(target), target.engine.cost)

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """See `Studio`; see `runtime.resampling.registry.open_resampler` for what it raises."""
        if (kind, ratio) not in self._resamplers:
            sides = low_side(self.side, ratio), self.side
            low = Grid(self.grid.height // ratio, self.grid.width // ratio)
            grids = ResolutionMap(low, self.grid)
            self._resamplers[kind, ratio] = open_resampler(kind, grids, self.folder, self._in_turns, sides)
            self.hashes.update(
                (name, manifest(name, self.folder).content_sha256) for name in models_behind(kind, sides)
            )
        return self._resamplers[kind, ratio]

    def _ratios(self) -> str:
        """Which ratios the targets of the folder allow."""
        held = names(self.folder)
        found = [self.side // low for low in SIDES if self.side > low and f"target{low}" in held]
        if not found:
            return f"it holds none below {self.side} px: draw at a larger --resolution"
        return f"it holds the target for ratio {' or '.join(map(str, found))}"

    @property
    def _in_turns(self) -> EngineContext:
        """For models that work between the passes of the target."""
        return replace(self.settings, lingering=False)

    def _conditioned(self, side: int, prompt: Prompt, sampler: SamplingParams) -> EngineTarget:
        if side not in self.targets:
            name = f"target{side}"
            self.targets[side] = EngineTarget.open(name, sampler, self.folder, self._in_turns)
            self.hashes[name] = manifest(name, self.folder).content_sha256
        target = self.targets[side]
        target.sample_by(sampler)
        target.condition(of_prompt(prompt))
        return target

    def drafter(self, sampler: SamplingParams) -> Clocked[Drafter]:
        """See `Studio`."""
        self.only_drafter.sample_by(sampler)
        return Clocked(self.only_drafter, self.only_drafter.engine.cost)

    def picture(self, tokens: IntArray) -> Picture:
        """See `Studio`."""
        return self.decoder(tokens, self.grid)

    def read(self, picture: Picture) -> Reading:
        """See `Studio`."""
        judged = self.judge([picture])
        values = {slot: known[int(judged.scores[slot][0].argmax())] for slot, known in SLOT_VALUES.items()}
        return Reading(values, judged.features[0].astype(np.float64))


def open_studio(side: int, folder: Path = FOLDER, settings: EngineContext | None = None) -> EmbeddedStudio:
    """Load what pictures of `side` px need from a folder of models, every file checked against its manifest.

    Without `settings` the models share the process's pool of threads.
    Raises ManifestError or EngineError (both ValueError), or OSError, naming the file and what to do.
    """
    _check_there(side, folder)
    parts = {
        "target": f"target{side}",
        "drafter": f"drafter{side}",
        "image_decoder": "vq_decoder",
        "judge": "judge",
        "codebook": "codebook",
        REFERENCE_KIND: reference_name(side),
    }
    located = {kind: locate(name, kind, folder) for kind, name in parts.items()}
    settings = settings or SHARED
    target = EngineTarget.open(parts["target"], SHIPPED_SAMPLER[side], folder, settings)
    # Pools of their own would fight for the cores at every turn; a drafter this small needs none.
    alone = settings if settings.pool == "shared" else replace(settings, threads=1)
    drafter = EngineDrafter.open(parts["drafter"], SHIPPED_SAMPLER[side], folder, alone)
    decoder = ImageDecoder(parts["image_decoder"], folder, settings)
    codebook = read_codebook(folder)
    shape, drafts = target.decoder.shape, drafter.decoder.shape
    sizes = {shape.vocab_size, drafts.vocab_size, decoder.vocab_size, codebook.shape[0]}
    if len(sizes) != 1 or shape.grid != drafts.grid:
        raise EngineError(
            f"models of {side} px: expected one codebook and one grid, got vocabularies {sorted(sizes)} and grids "
            f"{tuple(shape.grid)} and {tuple(drafts.grid)}; export them from one training"
        )
    return EmbeddedStudio(
        side=side,
        grid=shape.grid,
        codes=Codes(
            nearest_codes(codebook, min(NEIGHBOURS, codebook.shape[0] - 1)), codebook, costs_beside(folder, side)
        ),
        reference=load_reference(located[REFERENCE_KIND].path, side),
        sampler=SHIPPED_SAMPLER[side],
        targets={side: target},
        only_drafter=drafter,
        decoder=decoder,
        judge=OnnxJudge(parts["judge"], folder, settings),
        hashes={found.manifest.name: found.manifest.content_sha256 for found in located.values()},
        folder=folder,
        settings=settings,
    )


def _check_there(side: int, folder: Path) -> None:
    """ManifestError with the commands that make them, where models of a side that does not ship are missing."""
    wanted = (f"target{side}", f"drafter{side}", reference_name(side))
    missing = [name for name in wanted if name not in names(folder)]
    if missing and side not in SHIPPED_SIDES:
        size = f"--resolution {side}"
        raise ManifestError(
            f"{folder} holds no {', '.join(missing)}: no models of {side} px ship; make them with `underpaint train "
            f"target {size}`, `underpaint train guided {size}`, `underpaint train drafter {size}` and `underpaint "
            f"export {' '.join(wanted)}` (docs/how-to/train.md)"
        )


def low_side(side: int, ratio: int) -> int:
    """The side in pixels of pictures 1 / `ratio` as wide; EngineError where it does not divide."""
    if ratio < 2 or side % ratio:
        raise EngineError(f"ratio: expected a whole number from 2 that divides {side} px, got {ratio}")
    return side // ratio
