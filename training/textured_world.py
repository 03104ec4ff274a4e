"""The training stages of the shipped models: tokenizer, judge, one target for all grids (first a shallow one), the same
with guidance baked in, its drafter, samplers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.model_families import TEXTURED_GUIDANCE
from underpaint.models.checkpoints import vq_config
from underpaint.models.judge import JudgeConfig
from underpaint.models.sampler import Direction, SamplerConfig
from underpaint.models.vq import VQConfig
from underpaint.training import target as target_recipe
from underpaint.training import tokenizer as tokenizer_recipe
from underpaint.training.data.art import Report, unheard
from underpaint.training.data.textured_scenes import Split
from underpaint.training.distillation import DrafterSettings
from underpaint.training.drafter import train_drafter
from underpaint.training.drawn import DrawSettings
from underpaint.training.guided import LOOP as GUIDED_LOOP
from underpaint.training.guided import train_guided
from underpaint.training.judge import DEFAULT_LOOP as JUDGE_LOOP
from underpaint.training.judge import JudgeSettings, train_judge
from underpaint.training.loop import CHECKPOINT, UNTIL_TIME, LoopSettings, TrainingResult
from underpaint.training.pictures import TexturedPictures
from underpaint.training.sampler import LOOPS, LOSSES, SamplerSettings, train_sampler
from underpaint.training.superres import LOOP as SUPER_RESOLUTION_LOOP
from underpaint.training.superres import settings_for as super_resolution_settings
from underpaint.training.superres import train_super_resolution
from underpaint.training.target import TargetSettings, train_target
from underpaint.training.tokenizer import TokenizerSettings, train_tokenizer
from underpaint.training.world import Stage
from underpaint.training.world_data import WorldData
from underpaint.zoo.resolutions import RESOLUTIONS, SHIPPED_RESOLUTIONS

SHARES: Final[Mapping[str, int]] = {
    "tokenizer": 15,
    "judge": 5,
    "target_shallow": 35,
    "target": 20,
    "guided": 5,
    "drafter": 10,
    "sampler_up_ce": 4,
    "sampler_up_pixel": 3,
    "sampler_down_ce": 2,
    "superres": 1,
}
"""The stages in order, with their percentage of the hours; encoding scenes after the tokenizer takes extra time."""
DEPENDENTS: Final[Mapping[str, Sequence[str]]] = {
    "tokenizer": tuple(SHARES)[1:],
    "target_shallow": ("target",),
    "target": ("guided",),
    "guided": ("drafter",),
    "sampler_up_ce": ("sampler_up_pixel",),
}
"""The stages that learn from a stage."""
SIDES: Final = tuple(RESOLUTIONS[:count] for count in range(len(SHIPPED_RESOLUTIONS), len(RESOLUTIONS) + 1))
"""The supported sets of picture sides, in pixels."""
_SPLITS: Final[tuple[Split, ...]] = ("train", "seen")
GUIDING: Final = replace(target_recipe.SETTINGS, batch=16)
"""Settings of the guided target, whose steps pass a pair of rows and one row."""
DRAWING_FREELY: Final = DrawSettings(greedy_share=0.25, top_k=0)
"""Draw settings that match the target's sampling: temperature 1 with all codes, and temperature 0 for a quarter."""
_DRAFTER_LOOP: Final = LoopSettings(
    steps=UNTIL_TIME, learning_rate=2e-3, warmup_steps=30, ema_decay=0.98, validate_every=200
)


