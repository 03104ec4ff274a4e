"""The latent samplers and the super-resolution network: causal by row, learnable, resumable, refused where unfit."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.models.checkpoints import load_sampler, load_super_resolution, read
from underpaint.models.sampler import (
    SamplerConfig,
    SuperResolution,
    SuperResolutionConfig,
    TokenSampler,
    codebook_name,
)
from underpaint.models.vq import VQConfig, VQModel
from underpaint.training.data.textured_scenes import Split
from underpaint.training.loop import LoopSettings, save_atomically
from underpaint.training.sampler import LOSSES, PairedCodes, PairedScenes, SamplerSettings, train_sampler
from underpaint.training.sampler_losses import PatchCritic, SamplerLosses, draw_softly, duel, perceptual_distance
from underpaint.training.superres import SuperResolutionSettings, code_scores, train_super_resolution

PAIR = ResolutionMap(Grid(3, 3), Grid(6, 6))
VQ = VQConfig(24, 4, (1, 1), (1, 1), z_channels=8, ch=8, num_res_blocks=1)
UP = SamplerConfig("up", vocab_size=24, width=16, low_blocks=2, high_blocks=1)
DOWN = replace(UP, direction="down")
QUADRUPLE = tuple(replace(one, ratio=4, high_blocks=4) for one in (UP, DOWN))
"""As between 64 and 256 px."""
LOOP = LoopSettings(steps=40, learning_rate=1e-2, warmup_steps=4, ema_decay=0.8, validate_every=40)
SETTINGS = SamplerSettings(batch=16, drawn=2, validated=8)


def scenes_of(codes: NDArray[np.int16], grids: ResolutionMap = PAIR) -> PairedCodes:
    """Every low code becomes a block of its neighbours in number: learnable both ways."""
    blocks = np.empty((len(codes), grids.high.cells), np.int16)
    blocks[:, grids.blocks()] = (codes[..., None] + np.arange(grids.ratio**2)) % 24
    return PairedCodes(codes, blocks)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tokenizer") / "checkpoint.pt"
    plain = {
        "codebook_size": 24,
        "codebook_embed_dim": 4,
        "encoder_ch_mult": [1, 1],
        "decoder_ch_mult": [1, 1],
        "z_channels": 8,
        "ch": 8,
        "num_res_blocks": 1,
    }
    save_atomically({"config": {"kind": "tokenizer", "vq": plain}, "model": VQModel(VQ).state_dict()}, path)
    return path


def grey_pictures(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
    shades = np.array([20 + 37 * index % 200 for index in indices], np.uint8)
    return np.broadcast_to(shades[:, None, None, None], (len(shades), size, size, 3)).copy()


@pytest.fixture
def scenes(tokenizer: Path) -> PairedScenes:
    data = scenes_of(np.random.default_rng(0).integers(0, 24, (64, 9)).astype(np.int16))
    return PairedScenes(data, data, tokenizer, grey_pictures, PAIR)


@torch.no_grad()
@pytest.mark.parametrize("config", [UP, DOWN, replace(UP, kernel_rows=3, ratio=3), *QUADRUPLE])
def test_later_rows_change_nothing(config: SamplerConfig) -> None:
    torch.manual_seed(1)
    network = TokenSampler(config).eval()
    in_scale = 1 if config.direction == "up" else config.ratio
    out_scale = config.ratio if config.direction == "up" else 1
    codes = torch.randint(0, 24, (2, 4 * in_scale, 3 * in_scale))
    whole = network(codes)
    assert whole.shape == (2, 4 * out_scale, 3 * out_scale, 24)
    for rows in (1, 2, 3):
        other = codes.clone()
        other[:, rows * in_scale :] = torch.randint(0, 24, other[:, rows * in_scale :].shape)
        changed = network(other)
        torch.testing.assert_close(changed[:, : rows * out_scale], whole[:, : rows * out_scale], rtol=0, atol=1e-5)
        torch.testing.assert_close(
            network(codes[:, : rows * in_scale]), whole[:, : rows * out_scale], rtol=0, atol=1e-5
        )
        assert not torch.allclose(changed[:, rows * out_scale :], whole[:, rows * out_scale :])


@torch.no_grad()
def test_super_resolution_starts_as_bicubic() -> None:
    pixels = torch.rand(1, 3, 6, 8)
    expected = torch.nn.functional.interpolate(pixels, scale_factor=2.0, mode="bicubic")
    torch.testing.assert_close(SuperResolution(SuperResolutionConfig())(pixels), expected)


def test_pictures_teach_the_logits_and_the_critic_apart() -> None:
    torch.manual_seed(2)
    vq, critic = VQModel(VQ).requires_grad_(False), PatchCritic(4)
    logits = torch.randn(2, 6, 6, 24, requires_grad=True)
    drawing, real = draw_softly(vq, logits), torch.rand(2, 3, 12, 12)
    torch.testing.assert_close(drawing.pixels, vq.decode_codes(logits.argmax(-1).flatten(1)), rtol=0, atol=1e-5)
    near = perceptual_distance(vq, drawing.pixels, real)
    assert float(perceptual_distance(vq, real, real)) == 0 < float(near.detach())
    fooled, judged = duel(critic, drawing.pixels, real)
    (fooled + near).backward(retain_graph=True)
    assert logits.grad is not None
    assert float(logits.grad.abs().sum()) > 0
    assert all(parameter.grad is None for parameter in critic.parameters())
    logits.grad = None
    judged.backward()
    assert logits.grad is None
    assert all(parameter.grad is not None for parameter in critic.parameters())


@pytest.mark.parametrize("config", [UP, DOWN])
def test_a_sampler_learns_tokens_and_loads(config: SamplerConfig, scenes: PairedScenes, tmp_path: Path) -> None:
    outcome = train_sampler(tmp_path, scenes, config, settings=SETTINGS, loop=LOOP)
    assert outcome.validation["accuracy"] > 0.5
    assert load_sampler(tmp_path / "checkpoint.pt").config == config


@pytest.mark.parametrize("config", QUADRUPLE)
def test_a_sampler_of_ratio_4_learns(config: SamplerConfig, scenes: PairedScenes, tmp_path: Path) -> None:
    grids = ResolutionMap(PAIR.low, Grid(12, 12))
    wider = scenes._replace(data=scenes_of(scenes.data.low, grids), grids=grids)
    wider = wider._replace(validation=wider.data)
    outcome = train_sampler(tmp_path, wider, config, settings=SETTINGS, loop=LOOP)
    assert outcome.validation["accuracy"] > 0.5


@pytest.mark.parametrize("config", [UP, DOWN])
def test_pictures_are_of_the_side_that_is_guessed(config: SamplerConfig, scenes: PairedScenes, tmp_path: Path) -> None:
    sides = set()

    def seen(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        sides.add(size)
        return grey_pictures(indices, size, split)

    short = replace(LOOP, steps=2, validate_every=2)
    for name in ("pixel", "gan"):
        out = tmp_path / name
        train_sampler(out, scenes._replace(pictures=seen), config, losses=LOSSES[name], settings=SETTINGS, loop=short)
        assert read(out / "checkpoint.pt", "sampler")["config"]["losses"] == asdict(LOSSES[name])
    assert sides == {12 if config.direction == "up" else 6}


@pytest.mark.parametrize("config", [UP, DOWN])
def test_all_losses_go_on_from_tokens_and_resume(config: SamplerConfig, scenes: PairedScenes, tmp_path: Path) -> None:
    ce, gan = tmp_path / "ce", tmp_path / "gan"
    short = replace(LOOP, steps=6, validate_every=6)
    train_sampler(ce, scenes, config, settings=SETTINGS, loop=LOOP)

    def refine(out: Path, steps: int) -> dict[str, torch.Tensor]:
        train_sampler(
            out,
            scenes,
            config,
            losses=LOSSES["gan"],
            settings=SETTINGS,
            loop=replace(short, steps=steps, final_rate=1.0),
            init_from=ce / "checkpoint.pt",
        )
        raw: dict[str, torch.Tensor] = read(out / "checkpoint.pt", "sampler")["raw"]
        return raw

    refine(gan, 3)
    resumed, straight = refine(gan, 6), refine(tmp_path / "straight", 6)
    assert any(name.startswith("critic.") for name in resumed)
    for name, value in straight.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=2e-2)
    train_sampler(tmp_path / "own", scenes, config, settings=SETTINGS, loop=short)
    with pytest.raises(ValueError, match="did not begin from the checkpoint now given to start from"):
        train_sampler(
            *(tmp_path / "own", scenes, config), settings=SETTINGS, loop=short, init_from=ce / "checkpoint.pt"
        )
    with pytest.raises(ValueError, match="expected a sampler of width 20 to start from, got one of width 16"):
        train_sampler(tmp_path / "wide", scenes, replace(config, width=20), init_from=ce / "checkpoint.pt")
    saved = read(ce / "checkpoint.pt", "sampler")
    saved["config"]["codebook"] = "123456789abcdef"
    save_atomically(saved, ce / "foreign.pt")
    with pytest.raises(ValueError, match=r"for the codebook [0-9a-f]{12} of .*, got one for 123456789abc;"):
        train_sampler(tmp_path / "foreign", scenes, config, init_from=ce / "foreign.pt")
    assert not (tmp_path / "wide").exists()
    assert not (tmp_path / "foreign").exists()


def test_super_resolution_learns_and_loads(scenes: PairedScenes, tmp_path: Path) -> None:
    def white(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        return np.full((len(indices), size, size, 3), 255, np.uint8)

    def psnr(name: str, steps: int) -> float:
        outcome = train_super_resolution(
            tmp_path / name,
            scenes._replace(pictures=white),
            settings=SuperResolutionSettings(batch=4, validated=8, token_weight=0.01),
            loop=replace(LOOP, steps=steps, validate_every=steps),
        )
        return outcome.validation["psnr"]

    assert psnr("many", 30) > psnr("one", 1) + 3
    assert load_super_resolution(tmp_path / "many" / "checkpoint.pt").config == SuperResolutionConfig()


@torch.no_grad()
@pytest.mark.parametrize("unit", [True, False])
def test_the_best_score_is_that_of_the_encoder_s_code(unit: bool) -> None:
    """Codes of unequal length, as Chameleon's."""
    torch.manual_seed(3)
    vq = VQModel(VQ, unit_codes=unit).eval()
    vq.quantize.embedding.weight.mul_(torch.linspace(0.05, 4, 24)[:, None])
    latents = 0.5 * torch.randn(2, 4, 6, 6)
    assert code_scores(vq, latents).argmax(-1).flatten().equal(vq.quantize(latents).codes)


def test_bad_settings_are_refused(scenes: PairedScenes, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="direction up or down"):
        SamplerConfig("sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one above 0 for tokens"):
        SamplerLosses(tokens=0, pixels=1)
    with pytest.raises(ValueError, match="2 to 1024 layers"):
        SuperResolutionConfig(layers=1)
    other = ResolutionMap(Grid(3, 3), Grid(9, 9))
    with pytest.raises(ValueError, match="expected as many rows of codes"):
        train_sampler(tmp_path, scenes._replace(grids=other), replace(UP, ratio=3))
    with pytest.raises(ValueError, match="square grids of 9 and 36 cells"):
        train_super_resolution(tmp_path, scenes._replace(data=PairedCodes(scenes.data.high, scenes.data.low)))
    with pytest.raises(ValueError, match="no negative weight"):
        SuperResolutionSettings(token_weight=-1)


def test_a_codebook_keeps_its_name_when_it_is_rounded() -> None:
    from underpaint.export.decoder_weights import round_to_half

    vq = VQModel(VQ)
    before = codebook_name(vq)
    round_to_half(vq)
    assert codebook_name(vq) == before != codebook_name(VQModel(VQ))
