"""Weights of the repository: rounded once, read back as they are, and gone on from."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.test_tokenizer import LOOP, SETTINGS, TINY_VQ, flat_pictures
from underpaint.artifacts.manifest import ManifestError
from underpaint.models import weights
from underpaint.models.checkpoints import load_vq, load_whole
from underpaint.models.weights import narrowed, restore, store, widened
from underpaint.training.tokenizer import train_tokenizer


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokenizer")
    loop = replace(LOOP, steps=12, validate_every=12)
    train_tokenizer(out, flat_pictures, config=TINY_VQ, settings=SETTINGS, loop=loop)
    return out / "checkpoint.pt"


def test_rounding_is_small_and_repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {
        "large.weight": torch.randn(8, 4, 3, 3, generator=generator) * torch.logspace(-3, 2, 8)[:, None, None, None],
        "embedding.weight": torch.randn(40, 20, generator=generator),
        "bias": torch.randn(8, generator=generator),
        "empty.weight": torch.zeros(8, 40),
    }
    monkeypatch.setattr(weights, "_NARROW_ABOVE", 100)
    arrays = narrowed(state)
    assert arrays["large.weight"].dtype == np.int8
    assert arrays["embedding.weight"].dtype == arrays["bias"].dtype == np.float16
    found = widened(arrays)
    assert found.keys() == state.keys()
    largest = state["large.weight"].flatten(1).abs().amax(dim=1)
    error = (found["large.weight"] - state["large.weight"]).flatten(1).abs().amax(dim=1)
    assert (error <= largest * (0.5 / 127 + 2**-10)).all()
    torch.testing.assert_close(found["bias"], state["bias"], rtol=2**-10, atol=0)
    assert not found["empty.weight"].any()
    again = widened(narrowed(found))
    for name in state:
        torch.testing.assert_close(again[name], found[name], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e6])
def test_what_16_bits_do_not_hold_is_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="expected finite numbers that float16 holds"):
        narrowed({"weight": torch.tensor([[1.0, wrong]])})


def test_a_stored_tokenizer_reads_back_and_trains_on(trained: Path, tmp_path: Path) -> None:
    about = store(trained, "tiny", "underpaint train tokenizer", tmp_path / "weights")
    assert about.training["step"] == 12
    restored = restore("tiny", tmp_path / "run", tmp_path / "weights")
    before, after = load_vq(trained), load_vq(restored)
    assert after.config == before.config
    for name, value in before.state_dict().items():
        if name != "quantize.codebook_used":
            torch.testing.assert_close(after.state_dict()[name], value, rtol=2**-10, atol=1e-6)
    outcome = train_tokenizer(
        restored.parent, flat_pictures, config=TINY_VQ, settings=SETTINGS, loop=replace(LOOP, steps=14)
    )
    assert outcome.step == 14
    saved = load_whole(restored)
    assert "optimizer" in saved
    assert [run["first_step"] for run in saved["runs"]] == [0, 12]
    with pytest.raises(ValueError, match="was trained with"):
        train_tokenizer(restored.parent, flat_pictures, config=TINY_VQ, settings=SETTINGS, loop=LOOP, seed=3)


def test_storing_is_repeatable(trained: Path, tmp_path: Path) -> None:
    first, second = (store(trained, "tiny", "again", tmp_path / name) for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "a" / "tiny.safetensors").read_bytes() == (tmp_path / "b" / "tiny.safetensors").read_bytes()


def test_bad_weights_are_refused_and_nothing_is_written(trained: Path, tmp_path: Path) -> None:
    store(trained, "tiny", "again", tmp_path)
    path = tmp_path / "tiny.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ManifestError, match="cut short"):
        restore("tiny", tmp_path / "run", tmp_path)
    with pytest.raises(ManifestError, match="no manifest"):
        restore("other", tmp_path / "run", tmp_path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(FileExistsError, match="nothing is restored over it"):
        restore("tiny", trained.parent, tmp_path)
    with pytest.raises(FileNotFoundError, match="train one with"):
        store(tmp_path / "none.pt", "tiny", "again", tmp_path)