@dataclass(frozen=True, slots=True)
class WorldSettings:
    """Sizes and batches of the stages; `steps` limits every run in addition to its minutes.

    Attributes:
        vq: Sizes of the tokenizer.
        tokenizer: Batches of the tokenizer's training.
        judge: Sizes of the judge; None for the recipe's own.
        judging: Batches of the judge's training.
        decoder: Sizes of the target.
        shallow_layers: Layers of the target that is trained first.
        thing_weight: Weight of cells that show a thing, for both targets; see `train_target`.
        caption_dim: Width of the caption's features.
        target: Batches of the target's training.
        guidance: Guidance scale that one row learns.
        guiding: Batches for learning it.
        drafter: Passes and loss weights of the drafter.
        drawings: Number of pictures that the guided target draws per side, for its drafter.
        drawing: How it draws them.
        sampling: Settings of the samplers between two sides.
        sampler_width: Width of the samplers' networks.
        sides: Picture sides of target and drafter: the shipped ones, then larger ones. Samplers connect the first two;
            `underpaint train sampler` makes others.
        scenes: Number of encoded scenes per side. Targets use more scenes at smaller sides, so that all sides have
            equally many cells.
        validation_scenes: Number of encoded scenes per side for validation.
        steps: Most steps of a run, in addition to its minutes.
    """

    vq: VQConfig = tokenizer_recipe.CONFIG
    tokenizer: TokenizerSettings = tokenizer_recipe.SETTINGS
    judge: JudgeConfig | None = None
    judging: JudgeSettings = field(default_factory=JudgeSettings)
    decoder: DecoderConfig = target_recipe.CONFIG
    shallow_layers: int = target_recipe.SHALLOW_LAYERS
    thing_weight: float = target_recipe.THING_WEIGHT
    caption_dim: int = target_recipe.CAPTION_DIM
    target: TargetSettings = target_recipe.SETTINGS
    guidance: float = TEXTURED_GUIDANCE
    guiding: TargetSettings = GUIDING
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    drawings: int = 1024
    drawing: DrawSettings = DRAWING_FREELY
    sampling: SamplerSettings = field(default_factory=SamplerSettings)
    sampler_width: int = 80
    sides: tuple[int, ...] = SHIPPED_RESOLUTIONS
    scenes: int = 40000
    validation_scenes: int = 500
    steps: int = UNTIL_TIME

    def __post_init__(self) -> None:
        if self.sides not in SIDES:
            choices = " or ".join(",".join(map(str, sides)) for sides in SIDES)
            raise ValueError(f"sides: expected {choices}, got {','.join(map(str, self.sides)) or 'none'}")


