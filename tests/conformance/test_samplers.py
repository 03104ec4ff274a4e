"""Samplers on ONNX Runtime: they equal their torch modules, and are refused where they do not belong."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conformance.conftest import ORIGIN
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.artifacts.manifest import digest
from underpaint.export.samplers import Between, export_between
from underpaint.export.vision import export_tokenizer
from underpaint.models.sampler import SamplerConfig, SuperResolution, SuperResolutionConfig, TokenSampler, codebook_name
from underpaint.models.vq import VQConfig, VQModel
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.resampling.registry import open_resampler
from underpaint.runtime.resampling.resampler import LearnedEnlarger, PixelResampler, TokenResampler
from underpaint.zoo.load import manifest

PAIR = ResolutionMap(Grid(3, 4), Grid(6, 8))
QUADRUPLE = ResolutionMap(Grid(3, 4), Grid(12, 16))
VQ = VQConfig(24, 4, (1, 1), (1, 1), z_channels=8, ch=8, num_res_blocks=1)
UP = SamplerConfig("up", vocab_size=24, width=16, low_blocks=2, high_blocks=1)
DOWN = SamplerConfig("down", vocab_size=24, width=16, low_blocks=1, high_blocks=1)


def tokenizer(seed: int) -> VQModel:
    torch.manual_seed(seed)
    return VQModel(VQ).eval()


def between(vq: VQModel) -> Between:
    return Between.of({"low": [3, 4], "high": [6, 8], "codebook": codebook_name(vq), "losses": {"tokens": 1.0}})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TokenSampler, TokenSampler, SuperResolution]:
    folder, vq = tmp_path_factory.mktemp("zoo"), tokenizer(4)
    export_tokenizer(vq, folder, ORIGIN)
    up, down, large = TokenSampler(UP), TokenSampler(DOWN), SuperResolution(SuperResolutionConfig(width=8))
    torch.nn.init.normal_(large.conv_out.weight, std=0.1)
    for name, model in (("sampler_up", up), ("sampler_down", down)):
        export_between(name, model, between(vq), tokenizer(4), folder, folder, ORIGIN)
    export_between("superres", large, between(vq), tokenizer(4), folder, folder, ORIGIN)
    return folder, up, down, large


@torch.no_grad()
def test_token_samplers_equal_torch(exported: tuple[Path, TokenSampler, TokenSampler, SuperResolution]) -> None:
    folder, up, down, _ = exported
    resampler = open_resampler("latent", PAIR, folder)
    assert isinstance(resampler, TokenResampler)
    low = np.random.default_rng(0).integers(0, 24, 12)
    for rows in (range(3), range(1, 2)):
        expected_logits = up(torch.from_numpy(low.reshape(1, 3, 4)))[0, 2 * rows.start : 2 * rows.stop].reshape(-1, 24)
        np.testing.assert_allclose(resampler.logits(low, rows), expected_logits.numpy(), rtol=0, atol=1e-4)
        assert np.array_equal(resampler.enlarge(low, rows), expected_logits.argmax(-1).numpy())
    high = np.random.default_rng(1).integers(0, 24, 48)
    expected_tokens = down(torch.from_numpy(high.reshape(1, 6, 8)))[0].argmax(-1)
    assert np.array_equal(resampler.reduce(high, range(3)), expected_tokens.numpy().ravel())
    about = manifest("sampler_up", folder)
    assert about.settings["low"] == [3, 4]
    assert about.settings["losses"] == {"tokens": 1.0}
    assert set(about.parity) == {"random", "one_row", "last_code"}


@torch.no_grad()
def test_super_resolution_equals_torch(exported: tuple[Path, TokenSampler, TokenSampler, SuperResolution]) -> None:
    folder, _, _, large = exported
    resampler = open_resampler("superres", PAIR, folder)
    assert isinstance(resampler, PixelResampler)
    assert isinstance(resampler.enlarger, LearnedEnlarger)
    picture = np.random.default_rng(2).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    pixels = torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 127.5 - 1
    expected = (large(pixels)[0].permute(1, 2, 0).clamp(-1, 1) * 127.5 + 127.5).numpy()
    assert np.abs(resampler.enlarger(picture) - expected).max() <= 0.51


@torch.no_grad()
def test_networks_of_ratio_4_stand_beside_those_of_2(
    exported: tuple[Path, TokenSampler, TokenSampler, SuperResolution],
) -> None:
    folder, sides = exported[0], (64, 256)
    pair = replace(between(tokenizer(4)), high=tuple(QUADRUPLE.high))
    up, down = (TokenSampler(replace(one, ratio=4, high_blocks=2)) for one in (UP, DOWN))
    large = SuperResolution(SuperResolutionConfig(ratio=4, width=8))
    torch.nn.init.normal_(large.conv_out.weight, std=0.1)
    for name, model in (("sampler_up_64_256", up), ("sampler_down_64_256", down)):
        export_between(name, model, pair, tokenizer(4), folder, folder, ORIGIN)
    export_between("superres_64_256", large, pair, tokenizer(4), folder, folder, ORIGIN)
    resampler = open_resampler("latent", QUADRUPLE, folder, sides=sides)
    low, high = (np.random.default_rng(3).integers(0, 24, grid.cells) for grid in (QUADRUPLE.low, QUADRUPLE.high))
    expected = up(torch.from_numpy(low.reshape(1, 3, 4)))[0, 4:12].argmax(-1)
    assert np.array_equal(resampler.enlarge(low, range(1, 3)), expected.numpy().ravel())
    expected = down(torch.from_numpy(high.reshape(1, 12, 16)))[0].argmax(-1)
    assert np.array_equal(resampler.reduce(high, range(3)), expected.numpy().ravel())
    enlarged = open_resampler("superres", QUADRUPLE, folder, sides=sides).enlarge(low, range(3))
    assert enlarged.shape == (QUADRUPLE.high.cells,)
    assert open_resampler("latent", PAIR, folder).map == PAIR


def put_another_codebook(folder: Path, into: Path) -> None:
    """The codebook of `folder` in another order, as another tokenizer would have it."""
    with np.load(folder / "codebook.npz") as arrays:
        np.savez(into / "codebook.npz", codebook=arrays["codebook"][::-1])
    path = into / "codebook.npz"
    about = json.loads((folder / "codebook.json").read_text()) | {"bytes": path.stat().st_size, "sha256": digest(path)}
    (into / "codebook.json").write_text(json.dumps(about))


def test_what_does_not_belong_is_refused(
    exported: tuple[Path, TokenSampler, TokenSampler, SuperResolution], tmp_path: Path
) -> None:
    folder, up, _, large = exported
    wider = ResolutionMap(Grid(3, 4), Grid(9, 12))
    for kind in ("latent", "superres"):
        with pytest.raises(EngineError, match="trained between grids of 3x4 and 6x8, asked for 3x4 and 9x12"):
            open_resampler(kind, wider, folder)
        with pytest.raises(EngineError, match=r"no model '.*_128_256'; no recipe makes it for these"):
            open_resampler(kind, PAIR, folder, sides=(128, 256))
    theirs, other = between(tokenizer(4)), tokenizer(5)
    with pytest.raises(ValueError, match="trained with the tokenizer"):
        export_between("sampler_up", up, theirs, other, folder, folder, ORIGIN)
    put_another_codebook(folder, tmp_path)
    with pytest.raises(ValueError, match="another tokenizer's codebook"):
        export_between("superres", large, theirs, tokenizer(4), tmp_path, tmp_path, ORIGIN)
    with pytest.raises(ValueError, match="no model 'codebook'"):
        export_between("sampler_up", up, theirs, tokenizer(4), tmp_path / "empty", tmp_path / "empty", ORIGIN)
    for name in ("sampler_up", "sampler_down", "superres"):
        for suffix in (".json", ".onnx", ".safetensors"):
            (tmp_path / f"{name}{suffix}").write_bytes((folder / f"{name}{suffix}").read_bytes())
    for kind in ("latent", "superres"):
        with pytest.raises(EngineError, match="trained for the codebook"):
            open_resampler(kind, PAIR, tmp_path)
