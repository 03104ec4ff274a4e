import json
from functools import partial
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.cli.hand_made import ORIGIN, write_image_decoder, write_judge, write_real_scenes
from tests.one_grid import export_captioned_target, export_trained_drafter
from underpaint.algos.rows import SamplingParams
from underpaint.algos.spatial.row_front import front_steps
from underpaint.algos.spatial.zipar import raster
from underpaint.artifacts import manifest
from underpaint.artifacts.decoder_config import DecoderConfig
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.model_families import TEXTURED_FAMILY
from underpaint.cli.app import app
from underpaint.models.text import CaptionedTarget, new_drafter
from underpaint.runtime.conditions import parse_condition
from underpaint.runtime.drawing import draw, noise_of
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.evaluation.picture_judge import judge_of
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS, TEXTURED_WORD_SLOTS, TEXTURED_WORDS

WORDS = TEXTURED_WORD_SLOTS - 1
"""Of a prompt without the word of the side, which a target of one grid does not read."""
CONFIG = DecoderConfig(
    dim=16, layers=2, heads=2, hidden=48, vocab_size=32, grid_side=8, prefix=WORDS, condition="external"
)
OPEN = partial(Pipeline.open, context=EngineContext(threads=1))
OPEN_AS_IS = Pipeline.open
PROMPT = "a woolly fox, an owl"
FOX = parse_condition("a fox, an owl", "prompt_grammar")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole folder of models with random weights, as the shipped one is laid out."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    target = CaptionedTarget(CONFIG, 12, TEXTURED_WORDS).eval()
    for weights in (*target.conditioner.parameters(), *target.decoder.parameters()):
        weights.data.normal_(std=0.3)
    export_captioned_target("target64", target, folder, ORIGIN)
    export_trained_drafter("drafter64", new_drafter(target.decoder).eval(), folder, ORIGIN)
    write_image_decoder(folder)
    write_judge(folder)
    write_real_scenes(folder)
    torch.set_num_threads(threads)
    write_index(folder, family=TEXTURED_FAMILY)
    return folder


def opens(monkeypatch, folder):
    """Let the commands open this folder instead of the shipped one, on one thread."""

    def opened(_folder=None, *, resolution=None, **options):
        return OPEN_AS_IS(folder, resolution=resolution, context=EngineContext(threads=1))

    monkeypatch.setattr(Pipeline, "open", staticmethod(opened))


@pytest.fixture
def damaged(models, tmp_path, monkeypatch):
    """A copy to be damaged, which the commands open."""
    folder = tmp_path / "models"
    copytree(models, folder)
    opens(monkeypatch, folder)
    return folder


def test_a_studio_opens_draws_and_judges(models):
    pipeline = OPEN(models, resolution=64)
    assert tuple(pipeline.grid) == (8, 8)
    assert pipeline.tables.neighbours.shape == (32, 31)
    built = build_method("eagle2", resolve("eagle2", 1.0), pipeline.tables)
    drawing = draw(pipeline, built, SamplingParams(guidance=2.0), FOX, 0)
    assert drawing.target_nfe == 1 + len(drawing.accepted)
    assert drawing.drafter_nfe > 0
    assert 0 < drawing.target_seconds + drawing.drafter_seconds < drawing.seconds
    picture = pipeline.picture(drawing.tokens_array())
    assert picture.shape == (64, 64, 3)
    judge = judge_of(pipeline)
    seen = judge.read(picture)
    assert {slot: seen.values[slot] in words for slot, words in TEXTURED_SLOTS.items()} == dict.fromkeys(
        TEXTURED_SLOTS, True
    )
    assert seen.features.shape == (judge.reference.features_a.shape[1],)


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_every_lossless_method_draws_what_ar_draws_at_temperature_zero(models, guidance):
    pipeline = OPEN(models, resolution=64)
    sampler = SamplingParams(guidance=guidance, temperature=0.0)
    tokens = {}
    for method in METHODS:
        built = build_method(method.name, resolve(method.name, 0.0), pipeline.tables)
        if built.lossless:
            tokens[method.name] = draw(pipeline, built, sampler, FOX, 0).tokens
    assert len(tokens) >= 6
    assert set(tokens.values()) == {tokens["ar"]}


@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_row_fronts_as_wide_as_the_grid_are_plain_autoregression(models, guidance):
    pipeline, prompt = OPEN(models, resolution=64), FOX
    cold = SamplingParams(guidance=guidance, temperature=0.0)
    ar = draw(pipeline, build_method("ar", resolve("ar", 0.0), pipeline.tables), cold, prompt, 0)
    for settings in (["window=none"], ["window=8"], ["window=8", "adaptive=true"]):
        built = build_method("zipar", resolve("zipar", 0.0, settings=settings), pipeline.tables)
        wide = draw(pipeline, built, cold, prompt, 0)
        assert wide.tokens == ar.tokens
        assert (wide.target_nfe, wide.drafter_nfe) == (64, 0)
    warm = SamplingParams(guidance=guidance)
    plain = raster(pipeline.grid_target(prompt, warm).model, noise_of(prompt, 3)).tokens
    built = build_method("zipar", resolve("zipar", 1.0, settings=["window=8"]), pipeline.tables)
    assert draw(pipeline, built, warm, prompt, 3).tokens == tuple(plain)
    fast = draw(pipeline, build_method("zipar", resolve("zipar", 1.0), pipeline.tables), warm, prompt, 3)
    assert fast.target_nfe == front_steps(pipeline.grid, 4)
    assert fast.accepted is fast.depths is fast.kept_cells is None


