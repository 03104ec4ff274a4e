"""A studio without engines: synthetic laws on a small grid, and a picture and a judge made of the tokens."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from algos.arrays import IntArray
from algos.draft import Grid
from algos.rows import Sampler
from algos.step import Drafter, Target
from runtime.quality import Reading, Reference
from runtime.studio import Picture
from sim.worlds import Blend, RandomLaw, SyntheticDrafter, SyntheticTarget
from zoo.prompts import SLOT_VALUES, Prompt

VOCAB = 24
GRID = Grid(4, 4)


def real_scenes(seed: int = 3, count: int = 200) -> Reference:
    rng = np.random.default_rng(seed)
    return Reference(
        rng.standard_normal((count, 5)), rng.standard_normal((count, 5)), {"concept_and_style": 0.9, "style": 0.95}
    )


@dataclass
class SyntheticStudio:
    side: int = 64
    grid: Grid = GRID
    max_nodes: int = 32
    sampler: Sampler = field(default_factory=lambda: Sampler(guidance=2.0))
    reference: Reference = field(default_factory=real_scenes)
    name: str = "synthetic"

    @property
    def neighbours(self) -> IntArray:
        return (np.arange(VOCAB)[:, None] + np.arange(1, VOCAB)[None, :]) % VOCAB

    def described(self) -> Mapping[str, Any]:
        return {"target": self.name, "side": self.side}

    def _law(self, prompt: Prompt) -> RandomLaw:
        return RandomLaw(VOCAB, seed=zlib.crc32(prompt.caption().encode()), sharpness=2.0)

    def target(self, prompt: Prompt, sampler: Sampler) -> Target:
        return SyntheticTarget(self._law(prompt), self.grid)

    def drafter(self, prompt: Prompt, sampler: Sampler) -> Drafter:
        return SyntheticDrafter(Blend(self._law(prompt), RandomLaw(VOCAB, seed=1), 0.3))

    def picture(self, tokens: IntArray) -> Picture:
        cells = (tokens * (255 // VOCAB)).astype(np.uint8).reshape(self.grid)
        return np.repeat(np.kron(cells, np.ones((16, 16), np.uint8))[..., None], 3, axis=2)

    def read(self, picture: Picture) -> Reading:
        shades = picture[::16, ::16, 0].astype(np.float64).ravel()
        first = {slot: values[int(shades[0]) % len(values)] for slot, values in SLOT_VALUES.items()}
        return Reading(first, shades[:5] / 128.0 - 1.0)
