"""256 px, of which no models ship: scenes, recipes, exports and decoding, by tiny models after a step a grid."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from typer.testing import CliRunner

from tests.cli.hand_made import (
    CODES,
    FEATURES,
    ORIGIN,
    write_image_decoder,
    write_image_encoder,
    write_judge,
)
from tests.training.test_textured_world import MadeUp
from underpaint.algos.chance import Role
from underpaint.algos.protocols import Grid
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.spatial.zipar import raster, zipar
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.model_index import read_index
from underpaint.cli.app import app
from underpaint.export.decoder_weights import round_to_half
from underpaint.export.trained_models import export_all
from underpaint.export.vision import store_codebook, write_reference
from underpaint.models.checkpoints import load_target, load_vq
from underpaint.models.judge import Judge, JudgeConfig
from underpaint.models.sampler import SamplerConfig
from underpaint.models.text import CaptionedTarget
from underpaint.models.vq import VQConfig, VQModel
from underpaint.runtime.conditions import of_words
from underpaint.runtime.drawing import Drawing, draw, noise_of
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.onnx_engine import OnnxDecoder
from underpaint.runtime.engines.target import EngineTarget
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.training.distillation import DrafterSettings
from underpaint.training.drafter import train_drafter
from underpaint.training.drawn import draw_scenes, load_drawn
from underpaint.training.grids import GridData
from underpaint.training.guided import train_guided
from underpaint.training.loop import CHECKPOINT, LoopSettings, save_atomically
from underpaint.training.pictures import textured_captions
from underpaint.training.sampler import LOSSES, PairedCodes, PairedScenes, SamplerSettings, train_sampler
from underpaint.training.target import TargetSettings, train_target
from underpaint.training.tokens import TokenSet, encode_pictures
from underpaint.zoo import load
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS, TEXTURED_WORD_SLOTS, TEXTURED_WORDS, parse_textured

TEXT = "a woolly fox left of an outlined pumpkin, on green foliage"
CAPTION_DIM = 12
CONFIG = DecoderConfig(
    dim=16,
    layers=2,
    heads=2,
    hidden=48,
    vocab_size=CODES,
    grid_side=32,
    prefix=TEXTURED_WORD_SLOTS,
    condition="external",
    rope_prefix="identity",
)
LOOP = LoopSettings(steps=3, learning_rate=1e-4, matrix_rate=1e-4, validate_every=3)
SETTINGS = TargetSettings(batch=2, validated=2)
VQ = VQConfig(CODES, 4, (1, 1, 1, 1), (1, 1, 1, 1), z_channels=4, ch=4, num_res_blocks=1)
WARM, COLD, PROMPT = SamplingParams(top_k=5), SamplingParams(temperature=0.0), of_words(parse_textured(TEXT))
OPEN = partial(Pipeline.open, context=EngineContext(threads=1))


def write_random(runs: Path) -> Path:
    """A tokenizer, and a target of all grids to start from whose distributions say something."""
    torch.manual_seed(3)
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(VQ).items()}
    tokenizer = {"config": {"kind": "tokenizer", "vq": plain}, "model": VQModel(VQ).state_dict()}
    save_atomically(tokenizer, runs / "tokenizer" / CHECKPOINT)
    target = CaptionedTarget(CONFIG, CAPTION_DIM, TEXTURED_WORDS)
    for weights in target.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    described = {"kind": "target", "words": TEXTURED_WORDS, "caption_dim": CAPTION_DIM, "decoder": asdict(CONFIG)}
    save_atomically({"config": described, "model": target.state_dict()}, runs / "start" / CHECKPOINT)
    return runs / "start" / CHECKPOINT


def encoded(runs: Path, side: int) -> NDArray[np.int16]:
    pictures, tokenizer = MadeUp(), runs / "tokenizer" / CHECKPOINT
    return encode_pictures(runs / "tokens", tokenizer, pictures, side, 6, "train", pictures.source)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of three grids, guided, and its drafter at 256 px, each of a step a grid."""
    folder = tmp_path_factory.mktemp("runs")
    start, grids = write_random(folder), dict[int, GridData]()
    for side in (64, 128, 256):
        data = TokenSet(encoded(folder, side), textured_captions(range(6), "train", side))
        assert data.codes.shape == (6, (side // 8) ** 2)
        grids[side // 8] = GridData(data, data)
    target, guided = folder / "target", folder / "guided" / CHECKPOINT
    named = {"config": CONFIG, "caption_dim": CAPTION_DIM, "settings": SETTINGS, "loop": LOOP, "init_from": start}
    train_target(target, grids, **named)  # type: ignore[arg-type]
    train_guided(guided.parent, grids, target / CHECKPOINT, 2.0, settings=SETTINGS, loop=LOOP)
    with pytest.MonkeyPatch.context() as few:
        few.setattr("underpaint.training.drawn.CHUNK", 4)
        draw_scenes(folder / "drawn", guided, lambda indices: textured_captions(indices, "train", 256), 4)
    settings = DrafterSettings(batch=2, passes=2, validated=2, validated_passes=2)
    drawn_sets = {32: load_drawn(folder / "drawn", load_target(guided))}
    train_drafter(folder / "drafter", {32: grids[32]}, guided, settings=settings, loop=LOOP, drawn=drawn_sets)
    return folder


@pytest.fixture(scope="module")
def models(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    export_all(runs, folder, ("target", "drafter"))
    write_image_decoder(folder)
    write_image_encoder(folder)
    write_judge(folder, TEXTURED_SLOTS)
    judge = Judge(JudgeConfig(channels=(4, 4, 4, 4), features=FEATURES)).eval()
    write_reference(judge, MadeUp().sheet, folder, ORIGIN, (256,), count=3)
    write_index(folder)
    return folder


@pytest.fixture(scope="module")
def pipeline(models: Path) -> Pipeline:
    return OPEN(models, resolution=256)


def drawn(pipeline: Pipeline, sampler: SamplingParams, method: str, *settings: str) -> Drawing:
    config = resolve(method, sampler.temperature, settings=settings)
    return draw(pipeline, build_method(method, config, pipeline.tables), sampler, PROMPT, 5)


def test_one_file_of_weights_serves_three_grids(models: Path) -> None:
    manifests = [load.manifest(f"target{side}", models) for side in (64, 128, 256)]
    assert [one.settings["grid_side"] for one in manifests] == [8, 16, 32]
    assert manifests[0].weights == manifests[1].weights == manifests[2].weights
    index = read_index(models)
    assert [(one.side, one.drafter) for one in index.resolutions] == [(64, None), (128, None), (256, "drafter256")]
    assert index.resolutions[-1].reference == "judge_reference256"


@pytest.mark.parametrize(("ratio", "low"), [(2, Grid(16, 16)), (4, Grid(8, 8))])
def test_the_pipeline_draws_between_its_grids(pipeline: Pipeline, ratio: int, low: Grid) -> None:
    assert pipeline.grid == Grid(32, 32)
    assert pipeline.low_target(PROMPT, WARM, ratio).model.grid == low
    between = pipeline.resampler("bicubic", ratio).map
    assert between == ResolutionMap(low, Grid(32, 32))
    assert between.blocks().shape == (low.cells, ratio**2)
    picture = pipeline.picture(np.arange(1024) % CODES)
    assert picture.shape == (256, 256, 3)
    assert judge_of(pipeline).read(picture).features.shape == (FEATURES,)


def test_plain_ways_of_decoding(pipeline: Pipeline) -> None:
    ar, fronts = drawn(pipeline, COLD, "ar"), drawn(pipeline, WARM, "zipar")
    assert (ar.target_nfe, ar.drafter_nfe, len(ar.tokens)) == (1024, 0, 1024)
    assert drawn(pipeline, COLD, "eagle2").tokens == ar.tokens
    assert (fronts.target_nfe, len(fronts.tokens)) == (front_steps(Grid(32, 32), 4), 1024)
    assert drawn(pipeline, WARM, "zipar").tokens == fronts.tokens


@pytest.mark.parametrize(("ratio", "low_cells"), [(2, 256), (4, 64)])
def test_drafts_from_both_lower_resolutions(pipeline: Pipeline, ratio: int, low_cells: int) -> None:
    ways = (f"ratio={ratio}", "resampler=bicubic", "k=4", "tau=0.3")
    settings = (*ways, "radius=0", "window=2")
    drawing = drawn(pipeline, WARM, "mulo", *settings)
    assert drawing.drafter_nfe == low_cells
    assert drawing.kept_cells is not None
    assert drawing.rejected is not None
    assert 0 < drawing.rejected < 1024
    assert 0 < len(drawing.kept_cells) < 1024
    assert drawn(pipeline, WARM, "mulo", *settings).tokens == drawing.tokens
    by_rows = drawn(pipeline, WARM, "mulo-islands", *ways, "rows=2", "draft_window=2")
    assert len(by_rows.tokens) == 1024
    assert min(by_rows.tokens) >= 0


@pytest.mark.parametrize("ratio", [2, 4])
def test_thresholds_at_their_ends(pipeline: Pipeline, ratio: int) -> None:
    ways = (f"ratio={ratio}", "resampler=bicubic", "draft_window=1")
    nothing = drawn(pipeline, WARM, "mulo", *ways, "tau=1.5", "window=none")
    assert nothing.tokens == tuple(raster(pipeline.grid_target(PROMPT, WARM).model, noise_of(PROMPT, 5)).tokens)
    assert nothing.kept_cells == ()
    whole = drawn(pipeline, WARM, "mulo", *ways, "tau=0")
    noise, rows = noise_of(PROMPT, 5).cycle(1), range(32 // ratio)
    low = zipar(pipeline.low_target(PROMPT, WARM, ratio).model, 1, noise, role=Role.DRAFT)
    assert whole.tokens == tuple(pipeline.resampler("bicubic", ratio).enlarge(low.tokens, rows))
    assert whole.target_nfe == 2


def low_of(pipeline: Pipeline, **changed: int) -> EngineTarget:
    """The low target with another shape."""
    decoder = pipeline.low.target(2).decoder
    assert isinstance(decoder, OnnxDecoder)
    return EngineTarget(decoder._replace(config=replace(decoder.config, **changed)), WARM)


def test_a_low_target_of_other_codes_or_of_no_side_is_refused(pipeline: Pipeline) -> None:
    low = pipeline.low_target(PROMPT, WARM, 2)
    assert low.model.grid == Grid(16, 16)
    other = low_of(pipeline, vocab_size=CODES + 1)
    with pytest.raises(ValueError, match=f"target128 draws {CODES + 1} codes, target256 {CODES}; export both"):
        pipeline.low._check_pair(other, "target128")
    with pytest.raises(
        ValueError, match=r"ratio 8: .* holds no target of 4 x 4 codes .* holds a target at 1 / 2 or 1 / 4 of"
    ):
        pipeline.low_target(PROMPT, WARM, 8)


def test_samplers_of_another_pair_are_looked_for_by_their_own_names(pipeline: Pipeline) -> None:
    for kind, ratio, message in (
        (
            "latent",
            4,
            r"no model 'sampler_up_64_256'; .* train sampler --direction up --losses pixel --from 64 --to 256 ",
        ),
        (
            "latent-ce",
            2,
            r"`underpaint export sampler_up_ce_128_256 --out .*`, or take a kind that needs none: nearest, bicubic",
        ),
        (
            "superres",
            4,
            r"`underpaint train superres --from 64 --to 256 .*`underpaint export superres_64_256 ",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pipeline.resampler(kind, ratio)


def test_latent_samplers_are_exported_under_the_names_that_are_looked_for(
    runs: Path, models: Path, tmp_path: Path
) -> None:
    folder, tokenizer = tmp_path / "models", runs / "tokenizer" / CHECKPOINT
    copytree(models, folder)
    vq = load_vq(tokenizer)
    round_to_half(vq)
    store_codebook(vq, folder, ORIGIN)
    data = PairedCodes(*(encoded(runs, side) for side in (64, 256)))
    scenes = PairedScenes(data, data, tokenizer, MadeUp(), ResolutionMap(Grid(8, 8), Grid(32, 32)))
    for direction, losses in (("up", "pixel"), ("down", "ce")):
        config = SamplerConfig(direction, vocab_size=CODES, ratio=4, width=8, low_blocks=1, high_blocks=1)
        out = runs / f"sampler_{direction}_{losses}_64_256"
        train_sampler(
            out, scenes, config, losses=LOSSES[losses], settings=SamplerSettings(2, 1, validated=2), loop=LOOP
        )
    up, _ = export_all(runs, folder, ("sampler_up_64_256", "sampler_down_64_256"))
    assert (up.settings["low"], up.settings["high"]) == ([8, 8], [32, 32])
    assert up.recipe.startswith("underpaint train sampler --direction up --losses pixel --from 64 --to 256 &&")
    pipeline = OPEN(folder, resolution=256)
    drawing = drawn(pipeline, WARM, "mulo", "ratio=4", "resampler=latent", "tau=0")
    assert (drawing.target_nfe, len(drawing.tokens)) == (2, 1024)
    assert {"sampler_up_64_256", "sampler_down_64_256"} <= set(pipeline.fingerprint()["sha256"])


def test_the_command_draws_256_px(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Pipeline.open
    monkeypatch.setattr(
        Pipeline, "open", staticmethod(lambda folder, **options: real(models, resolution=options["resolution"]))
    )
    out = tmp_path / "fox.png"
    arguments = ["--resolution", "256", "--method", "mulo-islands", "--set", "ratio=4", "--set", "resampler=bicubic"]
    result = CliRunner().invoke(app, ["generate", TEXT, *arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    with Image.open(out) as picture:
        assert picture.size == (256, 256)
