"""The picture models on ONNX Runtime: tokenizer and judge equal their torch modules, on any grid."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conformance.conftest import ORIGIN
from underpaint.algos.protocols import Grid
from underpaint.artifacts.manifest import ManifestError
from underpaint.export.vision import export_judge, export_tokenizer
from underpaint.models.judge import Judge, JudgeConfig, to_judge_side
from underpaint.models.vq import VQConfig, VQModel
from underpaint.runtime.engines.context import EngineError
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder, OnnxJudge, to_bytes, to_unit
from underpaint.zoo import load
from underpaint.zoo.textured_prompts import TEXTURED_SLOTS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[VQModel, Path]:
    folder = tmp_path_factory.mktemp("zoo")
    torch.manual_seed(2)
    model = VQModel(VQConfig(16, 4, (1, 1), (1, 1), z_channels=8, ch=8, num_res_blocks=1))
    export_tokenizer(model, folder, ORIGIN)
    return model, folder


@torch.no_grad()
def test_codes_become_the_same_picture_on_any_grid(tokenizer: tuple[VQModel, Path]) -> None:
    model, folder = tokenizer
    decoder = ImageDecoder(folder=folder)
    for side in (3, 5):
        codes = torch.arange(side * side) * 7 % 16
        expected = to_bytes(model.decode_codes(codes[None])[0].numpy())
        actual = decoder(codes.numpy(), Grid(side, side))
        assert actual.shape == (2 * side, 2 * side, 3)
        assert np.abs(actual.astype(int) - expected.astype(int)).max() <= 1
    with pytest.raises(EngineError, match=r"expected \[6\] codes from 0 to 15"):
        decoder(np.zeros(5, dtype=np.int64), Grid(2, 3))
    with pytest.raises(EngineError, match="with codes from 0 to 16"):
        decoder(np.array([0, 16]), Grid(1, 2))


@torch.no_grad()
def test_pictures_become_the_same_codes(tokenizer: tuple[VQModel, Path]) -> None:
    model, folder = tokenizer
    encoder = ImageEncoder(folder=folder)
    picture = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    expected = model.encode(torch.from_numpy(to_unit(picture)[None]))[0]
    np.testing.assert_array_equal(encoder(picture), expected.numpy())
    np.testing.assert_array_equal(to_bytes(to_unit(picture)), picture)
    with pytest.raises(EngineError, match="sides that 2 divides"):
        encoder(picture[:7])


def test_the_codebook_is_stored_as_unit_vectors(tokenizer: tuple[VQModel, Path]) -> None:
    model, folder = tokenizer
    with np.load(load.locate("codebook", "codebook", folder).path) as stored:
        codebook = stored["codebook"]
    np.testing.assert_allclose(codebook, model.quantize.codebook.detach().numpy())
    np.testing.assert_allclose(np.linalg.norm(codebook, axis=1), 1, atol=1e-6)
    with pytest.raises(ManifestError, match="is a codebook, expected a image_decoder"):
        ImageDecoder("codebook", folder)


@torch.no_grad()
def test_the_judge_says_the_same(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = Judge(JudgeConfig((4, 4, 8, 8), 6)).eval()
    for norm in model.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            norm.running_mean.normal_()  # type: ignore[union-attr]
            norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    pictures = [np.random.default_rng(seed).integers(0, 256, (128, 128, 3), dtype=np.uint8) for seed in range(2)]
    before = model(to_judge_side(torch.from_numpy(np.stack([to_unit(picture) for picture in pictures]))))
    export_judge(model, tmp_path, ORIGIN)
    judged = OnnxJudge(folder=tmp_path)(pictures)
    assert list(judged.scores) == list(TEXTURED_SLOTS)
    for slot, expected in zip(TEXTURED_SLOTS, before.scores(), strict=True):
        # The weights were rounded to float16 in between.
        np.testing.assert_allclose(judged.scores[slot], expected.numpy(), atol=5e-3)
    np.testing.assert_allclose(judged.features, before.features.numpy(), atol=5e-3)
    with pytest.raises(EngineError, match="S a multiple of 64"):
        OnnxJudge(folder=tmp_path)([pictures[0][:100]])
