"""Targets on smaller grids than a pipeline's own, and resamplers, for methods that draft small and verify large."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.manifest import DRAFT_TARGET, ManifestError
from underpaint.artifacts.model_index import ModelIndex, ResolutionEntry, read_index
from underpaint.runtime.engines.context import CPU, EngineContext, EngineError
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.resampling.registry import (
    codebook_digest,
    locate_networks,
    models_behind,
    open_resampler,
)
from underpaint.runtime.resampling.resampler import Resampler
from underpaint.zoo.load import Located, read_codebook


@dataclass(slots=True)
class LowResolution:
    """The smaller targets that a pipeline can draft with, loaded on first use.

    Attributes:
        folder, index: The folder of the smaller targets and its index: the pipeline's own folder or a second one.
        home, home_index: The pipeline's own folder, whose tokenizer and resamplers are used.
        high, entry: The pipeline's target.
        hashes: Hashes of the models opened here so far.
        source: In a fork, the object whose weights are shared.
    """

    folder: Path
    index: ModelIndex
    home: Path
    home_index: ModelIndex
    entry: ResolutionEntry
    high: EngineTarget
    backend: str
    context: EngineContext
    hashes: dict[str, str] = field(default_factory=dict)
    source: LowResolution | None = None
    _targets: dict[str, EngineTarget] = field(default_factory=dict)
    _resamplers: dict[tuple[str, int], Resampler] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        home: Path,
        index: ModelIndex,
        entry: ResolutionEntry,
        high: EngineTarget,
        low: Path | None,
        backend: str,
        context: EngineContext,
    ) -> LowResolution:
        """The smaller targets of the second folder `low`, or of `home` if `low` is None.

        Raises ManifestError if the second folder cannot be opened or lacks a model. Raises EngineError if the folders
        do not match: different codebooks or kinds of condition, or no grid that is a fraction of the large one.
        """
        if low is None:
            return cls(home, index, home, index, entry, high, backend, context)
        try:
            second = read_index(low)
        except ManifestError as error:
            raise ManifestError(f"--low {low}: {error}") from error
        if not second.resolutions or second.tokenizer.codebook is None:
            lacks = "target" if not second.resolutions else "codebook"
            raise ManifestError(
                f"--low {low}: {lacks} missing; export the smaller target and the tokenizer of both into this folder"
            )
        ours, theirs = (codebook_digest(read_codebook(each)) for each in (home, low))
        if ours != theirs:
            raise EngineError(
                f"--low {low}: expected the codebook {ours[:12]} of {home}, got {theirs[:12]}; two resolutions share "
                "one tokenizer: export the same file into both folders, in one precision"
            )
        opened = cls(low, second, home, index, entry, high, backend, context)
        opened._check_second()
        return opened

    def fork(self, high: EngineTarget) -> LowResolution:
        """Smaller targets with the same weights for a fork of the pipeline's target; each has its own cache."""
        return replace(self, high=high, source=self, _targets={}, _resamplers={})

    def to_dict(self) -> dict[str, Any]:
        """The grids and hashes as JSON."""
        targets = [name for one in self.index.resolutions for name in (one.target, one.draft_target) if name]
        names = [*targets, "condition", self.index.tokenizer.codebook or ""]
        return {"grids": [list(one.grid) for one in self.index.resolutions], "sha256": self.index.hashes(names)}

    def target(self, ratio: int, int8: bool | None = None) -> EngineTarget:
        """Return the target with 1 / `ratio` of the side.

        Args:
            ratio: The side of the pipeline's target over that of the smaller one.
            int8: Whether it multiplies in 8 bits (ONNX Runtime on the CPU only); None uses 8 bits where available.

        Raises:
            EngineError: No such target draws the same codes, or none does in 8 bits where `int8` is True.
        """
        entry = self._low_entry(ratio)
        name, kind = self._low_model(entry, int8)
        if name not in self._targets and self.source is not None:
            self._targets[name] = self.source.target(ratio, int8).fork()
        if name not in self._targets:
            opened = EngineTarget.open(name, self.index.sampling(), self.folder, self.context, self.backend, kind)
            self._check_pair(opened, name)
            self._targets[name] = opened
            key = name if self.folder == self.home else f"low/{name}"
            self.hashes[key] = next(iter(self.index.hashes([name]).values()))
        return self._targets[name]

    def resampler(self, kind: str, ratio: int) -> Resampler:
        """The resampler `kind` of `resampling.registry` to 1 / `ratio` of the side and back; see `open_resampler`."""
        if self.source is not None:
            return self.source.resampler(kind, ratio)
        if (kind, ratio) not in self._resamplers:
            grids, sides = self._between(ratio)
            self._resamplers[kind, ratio] = open_resampler(kind, grids, self.home, self.context, sides)
            self.hashes.update(self.home_index.hashes(models_behind(kind, sides)))
        return self._resamplers[kind, ratio]

    def networks(self, kind: str, ratio: int) -> tuple[Located, Located]:
        """The files of a latent resampler up and down, checked but not opened; see `locate_networks`."""
        grids, sides = self._between(ratio)
        located = locate_networks(kind, grids, self.home, sides)
        self.hashes.update(self.home_index.hashes(models_behind(kind, sides)))
        return located

    def _between(self, ratio: int) -> tuple[ResolutionMap, tuple[int, int]]:
        """The two grids, and the widths of their pictures in pixels."""
        low = self._low_entry(ratio)
        grids = ResolutionMap(self._grid(low), self._grid(self.entry))
        return grids, (self._width(low), self._width(self.entry))

    def _low_model(self, entry: ResolutionEntry, int8: bool | None) -> tuple[str, str]:
        """The name and the kind of the target that drafts."""
        draft_target = entry.draft_target if self.backend == CPU else None
        if int8 and draft_target is None:
            why = f"backend {self.backend} runs none"
            if self.backend == CPU:
                why = f"{self.folder} holds none for {entry.target} (`underpaint export target` writes them)"
            raise EngineError(
                f"draft_int8: expected a target that multiplies in 8 bits, but {why}; set draft_int8=none"
            )
        return (entry.target, "target") if draft_target is None or int8 is False else (draft_target, DRAFT_TARGET)

    def _low_entry(self, ratio: int) -> ResolutionEntry:
        height, width = self.entry.grid
        for entry in self.index.resolutions:
            if ratio >= 2 and (entry.grid[0] * ratio, entry.grid[1] * ratio) == (height, width):
                return entry
        if self.folder != self.home:
            raise EngineError(
                f"ratio {ratio}: --low holds a target at {self._ratios()} of the side; say --set "
                f"METHOD.ratio={self.known_ratios()[0]}, or give a folder whose grid is "
                f"{height // ratio} x {width // ratio}"
            )
        if ratio < 2 or height % ratio or width % ratio:
            raise EngineError(f"ratio: expected a whole number from 2 that divides {height} x {width}, got {ratio}")
        holdings = (
            f"it holds a target at {self._ratios()} of the side" if self.known_ratios() else "it holds none smaller"
        )
        raise EngineError(
            f"ratio {ratio}: {self.folder} holds no target of {height // ratio} x {width // ratio} codes to draft "
            f"with; {holdings}: give the export of one with --low, or draw at a larger --resolution"
        )

    def known_ratios(self) -> list[int]:
        """The integer ratios of the side to that of a smaller target, the largest targets first."""
        height, width = self.entry.grid
        pairs = [(height / one.grid[0], width / one.grid[1]) for one in self.index.resolutions]
        return sorted(int(down) for down, across in pairs if down == across >= 2 and down == int(down))

    def _ratios(self) -> str:
        return " or ".join(f"1 / {ratio}" for ratio in self.known_ratios())

    @staticmethod
    def _grid(entry: ResolutionEntry) -> Grid:
        return Grid(*entry.grid)

    def _width(self, entry: ResolutionEntry) -> int:
        """Width of the pictures in pixels; raises EngineError if the folder has no tokenizer to derive it from."""
        parts = self.home_index.tokenizer
        lacking = [
            name for name, model in (("vq_decoder", parts.vq_decoder), ("vq_encoder", parts.vq_encoder)) if not model
        ]
        if lacking or self.entry.side is None:
            raise EngineError(
                f"{self.home} holds no {' and no '.join(lacking) or 'tokenizer'}, between two resolutions; export its "
                "tokenizer into it (--kind vq or chameleon-vq)"
            )
        return self.entry.side // self.entry.grid[0] * entry.grid[1]

    def _check_second(self) -> None:
        """Raise EngineError unless the second folder has a matching target at a whole fraction of the side."""
        smaller = self.known_ratios()
        if not smaller:
            grids = " and ".join(f"{one.grid[0]} x {one.grid[1]}" for one in self.index.resolutions)
            own_grid = f"{self.entry.grid[0]} x {self.entry.grid[1]}"
            raise EngineError(
                f"--low {self.folder}: expected a smaller grid than {own_grid}, and a whole fraction of it, got {grids}"
                "; choose a target of a fraction of the side"
            )
        for ratio in smaller:
            self.target(ratio)

    def _check_pair(self, low: EngineTarget, name: str) -> None:
        """Raise EngineError unless both targets have the same number of codes and accept the same conditions."""
        if low.vocab_size != self.high.vocab_size:
            raise EngineError(
                f"{self.folder}: {name} draws {low.vocab_size} codes, {self.entry.target} "
                f"{self.high.vocab_size}; export both from one training, with one tokenizer"
            )
        if low.encoder.accepts() != self.high.encoder.accepts():
            raise EngineError(
                f"{self.folder}: expected a target that takes {self.high.encoder.accepts()}, as the larger one does, "
                f"got one that takes {low.encoder.accepts()}; one condition must serve both"
            )
