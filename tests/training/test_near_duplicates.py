"""Near-duplicates of a codebook whose neighbours are known."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from tests.training.test_tokenizer import TINY_VQ, flat_pictures
from underpaint.cli.train.commands import app
from underpaint.models.vq import VQModel
from underpaint.training.data.textured_scenes import Split
from underpaint.training.near_duplicates import near_duplicates
from underpaint.training.pictures import Pictures


def random_tokenizer() -> VQModel:
    """Random weights, and codes far from each other: no rounding decides which is nearest."""
    torch.manual_seed(0)
    model = VQModel(TINY_VQ).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.quantize.embedding.weight.data.copy_(torch.nn.functional.normalize(torch.randn(32, 4), dim=1))
    return model


@pytest.fixture(scope="module")
def paired() -> VQModel:
    """A tokenizer whose codes lie in pairs: the nearest of each is all but itself, the next far away."""
    model = random_tokenizer()
    half = torch.nn.functional.normalize(torch.randn(16, 4), dim=1)
    weight = torch.cat([half, half + 1e-4 * torch.randn(16, 4)])
    model.quantize.embedding.weight.data.copy_(weight)
    return model


def test_a_twin_changes_nothing_and_a_stranger_does(paired: VQModel) -> None:
    found = near_duplicates(paired, flat_pictures, side=64, count=3, ranks=(1, 2, 31))
    twin, second, last, drawn = found.replacements
    assert [row.rank for row in found.replacements] == [1, 2, 31, 0]
    assert twin.cosine == pytest.approx(1, abs=1e-6)
    assert twin.change_mse < 1e-2 * second.change_mse
    assert twin.psnr == pytest.approx(found.psnr, abs=0.05)
    assert twin.cosine > second.cosine > drawn.cosine > last.cosine
    assert twin.one_cell_mse < second.one_cell_mse
    assert second.change_db == pytest.approx(10 * np.log10(255**2 / second.change_mse))
    assert near_duplicates(paired, flat_pictures, side=64, count=3, ranks=(1, 2, 31)) == found


def test_the_interval_of_a_change_is_over_pictures(paired: VQModel) -> None:
    """Of three pictures: the mean of each picture's own change, and 1.96 standard errors to either end of it."""
    found = near_duplicates(paired, flat_pictures, side=64, count=3, ranks=(2,)).replacements[0]
    alone = []
    for index in range(3):

        def one(indices: Sequence[int], size: int, split: Split, index: int = index) -> NDArray[np.uint8]:
            return flat_pictures([index] * len(indices), size, split)

        row = near_duplicates(paired, one, side=64, count=1, ranks=(2,)).replacements[0]
        assert (row.change_mse_low, row.change_mse_high) == (None, None)
        alone.append(row.change_mse)
    half = 1.96 * np.std(alone, ddof=1) / 3**0.5
    assert found.change_mse == pytest.approx(np.mean(alone))
    assert found.change_mse_low == pytest.approx(np.mean(alone) - half)
    assert found.change_mse_high == pytest.approx(np.mean(alone) + half)


def test_how_many_codes_are_used() -> None:
    model = random_tokenizer()

    def same(indices: Sequence[int], size: int, split: Split) -> NDArray[np.uint8]:
        return flat_pictures([7] * len(indices), size, split)

    found = near_duplicates(model, same, side=64, count=4, ranks=(1,))
    once = near_duplicates(model, same, side=64, count=1, ranks=(1,))
    assert found.codes_used == once.codes_used <= 32
    assert found.perplexity == pytest.approx(once.perplexity)
    assert 1 <= found.perplexity <= found.codes_used


def test_wrong_arguments_are_refused(paired: VQModel) -> None:
    for count, ranks in ((0, (1,)), (1, ()), (1, (0,)), (1, (32,))):
        with pytest.raises(ValueError, match=r"expected count >= 1 and ranks in 1\.\.31"):
            near_duplicates(paired, flat_pictures, side=64, count=count, ranks=ranks)


def test_the_command_writes_what_it_shows(paired: VQModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pictures(report: object) -> Pictures:
        return flat_pictures

    def tokenizer(path: Path) -> VQModel:
        return paired

    monkeypatch.setattr("underpaint.training.pictures.TexturedPictures", pictures)
    monkeypatch.setattr("underpaint.models.checkpoints.load_vq", tokenizer)
    out = tmp_path / "duplicates.json"
    arguments = ["near-duplicates", "--resolution", "64", "--pictures", "2", "--ranks", "1,4", "--json", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "a random code" in done.output
    held = json.loads(out.read_text())
    assert [row["rank"] for row in held["replacements"]] == [1, 4, 0]
    wrong = CliRunner().invoke(app, ["near-duplicates", "--ranks", "1,x"])
    assert wrong.exit_code == 2
