"""This project's own decoder, live in torch, draws what its exported graphs draw."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.published.checkpoints import HEADS, SIDE, noise, save_dtok, save_llamagen, save_vq
from underpaint.cli.app import app
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.published import llamagen
from underpaint.models.published.options import LoadOptions
from underpaint.runtime.device.weights import read_decoder
from underpaint.runtime.drawing import draw
from underpaint.runtime.live.generate import accelerate
from underpaint.runtime.live.model import LiveModelError
from underpaint.runtime.live.pipeline import LivePipeline
from underpaint.runtime.live.published import TOKENIZERS, load_published, published
from underpaint.runtime.methods.registry import build_method, resolve
from underpaint.runtime.pipeline import Pipeline

OPTIONS = {
    "llamagen-t2i": LoadOptions(heads=HEADS, grid_side=SIDE),
    "tar-dtok": LoadOptions(heads=HEADS, prefix=6),
}
WIDTH = {"llamagen-t2i": 12, "tar-dtok": 10}


def save(kind, folder):
    """A tiny checkpoint with its tokenizer, and a condition: fewer features than there is room for."""
    path = folder / f"{kind}.pt"
    if kind == "tar-dtok":
        save_dtok(path)
    else:
        save_llamagen(path, kind == "llamagen-t2i")
    save_vq(folder / TOKENIZERS[kind])
    if kind not in WIDTH:
        return path, "3"
    np.save(folder / "features.npy", noise(2, WIDTH[kind]).numpy())
    return path, str(folder / "features.npy")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A folder with the exported tokenizer of both kinds."""
    work = tmp_path_factory.mktemp("vq")
    save_vq(work / "vq.pt")
    export_checkpoint(Request("vq", work / "vq.pt"), work / "out")
    return work / "out"


@pytest.fixture(scope="module", params=sorted(OPTIONS))
def both(request, tokenizer, tmp_path_factory):
    """The exported folder and the live model of a checkpoint, and a condition for both."""
    kind, work = request.param, tmp_path_factory.mktemp(request.param)
    path, condition = save(kind, work)
    shutil.copytree(tokenizer, work / "out")
    export_checkpoint(Request(kind, path, options=OPTIONS[kind]), work / "out")
    return Pipeline.open(work / "out"), accelerate(load_published(kind, path, options=OPTIONS[kind])), condition


@pytest.mark.parametrize("method", ["ar", "jacobi-lookup", "pjd"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_live_checkpoint_draws_what_its_export_draws(both, method, temperature):
    pipeline, fast, prompt = both
    sampling = replace(pipeline.sampling, temperature=temperature)
    built = build_method(method, resolve(method, temperature), pipeline.tables)
    assert fast.live.sampling == pipeline.sampling
    exported = draw(pipeline, built, sampling, pipeline.condition(prompt), seed=3)
    live_drawing = draw(fast.pipeline, built, sampling, fast.pipeline.condition(prompt), seed=3)
    assert len(set(live_drawing.tokens)) > 3
    assert live_drawing.tokens == exported.tokens
    assert live_drawing.target_nfe == exported.target_nfe
    live, graph = (one.picture(live_drawing.tokens_array()).astype(int) for one in (fast.pipeline, pipeline))
    assert live.std() > 0
    assert np.abs(live - graph).max() <= 1  # rounding of float32 convolutions


def test_a_list_of_conditions_is_drawn_one_by_one(both):
    _, fast, prompt = both
    alone = [fast.generate(prompt, seed=seed).drawing.tokens for seed in (3, 4)]
    assert [image.drawing.tokens for image in fast.generate([prompt, prompt], seed=[3, 4])] == alone
    with pytest.raises(LiveModelError, match="expected a model of transformers"):
        fast.generate([prompt, prompt], batch=2)


def test_the_shipped_target_draws_what_its_export_draws():
    pipeline, on_device = Pipeline.open(resolution=64), Pipeline.open(resolution=64, backend="device")
    decoder = read_decoder(on_device.high.decoder, torch.device("cpu"))
    live = LivePipeline(published("llamagen-c2i", decoder))
    condition = pipeline.condition("a woolly fox left of an outlined pumpkin")
    built = build_method("jacobi-lookup", resolve("jacobi-lookup", 1.0), pipeline.tables)
    exported, live_drawing = (draw(each, built, pipeline.sampling, condition, seed=3) for each in (pipeline, live))
    assert live_drawing.tokens == exported.tokens


@pytest.fixture
def tar(monkeypatch, tmp_path):
    """Tar's de-tokenizer as the commands open it; a tiny width names no published number of heads."""
    monkeypatch.setitem(llamagen.HEADS, 32, HEADS)
    monkeypatch.setattr(llamagen, "TA_TOK_POSITIONS", 6)
    path, features = save("tar-dtok", tmp_path)
    return path, features, tmp_path


def test_tars_detokenizer_draws_and_compares_by_the_commands(tar):
    path, features, folder = tar
    options = ["--live", str(path), "--family", "tar-dtok"]
    result = CliRunner().invoke(app, ["generate", features, *options, "--out", str(folder / "one.png")])
    assert result.exit_code == 0, result.output
    assert (folder / "one.png").is_file()
    command = ["compare", features, *options, "--methods", "jacobi-lookup", "--out", str(folder / "run")]
    compared = CliRunner().invoke(app, command)
    assert compared.exit_code == 0, compared.output
    assert "jacobi-lookup" in compared.output


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["207"], "expected an .npy file of features, at most 6 x 10 numbers"),
        (["{features}", "--tokenizer", "{folder}"], "expected a model that takes words"),
        (["{features}", "--grid", "4x5"], "expected a square"),
        (["{features}", "--family", "llamagen-c2i"], "cls_embedding"),
        (["{features}", "--compile"], "which this project runs itself"),
    ],
)
def test_bad_input_for_a_checkpoint_is_refused(tar, more, expected):
    path, features, folder = tar
    prompt, *options = (each.format(features=features, folder=folder) for each in more)
    live_options = ["--live", str(path), *([] if "--family" in options else ["--family", "tar-dtok"])]
    refused = CliRunner().invoke(app, ["generate", prompt, *live_options, *options, "--out", str(folder / "no.png")])
    assert refused.exit_code == 2
    assert expected in " ".join(refused.output.split())
    assert not (folder / "no.png").exists()


def test_features_of_another_width_and_ids_are_refused(tar):
    path, _, folder = tar
    fast = accelerate(load_published("tar-dtok", path, options=OPTIONS["tar-dtok"]), "ar")
    np.save(folder / "wide.npy", noise(2, 11).numpy())
    with pytest.raises(ValueError, match=r"expected features \[1 to 6, 10\], got \[2, 11\]"):
        fast.generate(str(folder / "wide.npy"))
    with pytest.raises(LiveModelError, match=r"expected the \.npy file of features"):
        fast.generate((1, 2, 3))
