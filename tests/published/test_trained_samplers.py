"""Samplers for a published tokenizer: trained on a folder of pictures, exported, checked, drawn with."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.published.checkpoints import VOCAB, VQ, save_llamagen, save_vq
from tests.published.test_two_resolutions import export_pair
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.manifest import ManifestError
from underpaint.cli.app import app as underpaint
from underpaint.export.checkpoint import Request, export_checkpoint
from underpaint.models.checkpoints import load_sampler, load_vq, vq_config
from underpaint.models.published.files import CheckpointError, read_checkpoint
from underpaint.runtime.resampling.registry import open_resampler
from underpaint.runtime.resampling.resampler import TokenResampler
from underpaint.training.pictures import FolderPictures
from underpaint.zoo.load import manifest

pytestmark = pytest.mark.slow
RESOLUTIONS = (8, 16)
GRIDS = ResolutionMap(Grid(4, 4), Grid(8, 8))
NETWORKS = ("sampler_up_ce_8_16", "sampler_up_8_16", "sampler_down_8_16", "superres_8_16")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(underpaint, arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published tokenizer, pictures, and one step of every network between 8 and 16 px."""
    work = tmp_path_factory.mktemp("trained")
    save_vq(work / "vq.pt")
    (work / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for index in range(5):
        pixels = rng.integers(0, 256, (20, 24 + index, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(work / "pictures" / f"{index}.png")
    common = ["--from", "8", "--to", "16", "--tokenizer", str(work / "vq.pt"), "--steps", "1"]
    common += ["--pictures", str(work / "pictures"), "--tokens", str(work / "tokens")]
    up = ["sampler", "--direction", "up"]
    start = ["--losses", "pixel", "--init-from", str(work / "sampler_up_ce_8_16" / "checkpoint.pt")]
    for name, recipe in zip(
        NETWORKS, (up, [*up, *start], ["sampler", "--direction", "down"], ["superres"]), strict=True
    ):
        run("train", *recipe, *common, "--out", str(work / name))
    return work


@pytest.fixture(scope="module")
def folders(runs: Path, tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> tuple[Path, Path]:
    """Both resolutions, and every network beside the higher; one in float16."""
    high, low = export_pair(tmp_path_factory.mktemp("pair"), tokenizer, captions=False)
    for name in NETWORKS:
        options = ["--precision", "fp16" if name == "sampler_up_8_16" else "fp32", "--out", str(high)]
        output = run("export", str(runs / name / "checkpoint.pt"), "--kind", "sampler", *options)
        assert f"{name}.onnx" in output
    return high, low


def test_a_published_tokenizer_is_read_as_a_recipes(runs: Path) -> None:
    tokenizer = load_vq(runs / "vq.pt")
    assert tokenizer.config == vq_config(runs / "vq.pt") == VQ
    pixels = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    assert tokenizer.encode(pixels).max() < VOCAB


def test_pictures_of_a_folder_are_numbered_by_split(runs: Path) -> None:
    pictures = FolderPictures(runs / "pictures")
    assert (pictures.count("train"), pictures.count("seen"), pictures.count("held_out")) == (4, 1, 1)
    assert pictures([0, 3], 16, "train").shape == (2, 16, 16, 3)
    with Image.open(runs / "pictures" / "0.png") as opened:
        middle = np.asarray(opened)[:, 2:22]
    picture = pictures([0], 20, "seen")[0]
    np.testing.assert_array_equal(picture, middle)
    assert pictures.source == FolderPictures(runs / "pictures").source


def test_networks_draw_what_their_checkpoints_say(runs: Path, folders: tuple[Path, Path]) -> None:
    resampler = open_resampler("latent-ce", GRIDS, folders[0], sides=RESOLUTIONS)
    assert isinstance(resampler, TokenResampler)
    low = np.random.default_rng(0).integers(0, VOCAB, 16)
    with torch.no_grad():
        expected = load_sampler(runs / NETWORKS[0] / "checkpoint.pt")(torch.from_numpy(low.reshape(1, 4, 4)))[0]
    np.testing.assert_allclose(resampler.logits(low, range(4)), expected.reshape(-1, VOCAB).numpy(), atol=1e-4)
    sampler_manifest = manifest(NETWORKS[0], folders[0])
    assert (
        sampler_manifest.settings["low"],
        sampler_manifest.settings["high"],
        sampler_manifest.settings["precision"],
    ) == ([4, 4], [8, 8], "fp32")
    assert sampler_manifest.training["kind"] == "sampler"


def test_every_kind_draws_and_is_named_in_the_figures(folders: tuple[Path, Path], tmp_path: Path) -> None:
    high, low = folders
    for kind, used in (
        ("latent", ("sampler_up_8_16", "sampler_down_8_16")),
        ("latent-ce", ("sampler_up_ce_8_16", "sampler_down_8_16")),
        ("superres", ("superres_8_16", "vq_encoder")),
    ):
        args = ["--methods", "mulo", "--set", f"mulo.resampler={kind}", "--set", "mulo.k=none", "--set", "mulo.rows=2"]
        common = ["--models", str(high), "--low", str(low), "--top-k", "0", "--out", str(tmp_path / kind)]
        run("compare", "1", *common, *args)
        report = json.loads((tmp_path / kind / "compare.json").read_text())
        assert set(used) <= set(report["model"]["sha256"])


def test_check_holds_them_against_their_checkpoints(folders: tuple[Path, Path], tmp_path: Path, runs: Path) -> None:
    output = run("check", str(folders[0]), "--no-greedy")
    assert "sampler_up_ce_8_16 (fp32): passed" in output
    assert "sampler_up_8_16 (fp16): passed" in output
    assert "superres_8_16 (fp32): passed" in output
    other = tmp_path / "other"
    shutil.copytree(folders[0], other)
    record = json.loads((other / "superres_8_16.json").read_text())
    record["export"]["checkpoint_sha256"] = "0"
    (other / "superres_8_16.json").write_text(json.dumps(record))
    result = CliRunner().invoke(underpaint, ["check", str(other), "--no-greedy"])
    assert result.exit_code == 2
    assert "another checkpoint than superres_8_16 was exported from" in result.output


def test_what_does_not_belong_is_refused_and_nothing_is_written(
    runs: Path, folders: tuple[Path, Path], tmp_path: Path, tokenizer: Path
) -> None:
    up = runs / NETWORKS[0] / "checkpoint.pt"
    save_llamagen(tmp_path / "c2i.pt", captions=False)
    save_vq(tmp_path / "vq.pt", seed=9)
    shutil.copytree(tokenizer, tmp_path / "other")
    decoder = json.loads((tmp_path / "other" / "vq_decoder.json").read_text())
    decoder["export"]["request"]["checkpoint"] = str(tmp_path / "vq.pt")
    decoder["export"]["checkpoint_sha256"] = read_checkpoint(tmp_path / "vq.pt").digest()
    (tmp_path / "other" / "vq_decoder.json").write_text(json.dumps(decoder))
    for request, out, error, message in (
        (Request("sampler", up), tmp_path / "new", ManifestError, "holds no tokenizer for 'sampler_up_ce'"),
        (Request("sampler", up), tmp_path / "other", ValueError, "trained with the tokenizer"),
        (Request("sampler", up, "bf16"), folders[0], ValueError, "--precision bf16: expected fp32 or fp16"),
        (Request("sampler", tmp_path / "c2i.pt"), folders[0], ValueError, "needs 'config' and 'model'"),
        (Request("sampler", tmp_path / "none.pt"), folders[0], FileNotFoundError, "no checkpoint at"),
    ):
        before = sorted(out.iterdir()) if out.exists() else None
        with pytest.raises(error, match=message):
            export_checkpoint(request, out)
        assert (sorted(out.iterdir()) if out.exists() else None) == before
    saved = torch.load(up, weights_only=True)
    saved["config"]["losses"]["tokens"] = 9.0
    torch.save(saved, tmp_path / "own.pt")
    with pytest.raises(CheckpointError, match=r"expected the losses of ce, pixel, gan, got .*9\.0"):
        export_checkpoint(Request("sampler", tmp_path / "own.pt"), folders[0])
    result = CliRunner().invoke(
        underpaint, ["export", str(up), "--kind", "sampler", "--precision", "bf16", "--out", str(tmp_path / "x")]
    )
    assert result.exit_code == 2
    assert not (tmp_path / "x").exists()


def test_other_pictures_need_another_cache(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "pictures", tmp_path / "more")
    shutil.copy(tmp_path / "more" / "0.png", tmp_path / "more" / "9.png")
    common = ["train", "superres", "--from", "8", "--to", "16", "--tokenizer", str(runs / "vq.pt"), "--steps", "1"]
    common += ["--tokens", str(runs / "tokens"), "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(underpaint, [*common, "--pictures", str(tmp_path / "more")])
    assert result.exit_code == 2
    assert "Delete its folder to encode again" in result.output
    (tmp_path / "more" / "3.png").write_text("no picture")
    options = ["--pictures", str(tmp_path / "more"), "--tokens", str(tmp_path / "tokens")]
    result = CliRunner().invoke(underpaint, [*common, *options])
    assert result.exit_code == 2
    assert "3.png: expected a picture" in result.output
