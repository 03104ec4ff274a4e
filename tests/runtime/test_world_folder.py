"""A trained world is exported and drawn with: one file of weights for both grids, and prompts that say the side."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

import benchmarks.rank_acceptance as rank_acceptance
from tests.cli.hand_made import write_judge
from tests.runtime.world_folder import export_tiny, train_tiny
from underpaint.algos.rows import SamplingParams, sampling_probs
from underpaint.api import draw as draw_once
from underpaint.artifacts.index_writer import write_index
from underpaint.artifacts.manifest import DRAFT_TARGET, ManifestError
from underpaint.artifacts.model_families import TEXTURED_FAMILY
from underpaint.artifacts.model_index import read_index
from underpaint.artifacts.scaled_rows import ScaledRows
from underpaint.cli.app import app
from underpaint.export.decoder_weights import round_to_scaled_rows
from underpaint.export.decoders import GraphFormat, export_decoders
from underpaint.export.device_engines import write_device_graphs
from underpaint.export.store import Origin
from underpaint.export.trained_models import export_all
from underpaint.models.checkpoints import load_drafter, load_target, load_whole
from underpaint.models.text import with_condition_table
from underpaint.runtime.device.weights import read_decoder
from underpaint.runtime.drawing import Drawing, draw, noise_of
from underpaint.runtime.engines.config_only import load_config_only
from underpaint.runtime.engines.context import EngineContext, EngineError
from underpaint.runtime.engines.engine import PassOutput
from underpaint.runtime.engines.onnx_engine import OnnxDecoder, OnnxEngine
from underpaint.runtime.evaluation.comparison import read_conditions
from underpaint.runtime.evaluation.invariance import check_invariance
from underpaint.runtime.evaluation.likelihood import image_log_likelihood
from underpaint.runtime.evaluation.picture_judge import judge_of, open_judge
from underpaint.runtime.evaluation.token_bias import draw_watched
from underpaint.runtime.methods.registry import METHODS, build_method, resolve
from underpaint.runtime.pipeline import Pipeline, _tables
from underpaint.training.grids import on_grid
from underpaint.training.loop import CHECKPOINT, save_atomically
from underpaint.zoo import load
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS, parse_textured, side_word_id, textured_word_ids

pytestmark = pytest.mark.usefixtures("rough_costs")
OPEN = partial(Pipeline.open, context=EngineContext(threads=1))
TEXT = "a woolly fox left of an outlined pumpkin, with a honeybee, on green foliage"
WARM, COLD = SamplingParams(guidance=2.0), SamplingParams(guidance=2.0, temperature=0.0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def models(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny(runs, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def pipeline(models: Path) -> Pipeline:
    return OPEN(models)


def drawn(pipeline: Pipeline, sampling: SamplingParams, method: str, *settings: str) -> Drawing:
    built = build_method(method, resolve(method, sampling.temperature, settings=settings), pipeline.tables)
    return draw(pipeline, built, sampling, pipeline.condition(TEXT), 3)


def called(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_folder_of_all_models_says_how_they_are_asked_and_sampled(models: Path) -> None:
    index = read_index(models)
    assert (index.family, index.condition) == ("textured-scenes", "prompt_grammar")
    assert index.sampling() == SamplingParams(guidance=1.0, temperature=1.0, top_k=0)
    assert [(one.side, one.target, one.drafter, one.reference) for one in index.resolutions] == [
        (64, "target64", "drafter64", "judge_reference"),
        (128, "target128", "drafter128", "judge_reference"),
    ]
    assert {"sampler_up", "sampler_up_ce", "sampler_down", "judge", "vq_decoder"} <= set(index.models)


def test_likelihoods_are_read_in_passes_that_the_engine_takes(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was built for 5 positions at most; the pass over the prompt is another."""
    condition, tokens = pipeline.condition(TEXT), drawn(pipeline, WARM, "zipar").tokens_array()
    whole = image_log_likelihood(pipeline, condition, tokens, WARM)
    sizes, run = list[int](), OnnxEngine.run

    def counted(engine: OnnxEngine, tokens: NDArray[np.int64], *more: Any) -> PassOutput:
        sizes.append(tokens.shape[-1])
        return run(engine, tokens, *more)

    monkeypatch.setattr(OnnxEngine, "run", counted)
    monkeypatch.setattr(OnnxDecoder, "max_positions", lambda decoder, rows: 5)
    assert image_log_likelihood(pipeline, condition, tokens, WARM) == pytest.approx(whole, abs=1e-5)
    assert max(sizes[1:]) == 5
    assert sum(sizes[1:]) == tokens.size - 1


