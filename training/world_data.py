"""The training data of a world's stages: scenes encoded once at each side, and drawings of the guided target."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.models.checkpoints import load_target, vq_config
from underpaint.training.data.art import Report
from underpaint.training.data.textured_scenes import Split, textured_scene, thing_cells
from underpaint.training.drawn import DrawSettings, draw_scenes, load_drawn
from underpaint.training.grids import GridData, on_grid
from underpaint.training.pictures import SCENE_SEED, TexturedPictures, textured_captions
from underpaint.training.sampler import PairedCodes, PairedScenes
from underpaint.training.tokens import TokenSet, encode_pictures


@dataclass(frozen=True, slots=True)
class WorldData:
    """The scenes of a world, by side of their pictures.

    Attributes:
        out: Folder of the world, with the caches.
        tokenizer: The tokenizer's checkpoint.
        pictures: The pictures of the scenes.
        sides: Sides of the pictures, in ascending order.
        scenes: Number of training scenes per side.
        validation_scenes: Number of validation scenes per side.
        device: Device of the tokenizer.
        report: Callback for progress.
    """

    out: Path
    tokenizer: Path
    pictures: TexturedPictures
    sides: tuple[int, ...]
    scenes: int
    validation_scenes: int
    device: str
    report: Report

    @property
    def stride(self) -> int:
        """Pixels per code along a side."""
        return vq_config(self.tokenizer).stride

    def target_grids(self, weighted: bool) -> dict[int, GridData]:
        """Return the scenes for targets by the grid's side in cells; all grids have as many cells in total.

        Args:
            weighted: Whether to mark the cells that show a thing.
        """
        stride, grids = self.stride, dict[int, GridData]()
        for side in self.sides:
            count = self.scenes * (max(self.sides) // side) ** 2
            data = self._grid_data(side, count)
            if weighted:
                scenes = (textured_scene(SCENE_SEED, index, "train") for index in range(count))
                things = np.stack([thing_cells(one, side // stride).ravel() for one in scenes])
                data = data._replace(things=things)
            grids[side // stride] = data
        return grids

    def plain_grids(self) -> dict[int, GridData]:
        """Scenes by the grid's side in cells, equally many on each: to learn the full distributions of a target."""
        stride = self.stride
        return {side // stride: self._grid_data(side, self.scenes) for side in self.sides}

    def pairs(self) -> PairedScenes:
        """Return the same scenes at the two smallest sides."""
        (low, high), stride = self.sides[:2], self.stride
        grids = ResolutionMap(*(Grid(side // stride, side // stride) for side in (low, high)))

        def paired(split: Split, count: int) -> PairedCodes:
            return PairedCodes(self._codes(low, split, count), self._codes(high, split, count))

        data, validation = paired("train", self.scenes), paired("seen", self.validation_scenes)
        return PairedScenes(data, validation, self.tokenizer, self.pictures, grids)

    def drawn(self, guided: Path, count: int, settings: DrawSettings) -> dict[int, TokenSet] | None:
        """At least `count` pictures drawn by the target at `guided` on each grid; None if drawing was stopped."""
        folder, stride, drawings = self.out / "drawn", self.stride, dict[int, TokenSet]()
        for side in self.sides:
            grid = side // stride
            done = draw_scenes(
                folder,
                guided,
                partial(textured_captions, split="train", size=side),
                count,
                grid_side=grid,
                settings=settings,
                device=self.device,
                progress=partial(self._report_pictures, f"drawing pictures of {side} px"),
            )
            if done.rows < done.total:
                return None
            drawings[grid] = load_drawn(folder, on_grid(load_target(guided), grid))
        return drawings

    def _grid_data(self, side: int, count: int) -> GridData:
        return GridData(self._tokens(side, "train", count), self._tokens(side, "seen", self.validation_scenes))

    def _tokens(self, side: int, split: Split, count: int) -> TokenSet:
        return TokenSet(self._codes(side, split, count), textured_captions(range(count), split, side))

    def _codes(self, side: int, split: Split, count: int) -> NDArray[np.int16]:
        report = partial(self._report_pictures, f"encoding {split} pictures of {side} px")
        arguments = (self.pictures, side, count, split, self.pictures.source, self.device, report)
        return encode_pictures(self.out / "tokens", self.tokenizer, *arguments)

    def _report_pictures(self, what: str, done: int, total: int) -> None:
        self.report(what, done, total, "pictures")
