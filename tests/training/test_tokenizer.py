"""The tokenizer's recipe and the token cache, on made-up pictures."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from underpaint.cli.train.commands import app
from underpaint.models.checkpoints import load_vq, load_whole, read
from underpaint.models.vq import VQConfig, VQModel
from underpaint.runtime.engines.images import to_bytes
from underpaint.training import tokenizer as recipes
from underpaint.training.data.textured_scenes import Split
from underpaint.training.loop import LoopSettings, rate_share, save_atomically
from underpaint.training.pictures import Pictures, to_pixels
from underpaint.training.precision import autocast
from underpaint.training.reconstruction import ReconstructionWeights, reconstruction_loss, texture_energy
from underpaint.training.tokenizer import TokenizerSettings, check_codes, spherical_kmeans, train_tokenizer
from underpaint.training.tokens import encode_pictures

TINY_VQ = VQConfig(
    codebook_size=32,
    codebook_embed_dim=4,
    encoder_ch_mult=(1, 1, 2),
    decoder_ch_mult=(1, 1, 2),
    z_channels=16,
    ch=8,
    num_res_blocks=1,
)
SOURCE = {"pictures": "flat"}
SETTINGS = TokenizerSettings(batch=4, validation_scenes=4, sides=(128, *[64] * 7), plain_steps=10, restart_every=5)
LOOP = LoopSettings(steps=40, learning_rate=4e-3, warmup_steps=5, ema_decay=0.9, validate_every=40)


def flat_pictures(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
    """Two flat halves in colours drawn by scene number."""
    colours = np.stack([np.random.default_rng([index, len(split)]).integers(0, 256, (2, 3)) for index in indices])
    pictures = np.repeat(colours[:, :, None], size // 2, axis=1).astype(np.uint8).reshape(len(indices), size, 1, 3)
    return np.broadcast_to(pictures, (len(indices), size, size, 3)).copy()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(out, flat_pictures, config=TINY_VQ, settings=SETTINGS, loop=LOOP)
    return out / "checkpoint.pt"


def test_a_tokenizer_learns_and_loads(trained: Path) -> None:
    saved = read(trained, "tokenizer")
    model = load_vq(trained)
    assert model.config == TINY_VQ
    assert saved["validation"]["psnr_64"] > 11
    assert saved["validation"]["codes_used"] > 8


@torch.no_grad()
def test_codes_fill_the_grid_and_depend_on_their_neighbourhood(trained: Path) -> None:
    model = load_vq(trained)
    codes = model.encode(to_pixels(flat_pictures([1, 2], 64, "train")))
    assert codes.shape == (2, 256)
    assert model.decode_codes(codes).shape == (2, 3, 64, 64)
    with pytest.raises(ValueError, match="divisible by 4"):
        model.encode(torch.zeros(1, 3, 63, 64))
    with pytest.raises(ValueError, match="square grid"):
        model.decode_codes(codes[:, :10])


def test_kmeans_finds_separate_directions() -> None:
    torch.manual_seed(0)
    directions = torch.eye(6)[:4]
    rows = torch.nn.functional.normalize(directions.repeat(50, 1) + 0.05 * torch.randn(200, 6), dim=1)
    centres = spherical_kmeans(rows, 4, rounds=10, seed=3)
    assert torch.allclose((centres @ directions.T).max(dim=0).values, torch.ones(4), atol=0.05)
    with pytest.raises(ValueError, match="as many rows"):
        spherical_kmeans(rows[:3], 4, rounds=1, seed=0)


def test_more_codes_than_latents_to_start_from_are_refused_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sum(count * (side // 8) ** 2 for side, count in map(recipes.SETTINGS.at, range(150, 166))) == 23040
    check_codes(replace(recipes.CONFIG, codebook_size=23040), recipes.SETTINGS)
    config = replace(recipes.CONFIG, codebook_size=23041)
    with pytest.raises(ValueError, match=r"--codes: expected at most 23,040, .* got 23,041; give fewer"):
        train_tokenizer(tmp_path / "run", flat_pictures, config=config)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("underpaint.training.pictures.TexturedPictures", lambda report: pytest.fail("art was fetched"))
    done = CliRunner().invoke(app, ["tokenizer", "--codes", "32768", "--out", str(tmp_path / "run")])
    assert done.exit_code == 2
    assert "--codes: expected at most 23,040" in done.output


def test_a_tokenizer_whose_codes_do_not_fit_16_bits_is_refused(tmp_path: Path) -> None:
    config = {"kind": "tokenizer", "vq": asdict(replace(TINY_VQ, codebook_size=2**15 + 1))}
    vq = VQModel(replace(TINY_VQ, codebook_size=2**15 + 1))
    save_atomically({"config": config, "model": vq.state_dict()}, tmp_path / "large.pt")
    with pytest.raises(ValueError, match=r"large\.pt: expected a tokenizer of at most 32,768 codes, .* of 32,769"):
        encode_pictures(tmp_path / "tokens", tmp_path / "large.pt", flat_pictures, 64, 1, "train", SOURCE)
    assert not (tmp_path / "tokens").exists()


def test_the_loss_is_zero_for_equal_pictures_and_counts_edges() -> None:
    pixels = to_pixels(flat_pictures([1], 64, "train"))
    weights = ReconstructionWeights()
    assert float(reconstruction_loss(pixels, pixels, weights)) == 0
    blurred = torch.nn.functional.avg_pool2d(pixels, 3, stride=1, padding=1, count_include_pad=False)
    plain = reconstruction_loss(blurred, pixels, replace(weights, gradient=0.0))
    assert float(reconstruction_loss(blurred, pixels, weights)) > float(plain) > 0


def test_pixels_and_pictures_are_inverse() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    pixels = to_pixels(pictures)
    assert (pixels.shape, float(pixels.min()) >= -1, float(pixels.max()) <= 1) == ((2, 3, 8, 8), True, True)
    np.testing.assert_array_equal(np.stack([to_bytes(one.numpy()) for one in pixels]), pictures)


def test_how_many_codes_are_used(tmp_path: Path) -> None:
    """On one picture over and over it is those of that picture alone, on several at least as many."""

    def same(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        return flat_pictures([7] * len(indices), size, split)

    def after_a_step(pictures: Pictures, name: str, count: int) -> float:
        settings = replace(SETTINGS, validation_scenes=count, sides=(64,))
        loop = replace(LOOP, steps=1, ema_decay=0.0)
        train_tokenizer(tmp_path / name, pictures, config=TINY_VQ, settings=settings, loop=loop)
        saved = load_whole(tmp_path / name / "checkpoint.pt")
        codes = load_vq(tmp_path / name / "checkpoint.pt").encode(to_pixels(pictures(range(count), 64, "seen")))
        assert saved["validation"]["codes_used"] == len(codes.unique())
        return float(saved["validation"]["codes_used"])

    assert after_a_step(same, "four", 4) == after_a_step(same, "one", 1)
    assert after_a_step(flat_pictures, "other", 4) > 1


def test_the_cache_is_filled_once_grows_and_names_its_tokenizer(trained: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def counting(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        seen.extend(indices)
        return flat_pictures(indices, size, split)

    few = encode_pictures(tmp_path, trained, counting, 64, 5, "train", SOURCE)
    assert few.shape == (5, 256)
    assert few.min() >= 0
    more = encode_pictures(tmp_path, trained, counting, 64, 8, "train", SOURCE)
    assert seen == list(range(8))
    np.testing.assert_array_equal(more[:5], few)
    with autocast("cpu"):
        expected = load_vq(trained).encode(to_pixels(flat_pictures([7], 64, "train")))
    assert (more[7] == expected[0].numpy()).mean() > 0.9

    other = torch.load(trained, weights_only=True)
    other["model"]["quant_conv.bias"] += 1
    torch.save(other, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="Delete its folder"):
        encode_pictures(tmp_path, tmp_path / "other.pt", counting, 64, 5, "train", SOURCE)
    for damaged in (b"", b'{"tokenizer": "', b"\xff\xfe"):
        (tmp_path / "train_64.json").write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"train_64\.json should say which tokenizer .* damaged .* to encode again"
        ):
            encode_pictures(tmp_path, trained, counting, 64, 5, "train", SOURCE)
    assert seen == list(range(8))


def test_a_missing_or_foreign_checkpoint_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="underpaint train tokenizer"):
        load_vq(tmp_path / "none.pt")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="needs 'config' and 'model'"):
        load_vq(tmp_path / "list.pt")


def test_unequal_depths_raise() -> None:
    with pytest.raises(ValueError, match="one length"):
        VQModel(VQConfig(encoder_ch_mult=(1, 1), decoder_ch_mult=(1,)))


def test_a_run_with_another_seed_or_other_settings_is_refused(trained: Path) -> None:
    out = trained.parent
    with pytest.raises(ValueError, match=r"was trained with seed 0, now wanted 1\."):
        train_tokenizer(out, flat_pictures, config=TINY_VQ, settings=SETTINGS, loop=LOOP, seed=1)
    with pytest.raises(ValueError, match="holds another model"):
        train_tokenizer(out, flat_pictures, config=replace(TINY_VQ, ch=16), settings=SETTINGS, loop=LOOP)


def test_energy_rewards_texture_wherever_it_lies() -> None:
    generator = torch.Generator().manual_seed(0)
    original, other = 0.3 * torch.randn(2, 4, 3, 32, 32, generator=generator)
    grey = torch.zeros_like(original)
    for near, far in zip(texture_energy(other), texture_energy(grey), strict=True):
        assert float(near.mean()) > 0.05
        assert float(far.abs().max()) == 0
    plain, energetic = ReconstructionWeights(), ReconstructionWeights(energy=20.0)
    assert reconstruction_loss(grey, original, plain) < reconstruction_loss(other, original, plain)
    assert reconstruction_loss(grey, original, energetic) > reconstruction_loss(other, original, energetic)


def test_a_tokenizer_that_took_another_s_place_is_read_anew(trained: Path, tmp_path: Path) -> None:
    """Its file is kept once read; a training puts the next in its place, and a reader gets that."""
    path = tmp_path / "checkpoint.pt"
    shutil.copyfile(trained, path)
    before, saved = load_vq(path).quantize.embedding.weight, load_whole(path)
    saved["model"]["quantize.embedding.weight"] += 1.0
    save_atomically(saved, path)
    assert torch.equal(load_vq(path).quantize.embedding.weight, before + 1.0)


def recipe(out: Path, monkeypatch: pytest.MonkeyPatch, loop: LoopSettings = LOOP) -> SimpleNamespace:
    """What `train_tokenizer` gives the loop; codes may restart five steps after step 10, and every five from there."""
    given = SimpleNamespace()

    def heard(model: VQModel, loss: object, *rest: object, **others: object) -> None:
        given.__dict__.update(others, model=model, loss=loss)

    monkeypatch.setattr(recipes, "train", heard)
    settings = replace(SETTINGS, sides=(64,), batch=1)
    train_tokenizer(out, flat_pictures, config=TINY_VQ, settings=settings, loop=loop)
    return given


def restarted(given: SimpleNamespace, steps: Iterable[int], share: float) -> bool:
    """Whether codes restart after the last of these steps, whose rates are this share of the peak rates."""
    weight = given.model.quantize.embedding.weight
    for step in steps:
        given.at_share(share)
        given.loss(step)
        before = weight.detach().clone()
        given.after_step(step)
    return not torch.equal(weight, before)


def test_a_resumed_run_restarts_no_code_before_it_counted_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = recipe(tmp_path, monkeypatch)
    assert not restarted(given, range(13, 16), 1.0)
    assert restarted(given, range(16, 21), 1.0)
    assert restarted(given, range(21, 26), 1.0)


def test_codes_stop_restarting_in_a_run_limited_by_minutes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = replace(LOOP, steps=10_000_000, minutes=1.0)
    for seconds, expected in ((0.6 * 60, True), (0.8 * 60, False)):
        given = recipe(tmp_path / str(seconds), monkeypatch, loop)
        assert restarted(given, range(11, 16), rate_share(loop, 15, seconds)) is expected