def test_a_bias_of_row_fronts_is_read_in_passes_that_the_engine_takes(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fronts of 16 cells are 8 positions; beside the finished picture an engine for 9 is asked for no more."""
    condition, sizes, run = pipeline.condition(TEXT), list[int](), OnnxEngine.run
    method = build_method("zipar", resolve("zipar", 1.0, settings=("window=2",)), pipeline.tables)
    whole = draw_watched(pipeline, method, condition, WARM, noise_of(condition, 3))

    def counted(engine: OnnxEngine, tokens: NDArray[np.int64], *more: Any) -> PassOutput:
        sizes.append(tokens.shape[-1])
        return run(engine, tokens, *more)

    monkeypatch.setattr(OnnxEngine, "run", counted)
    monkeypatch.setattr(OnnxDecoder, "max_positions", lambda decoder, rows: 9)
    in_small_passes = draw_watched(pipeline, method, condition, WARM, noise_of(condition, 3))
    assert in_small_passes.result.tokens.tolist() == whole.result.tokens.tolist()
    assert in_small_passes.token_bias == pytest.approx(whole.token_bias, abs=1e-5)
    assert {size for size in sizes if size > 9} == {sizes[0]}, "but for the prompt"


def test_a_judge_is_opened_where_prompts_or_the_family_tell_its_slots(models: Path) -> None:
    index, context = read_index(models), EngineContext(threads=1)
    for variant in (index, replace(index, condition="ids")):
        judge = open_judge(models, variant, index.resolutions[0], context)
        assert judge is not None
        assert judge.engine.classes == {slot: len(values) for slot, values in TEXTURED_SLOTS.items()}
    assert open_judge(models, replace(index, condition="ids", family="llamagen"), index.resolutions[0], context) is None


@pytest.mark.parametrize("kind", ["target", "drafter"])
def test_one_file_of_weights_serves_both_grids(models: Path, kind: str) -> None:
    low, high = (load.manifest(f"{kind}{side}", models) for side in (64, 128))
    assert low.weights == high.weights
    assert (low.weights.file, low.weights.matrices) == (f"{kind}.safetensors", "scaled_rows")
    assert (low.settings["grid_side"], high.settings["grid_side"]) == (8, 16)
    assert sorted(path.name for path in models.glob(f"{kind}*.safetensors")) == [f"{kind}.safetensors"]
    assert low.recipe == high.recipe == f"underpaint train world && underpaint export {kind}"


def test_what_is_stored_is_the_rounded_model(runs: Path, models: Path) -> None:
    trained = load_whole(runs / "guided" / CHECKPOINT)["model"]
    rounded = load_target(runs / "guided" / CHECKPOINT)
    round_to_scaled_rows(rounded)
    expected = rounded.state_dict()
    stored = load_file(models / "target.safetensors")
    matrix, scale = stored["layers.0.gate_up"], stored["layers.0.gate_up.scale"]
    assert (matrix.dtype, scale.dtype) == (np.int8, np.float16)
    gate_up = expected["decoder.layers.0.gate_up.weight"].numpy()
    np.testing.assert_array_equal(ScaledRows(matrix, scale).widened().T, gate_up)
    assert not np.array_equal(gate_up, trained["decoder.layers.0.gate_up.weight"].numpy())
    # Smaller matrices are of 16 bits there, and so here.
    np.testing.assert_array_equal(stored["head"].T.astype(np.float32), expected["decoder.head.weight"].numpy())


def test_other_readers_get_the_same_numbers(runs: Path, models: Path) -> None:
    target = load_target(runs / "guided" / CHECKPOINT)
    round_to_scaled_rows(target)
    for name, grid in (("target64", 8), ("target128", 16)):
        located = load.locate(name, "target", models)
        read = read_decoder(load_config_only("", located), torch.device("cpu"))
        expected = with_condition_table(on_grid(target, grid)).state_dict()
        assert read.state_dict().keys() == expected.keys()
        for key, value in read.state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=0)
    trained_state = load_drafter(runs / "drafter" / CHECKPOINT, target.decoder).state_dict()
    drafters = [load.locate(f"drafter{side}", "drafter", models) for side in (64, 128)]
    low, high = (read_decoder(load_config_only("", one), torch.device("cpu")).state_dict() for one in drafters)
    assert low.keys() == high.keys() == trained_state.keys()
    for key, value in high.items():
        torch.testing.assert_close(value, low[key], rtol=0, atol=0)
        largest = float(trained_state[key].abs().max())
        torch.testing.assert_close(value, trained_state[key], rtol=0, atol=0.02 * largest)  # of 8 bits, or 16


def test_the_device_s_graphs_hold_what_8_bits_stand_for(models: Path, tmp_path: Path) -> None:
    folder = copytree(models, tmp_path / "models")
    located = load.locate("target64", "target", folder)
    decoder = load_config_only("target64", located)
    _, head = write_device_graphs(decoder)
    features = np.random.default_rng(0).standard_normal((2, 3, decoder.config.dim)).astype(np.float32)
    (logits,) = ReferenceEvaluator(str(head)).run(None, {"features": features})
    weight = read_decoder(decoder, torch.device("cpu")).head.weight.detach().numpy()
    np.testing.assert_allclose(logits, features @ weight.T, atol=1e-5)


def test_targets_that_multiply_in_8_bits_have_a_folder_of_their_own(runs: Path, models: Path, tmp_path: Path) -> None:
    flatter = load_whole(runs / "guided" / CHECKPOINT)
    for value in flatter["model"].values():
        value *= 0.5 if value.ndim > 1 else 1.0
    save_atomically(flatter, tmp_path / "runs" / "guided" / CHECKPOINT)
    folder = export_tiny(tmp_path / "runs", copytree(models, tmp_path / "models"), "target_eight_bits")
    exact, near = (load.manifest("target128", where) for where in (models, folder))
    assert near.weights.file == exact.weights.file
    assert near.weights.matrices is None
    assert max(exact.parity.values()) < 1e-4 < max(near.parity.values()) < 0.1
    assert near.recipe.endswith("underpaint export target_eight_bits")
    assert (folder / "target64_int8.onnx").exists()  # of the export before, on other weights
    assert [one.draft_target for one in read_index(folder).resolutions] == [None, None]
    assert [one.draft_target for one in read_index(models).resolutions] == ["target64_int8", None]
    eight = OPEN(folder)
    # A last bit of an input can become a whole step of its 8 bits, so a picture may part from plain decoding's.
    plain, drafted = (drawn(eight, COLD, method).tokens for method in ("ar", "eagle2"))
    parted = next((cell for cell, pair in enumerate(zip(plain, drafted, strict=True)) if pair[0] != pair[1]), 256)
    assert parted > 16


def test_products_in_8_bits_of_weights_without_a_scale_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="low: products in 8 bits expect scaled weights"):
        export_decoders({}, None, GraphFormat(), tmp_path / "low.safetensors", Origin("", ""), drafting=("low",))
    assert not list(tmp_path.iterdir())


def test_each_grid_is_told_its_own_side_by_one_prompt(runs: Path, pipeline: Pipeline) -> None:
    target = load_target(runs / "guided" / CHECKPOINT)
    round_to_scaled_rows(target)
    condition = pipeline.condition(TEXT)
    low = pipeline.low_target(condition, WARM, 2, int8=False).model._target
    for engine, side in ((low, 64), (pipeline.high, 128)):
        tokens = engine.encoder.encode(condition).tokens
        assert tokens[0, -1] - engine.vocab_size == side_word_id(side)
        words = torch.from_numpy(np.stack([textured_word_ids(parse_textured(TEXT), side), np.zeros(12, np.int64)]))
        with torch.no_grad():
            logits, _ = on_grid(target, side // 8)(torch.zeros(2, (side // 8) ** 2, dtype=torch.int64), words)
        expected = sampling_probs(logits[:, :1].numpy(), WARM)
        engine.sample_by(WARM)
        engine.condition(condition)
        np.testing.assert_allclose(engine.begin().probs, expected, atol=1e-5)
    assert pipeline.high.encoder.accepts() == low.encoder.accepts()


def test_every_kind_of_method_draws(pipeline: Pipeline) -> None:
    ar = drawn(pipeline, COLD, "ar")
    assert (ar.target_nfe, len(ar.tokens)) == (256, 256)
    assert drawn(pipeline, COLD, "eagle2").tokens == ar.tokens
    lantern = drawn(pipeline, WARM, "adt+lantern")
    assert lantern.drafter_nfe > 0
    assert drawn(pipeline, WARM, "adt+lantern").tokens == lantern.tokens
    islands = drawn(pipeline, WARM, "mulo-islands")
    assert len(islands.tokens) == 256
    assert islands.target_nfe < 256
    assert {"sampler_up", "sampler_down", "target64_int8"} <= set(pipeline.fingerprint()["sha256"])


def test_a_low_target_that_multiplies_in_8_bits_drafts_where_there_is_one(models: Path, tmp_path: Path) -> None:
    """It reads the very weights of the one in float32; what it draws is near, and says what it was drawn with."""
    for side, kinds in ((64, ("target", DRAFT_TARGET)), (128, ("target",))):
        names = [f"target{side}{'_int8' if kind == DRAFT_TARGET else ''}" for kind in kinds]
        manifests = [load.manifest(name, models) for name in names]
        assert [one.kind for one in manifests] == list(kinds)
        assert {one.weights for one in manifests} == {manifests[0].weights}
    assert not (models / "target128_int8.onnx").exists()
    pipeline = OPEN(models)
    condition = pipeline.condition(TEXT)
    usual, eight, exact = (
        pipeline.low_target(condition, WARM, 2, int8=int8).model._target for int8 in (None, True, False)
    )
    assert usual is eight is not exact
    probs = []
    for target in (eight, exact):
        target.sample_by(WARM)
        target.condition(condition)
        probs.append(target.begin().probs)
    assert 0 < np.abs(probs[0] - probs[1]).max() < 0.05
    assert {"target64", "target64_int8"} <= set(pipeline.fingerprint()["sha256"])
    checks = list(check_invariance(models, ("target64_int8",)))
    assert {(one.model, one.precision, one.passed) for one in checks} == {("target64_int8", "int8", True)}
    elsewhere = replace(pipeline.low, backend="tensorrt")
    with pytest.raises(EngineError, match=r"backend tensorrt runs none; set draft_int8=none"):
        elsewhere.target(2, int8=True)
    without = Path(copytree(models, tmp_path / "models"))
    for file in without.glob("target64_int8.*"):
        file.unlink()
    write_index(without)
    bare = OPEN(without)
    assert drawn(bare, WARM, "mulo-islands").drafter_nfe > 0
    with pytest.raises(EngineError, match=r"holds none for target64 .`underpaint export target` .* draft_int8=none"):
        bare.low_target(condition, WARM, 2, int8=True)


def test_what_lies_between_the_sides_is_made_by_the_world_or_beside_it(
    runs: Path, models: Path, tmp_path: Path
) -> None:
    folder = Path(copytree(models, tmp_path / "models"))
    super_resolution = ("--preset", "paper", "--set", "mulo-islands.window=4", "--set", "mulo-islands.draft_window=4")
    command = ("compare", TEXT, "--models", folder, "--methods", "ar,mulo-islands", *super_resolution)
    done = called(*command, "--out", tmp_path / "c")
    assert done.exit_code == 2, done.output
    message = " ".join(done.stderr.split())
    assert "there is no model 'superres'; make it with `underpaint train world --only superres --hours 12`" in message
    assert f"`underpaint export superres --out {folder}`" in message
    assert "nearest, bicubic, or one that the folder has: latent, latent-ce" in message
    beside = "--tokenizer runs/world/tokenizer/checkpoint.pt --out runs/world/sampler_up_gan"
    advice = f"make it with `underpaint train sampler --direction up --losses gan {beside}` and `underpaint export"
    with pytest.raises(ValueError, match=f"'sampler_up_gan'; {advice} sampler_up_gan --out {folder}`, or take"):
        OPEN(folder).resampler("latent-gan", 2)
    export_tiny(runs, folder, "superres")
    done = called(*command, "--out", tmp_path / "c")
    assert done.exit_code == 0, done.output


def test_published_counts_of_near_codes_fit_a_codebook_of_4096(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codebook = np.random.default_rng(0).standard_normal((4096, 3)).astype(np.float32)
    monkeypatch.setattr("underpaint.runtime.pipeline.read_codebook", lambda folder: codebook)
    tables = _tables(models, read_index(models), 4096)
    assert tables.neighbours.shape == (4096, 250)
    for spec in METHODS:
        for temperature in (0.0, 1.0):
            build_method(spec.name, resolve(spec.name, temperature, preset="paper"), tables)
    # They are found once, and each opening has a table of its own.
    monkeypatch.setattr("underpaint.runtime.methods.method.nearest_codes", None)
    neighbours = tables.neighbours.copy()
    tables.neighbours[:] = 0
    np.testing.assert_array_equal(_tables(models, read_index(models), 4096).neighbours, neighbours)


def test_benchmarks_measure_a_folder_on_its_own_prompts(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    rank_acceptance.main(
        [*("--models", str(models), "--resolution", "64", "--prompts-count", "1"), "--ranks", "2", "--out", str(out)]
    )
    results = json.loads(out.read_text())
    assert (results["vocab_size"], results["sampler"]["guidance"]) == (48, 1.0)


def test_the_judge_reads_the_slots_of_this_grammar(pipeline: Pipeline) -> None:
    judge = judge_of(pipeline)
    assert judge is not None
    reading = judge.read(pipeline.picture(np.arange(256) % 48))
    assert set(reading.values) == set(TEXTURED_SLOTS) == set(reading.scores)
    assert "things_and_finishes" in judge.reference.accuracy
    assert len({one.caption() for one in read_conditions(pipeline, (), None)}) == 8


def test_commands_draw_compare_and_measure(models: Path, tmp_path: Path) -> None:
    out = tmp_path / "fox.png"
    done = called("generate", TEXT, "--models", models, "--method", "adt+lantern", "--out", out)
    assert done.exit_code == 0, done.output
    with Image.open(out) as picture:
        assert picture.size == (128, 128)
    small = ("--models", models, "--resolution", 64, "--prompts-count", 2)
    table = tmp_path / "compare.json"
    done = called("compare", *small, "--methods", "ar,adt+lantern", "--out", tmp_path / "c", "--json", table)
    assert done.exit_code == 0, done.output
    results = json.loads(table.read_text())
    assert (results["settings"]["top_k"], results["settings"]["guidance"]) == (0, 1.0)
    assert results["settings"]["preset"] == "tuned"
    assert results["settings"]["methods"]["adt+lantern"]["policy_settings"]["total_tokens"] == 8
    options = (*small[:4], "--method", "eagle2", "--preset", "paper", "--save-tokens", "--out", out)
    assert called("generate", TEXT, *options).exit_code == 0
    assert max(json.loads(out.with_suffix(".json").read_text())["nodes"]) > 6
    assert max(draw_once(OPEN(models, resolution=64), TEXT, "eagle2", preset="paper").nodes or ()) > 6
    done = called("sweep", *small, "--vary", "zipar.window=2,4", "--out", tmp_path / "s")
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["settings"]["preset"] == "tuned"
    for row in results["rows"]:
        assert set(row["attribute_accuracy"]) == set(TEXTURED_SLOTS)
        assert row["attribute_log_probability"] < 0
    figures = tmp_path / "premises.json"
    done = called("premises", TEXT, *small[:4], "--no-costs", "--json", figures)
    assert done.exit_code == 0, done.output
    assert json.loads(figures.read_text())["rows"][0]["value"] > 0
    listed = called("prompts", "--models", models)
    assert "woolly" in listed.stdout
    assert "foliage" in called("prompts", "--models", models).stdout
    (drawn_at_random,) = called("prompts", "--random", 1, "--models", models).stdout.splitlines()
    assert "background" in drawn_at_random


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a woolly foxx left of a pumpkin",), "unknown word 'foxx'; did you mean 'fox'"),
        (("a 3d fox, left",), "unknown word"),
        ((TEXT, "--top-k", 49), "has 48 codes, so at most 48 can be kept"),
        ((TEXT, "--resolution", 256), "resolution 256: the folder draws 64, 128"),
    ],
)
def test_wrong_prompts_and_options_are_one_line(
    models: Path, tmp_path: Path, words: tuple[object, ...], message: str
) -> None:
    done = called("generate", *words, "--models", models, "--out", tmp_path / "x.png")
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.splitlines()
    assert message in line
    assert list(tmp_path.iterdir()) == []


def test_a_missing_stage_and_another_family_are_refused_before_any_work(
    runs: Path, models: Path, tmp_path: Path
) -> None:
    fewer = tmp_path / "runs"
    copytree(runs, fewer)
    (fewer / "drafter" / CHECKPOINT).unlink()
    done = called("export", "--runs", fewer, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "drafter/checkpoint.pt; train them with `underpaint train world`, or say --runs" in done.stderr
    assert not (tmp_path / "out").exists()
    others = copytree(models, tmp_path / "others")
    index = others / "model_index.json"
    index.write_text(index.read_text().replace(TEXTURED_FAMILY, "llamagen"))
    done = called("export", "target", "--runs", fewer, "--out", others)
    assert done.exit_code == 2
    assert "holds models of the family llamagen; export those of textured-scenes" in done.stderr
    done = called("export", "target_pair", "target", "--runs", fewer, "--out", tmp_path / "out")
    assert "target_pair and target write the same files; export one of them into each folder" in done.stderr
    done = called("export", "target64", "--runs", fewer, "--out", tmp_path / "out")
    assert "there is no target64; known: tokenizer, target, drafter, judge" in done.stderr
    one = fewer / "guided" / CHECKPOINT
    saved = load_whole(one)
    del saved["config"]["grids"]
    save_atomically(saved, one)
    done = called("export", "target", "--runs", fewer, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "expected a target of several grids" in done.stderr


def test_damaged_and_mixed_folders_are_refused(models: Path, tmp_path: Path) -> None:
    def refused(change: str, message: str, *command: str) -> None:
        arguments, out = command or ("generate", TEXT), tmp_path / "x.png"
        done = called(*arguments, "--models", tmp_path / change, "--out", out)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
        assert not out.exists()

    def copy(change: str) -> Path:
        return Path(copytree(models, tmp_path / change))

    weights = copy("flipped") / "target.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    refused("flipped", "the file was changed; export the model again")
    weights = copy("cut") / "target.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    refused("cut", "the file is cut short or is another one")
    index = copy("old") / "model_index.json"
    index.write_text(index.read_text().replace('"format": 2', '"format": 1'))
    refused("old", "expected format 2, got 1")
    index = copy("other") / "model_index.json"
    index.write_text(index.read_text().replace("textured-scenes", "painted-scenes"))
    refused("other", "whose prompt grammar this version knows")
    words = copy("words") / "textured_scenes.json"
    words.write_text(words.read_text().replace("pumpkin", "agave"))
    refused("words", "expected the words of this version's textured-scenes, got others")
    manifest = copy("form") / "target128.json"
    manifest.write_text(manifest.read_text().replace("scaled_rows", "scaled_columns"))
    refused("form", "expected one of 'scaled_rows'")
    folder = copy("judge")
    write_judge(folder, {"colour": ("red", "blue")})
    write_index(folder)
    refused("judge", "expected a judge of finish, thing, relation", "compare", TEXT, "--methods", "ar")


def test_targets_that_a_pair_guides_have_a_folder_of_their_own(runs: Path, models: Path, tmp_path: Path) -> None:
    folder = export_tiny(runs, copytree(models, tmp_path / "models"), "target_pair")
    assert read_index(folder).sampling() == SamplingParams(guidance=3.0)
    baked, pair = (load_file(where / "target.safetensors") for where in (models, folder))
    differing = {name for name in baked if not (baked[name] == pair[name]).all()}
    assert {"embedding", "head"} <= baked.keys()
    assert not {name for name in differing if name.startswith(("embedding", "head"))}, "one drafter can serve both"
    assert any(name.startswith("layers.") for name in differing)
    assert load.manifest("target128", folder).recipe.endswith("underpaint export target_pair")
    pipeline = OPEN(folder)
    plain, drafted = (drawn(pipeline, SamplingParams(guidance=3.0, temperature=0.0), name) for name in ("ar", "eagle2"))
    assert plain.tokens == drafted.tokens
    export_tiny(runs, folder, "drafter")
    assert read_index(folder).sampling().guidance == 3.0
    export_tiny(runs, folder, "target")
    assert read_index(folder).sampling().guidance == 1.0
    assert (folder / "target.safetensors").read_bytes() == (models / "target.safetensors").read_bytes()


def test_an_export_of_one_model_keeps_the_others_and_the_folder_s_guidance(
    runs: Path, models: Path, tmp_path: Path
) -> None:
    folder = Path(copytree(models, tmp_path / "models"))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    export_all(runs, folder, ("target",), guidance=3.5)
    export_tiny(runs, folder, "drafter")
    assert read_index(folder).sampling() == SamplingParams(guidance=3.5)
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in before if after[name] != before[name]} == {"model_index.json"}
    assert after.keys() == before.keys()
    with pytest.raises(ValueError, match="guidance must be"):
        export_all(runs, folder, ("target",), guidance=-1.0)
    (folder / "model_index.json").write_bytes(before["model_index.json"])
    for name in ("target64", "target128"):
        for path in folder.glob(f"{name}.*"):
            path.unlink()
    write_index(folder)
    with pytest.raises(ManifestError, match="holds no target"):
        OPEN(folder)