def test_the_prompt_changes_the_picture_and_the_seed_too(models):
    pipeline = OPEN(models, resolution=64)
    built = build_method("adt", resolve("adt", 1.0), pipeline.tables)
    tokens = [
        draw(pipeline, built, SamplingParams(), parse_condition(f"a {concept}, an owl", "prompt_grammar"), seed).tokens
        for concept, seed in (("fox", 0), ("fox", 1), ("panda", 0), ("fox", 0))
    ]
    assert len(set(tokens[:3])) == 3
    assert tokens[3] == tokens[0]


def test_the_command_compares_on_real_engines(models, monkeypatch, tmp_path):
    opens(monkeypatch, models)
    out = tmp_path / "out"
    arguments = ["compare", PROMPT, "a panda, an owl", "--methods", "eagle2,adt+lantern", "--resolution", "64"]
    result = CliRunner().invoke(app, [*arguments, "--temperature", "0", "--out", str(out)])
    assert result.exit_code == 0, result.output
    plain = json.loads((out / "compare.json").read_text())
    assert plain["rows"][1]["identical_to_ar"] is True
    assert plain["model"]["sha256"]["target64"] == manifest.read(models / "target64.json").weights.sha256


def cut_short(folder: Path) -> None:
    file = folder / "target64.onnx"
    file.write_bytes(file.read_bytes()[:-100])


def change_a_byte(folder: Path) -> None:
    damage_file(folder / "target64.onnx")


def damage_file(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def remove_the_judge(folder: Path) -> None:
    (folder / "judge.onnx").unlink()


def no_model_but_a_true_hash(folder: Path) -> None:
    rewrite(folder, "vq_decoder", b"not a model at all")


def no_codebook_but_a_true_hash(folder: Path) -> None:
    rewrite(folder, "codebook", b"not an array at all")


def no_json(folder: Path) -> None:
    (folder / "judge_reference.json").write_text("{")


def another_vocabulary(folder: Path) -> None:
    with (folder / "codes.npz").open("wb") as stream:
        np.savez(stream, codebook=np.eye(5, dtype=np.float32))
    content = (folder / "codes.npz").read_bytes()
    rewrite(folder, "codebook", content)


def rewrite(folder: Path, name: str, content: bytes) -> None:
    plain = json.loads((folder / f"{name}.json").read_text())
    (folder / plain["file"]).write_bytes(content)
    plain["bytes"], plain["sha256"] = len(content), manifest.digest(folder / plain["file"])
    (folder / f"{name}.json").write_text(json.dumps(plain))
    write_index(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "cut short"),
        (change_a_byte, "expected sha256"),
        (no_model_but_a_true_hash, "onnxruntime could not load it"),
        (no_codebook_but_a_true_hash, "expected an array 'codebook'"),
        (no_json, "expected JSON"),
        (another_vocabulary, "expected one codebook"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "compare"])
def test_damaged_models_are_refused_before_any_work(damaged, tmp_path, command, damage, message):
    damage(damaged)
    out = tmp_path / "out" / "picture.png" if command == "generate" else tmp_path / "out"
    result = CliRunner().invoke(app, [command, PROMPT, "--resolution", "64", "--out", str(out)])
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_damaged_drafter_is_refused_by_the_methods_that_draft_with_it(damaged: Path, tmp_path: Path) -> None:
    damage_file(damaged / "drafter64.onnx")
    line = ["generate", PROMPT, "--resolution", "64", "--out", str(tmp_path / "picture.png")]
    refused = CliRunner().invoke(app, [*line, "--method", "eagle2"])
    assert (refused.exit_code, list(tmp_path.glob("*.png"))) == (2, [])
    assert "expected sha256" in refused.stderr
    assert CliRunner().invoke(app, line).exit_code == 0


def test_a_judge_that_is_missing_stops_what_reports_quality_alone(damaged, tmp_path):
    remove_the_judge(damaged)
    arguments = [PROMPT, "--resolution", "64", "--out"]
    refused = CliRunner().invoke(app, ["compare", *arguments, str(tmp_path / "out")])
    assert refused.exit_code == 2, refused.output
    assert "no model file" in refused.stderr
    assert not (tmp_path / "out").exists()
    result = CliRunner().invoke(app, ["generate", *arguments, str(tmp_path / "picture.png")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "picture.png").stat().st_size > 0