@dataclass(frozen=True, slots=True)
class _World:
    """Shared data of the stages: folder, pictures, and common arguments of the recipes."""

    out: Path
    pictures: TexturedPictures
    settings: WorldSettings
    seed: int
    device: str
    compiled: bool
    report: Report

    def loop(self, usual: LoopSettings, minutes: float) -> LoopSettings:
        """Return the recipe's own rates, until its minutes are over."""
        return replace(usual, steps=self.settings.steps, minutes=minutes)

    def checkpoint(self, stage: str) -> Path:
        return self.out / stage / CHECKPOINT

    @property
    def data(self) -> WorldData:
        settings = self.settings
        counts = settings.sides, settings.scenes, settings.validation_scenes
        return WorldData(self.out, self.checkpoint("tokenizer"), self.pictures, *counts, self.device, self.report)

    def tokenizer(self, folder: Path, minutes: float) -> TrainingResult:
        settings, loop = self.settings, self.loop(tokenizer_recipe.LOOP, minutes)
        return train_tokenizer(
            folder,
            self.pictures,
            config=settings.vq,
            settings=settings.tokenizer,
            loop=loop,
            seed=self.seed,
            device=self.device,
        )

    def judge(self, folder: Path, minutes: float) -> TrainingResult:
        settings, loop = self.settings, self.loop(JUDGE_LOOP, minutes)
        return train_judge(
            folder,
            self.pictures.sheet,
            config=settings.judge,
            settings=settings.judging,
            loop=loop,
            tokenizer=self.checkpoint("tokenizer"),
            seed=self.seed,
            device=self.device,
        )

    def target_shallow(self, folder: Path, minutes: float) -> TrainingResult:
        if self.checkpoint("target").exists():
            return TrainingResult(0, True, {})  # the target began without a shallow one, and would not read it
        settings = self.settings
        return self.target_of(settings.shallow_layers, folder, self.loop(target_recipe.LOOP, minutes))

    def target_of(self, layers: int, folder: Path, loop: LoopSettings, init_from: Path | None = None) -> TrainingResult:
        """Train a target with this many layers on all grids."""
        settings = self.settings
        grids = self.data.target_grids(weighted=settings.thing_weight != 1)
        return train_target(
            folder,
            grids,
            config=replace(settings.decoder, grid_side=max(grids), layers=layers),
            caption_dim=settings.caption_dim,
            settings=settings.target,
            loop=loop,
            thing_weight=settings.thing_weight,
            init_from=init_from,
            seed=self.seed,
            device=self.device,
            compiled=self.compiled,
        )

    def target(self, folder: Path, minutes: float) -> TrainingResult:
        settings, shallow = self.settings, self.checkpoint("target_shallow")
        start, loop = shallow if shallow.exists() else None, self.loop(target_recipe.GROWN_LOOP, minutes)
        return self.target_of(settings.decoder.layers, folder, loop, start)

    def guided(self, folder: Path, minutes: float) -> TrainingResult:
        settings = self.settings
        return train_guided(
            folder,
            self.data.plain_grids(),
            self.checkpoint("target"),
            settings.guidance,
            settings=settings.guiding,
            loop=self.loop(GUIDED_LOOP, minutes),
            seed=self.seed,
            device=self.device,
        )

    def drafter(self, folder: Path, minutes: float) -> TrainingResult:
        settings, guided = self.settings, self.checkpoint("guided")
        drawings = self.data.drawn(guided, settings.drawings, settings.drawing)
        if drawings is None:
            return TrainingResult(0, False, {})
        return train_drafter(
            folder,
            self.data.plain_grids(),
            guided,
            settings=settings.drafter,
            loop=self.loop(_DRAFTER_LOOP, minutes),
            drawn=drawings,
            seed=self.seed,
            device=self.device,
        )

    def sampler(self, direction: Direction, losses: str, folder: Path, minutes: float) -> TrainingResult:
        (low, high), vq = self.settings.sides[:2], vq_config(self.checkpoint("tokenizer"))
        ratio = high // low
        return train_sampler(
            folder,
            self.data.pairs(),
            SamplerConfig(direction, vq.codebook_size, ratio, self.settings.sampler_width, high_blocks=ratio),
            losses=LOSSES[losses],
            settings=self.settings.sampling,
            loop=self.loop(LOOPS[losses], minutes),
            init_from=None if losses == "ce" else self.checkpoint(f"sampler_{direction}_ce"),
            seed=self.seed,
            device=self.device,
        )

    def super_resolution(self, folder: Path, minutes: float) -> TrainingResult:
        return train_super_resolution(
            folder,
            self.data.pairs(),
            settings=super_resolution_settings(self.settings.sides[1]),
            loop=self.loop(SUPER_RESOLUTION_LOOP, minutes),
            seed=self.seed,
            device=self.device,
        )


def textured_stages(
    out: Path,
    pictures: TexturedPictures,
    *,
    settings: WorldSettings | None = None,
    seed: int = 0,
    device: str = "cpu",
    compiled: bool = False,
    report: Report = unheard,
) -> Sequence[Stage]:
    """Return the stages of `training.world.train_world` in order, in folders of `out`.

    `compiled`: for the targets, see `train_target`. `report` receives the progress of encoding and drawing.
    """
    world_settings = settings or WorldSettings()
    world = _World(out, pictures, world_settings, seed, device, compiled, report)
    recipes: list[Callable[[Path, float], TrainingResult]] = [
        world.tokenizer,
        world.judge,
        world.target_shallow,
        world.target,
        world.guided,
        world.drafter,
        partial(world.sampler, "up", "ce"),
        partial(world.sampler, "up", "pixel"),
        partial(world.sampler, "down", "ce"),
        world.super_resolution,
    ]
    return [
        Stage(name, share, recipe, DEPENDENTS.get(name, ()))
        for (name, share), recipe in zip(SHARES.items(), recipes, strict=True)
    ]
