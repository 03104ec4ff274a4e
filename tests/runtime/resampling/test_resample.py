"""Samplers between the shipped 64 and 128 px grids: what the protocol promises, whatever the kind."""

import json
from functools import cache
from pathlib import Path
from shutil import copyfile

import numpy as np
import pytest

from underpaint.algos.arrays import IntArray
from underpaint.algos.protocols import Grid
from underpaint.algos.spatial.resolution import ResolutionMap
from underpaint.algos.tree import NO_TOKEN
from underpaint.runtime.engines.context import EngineContext
from underpaint.runtime.engines.images import ImageDecoder
from underpaint.runtime.resampling.registry import (
    LATENT,
    RESAMPLERS,
    codebook_digest,
    models_behind,
    open_resampler,
    read_codebook,
)
from underpaint.runtime.resampling.resampler import Resampler, TokenResampler
from underpaint.zoo.load import FOLDER, names

PAIR = ResolutionMap(Grid(8, 8), Grid(16, 16))
CODES = 4096
ONE_THREAD = EngineContext(threads=1)
SHIPPED = tuple(kind for kind in RESAMPLERS if set(models_behind(kind)) <= set(names()))


@cache
def opened(kind: str) -> Resampler:
    return open_resampler(kind, PAIR, settings=ONE_THREAD)


def low_tokens(seed: int = 0) -> IntArray:
    """A smooth picture's tokens, so that a round trip says something."""
    shades = np.linspace(0, 255, 64, dtype=np.uint8)
    picture = np.stack([shades[None].repeat(64, 0), shades[:, None].repeat(64, 1), np.full((64, 64), 80 + seed)], -1)
    resampler = opened("bicubic")
    assert hasattr(resampler, "encoder")
    tokens: IntArray = resampler.encoder(picture.astype(np.uint8))
    return tokens


@pytest.mark.parametrize("kind", SHIPPED)
def test_shapes_and_range(kind: str) -> None:
    resampler = opened(kind)
    low = low_tokens()
    high = resampler.enlarge(low, range(8))
    assert (high.shape, high.dtype) == ((256,), np.dtype(np.int64))
    assert high.min() >= 0
    assert high.max() < CODES
    back = resampler.reduce(high, range(8))
    assert (back.shape, back.dtype) == ((64,), np.dtype(np.int64))
    assert resampler.enlarge(low, range(2, 5)).shape == (3 * 2 * 16,)
    assert resampler.reduce(high, range(2, 5)).shape == (3 * 8,)
    assert resampler.enlarge(low, range(3, 3)).shape == resampler.reduce(high, range(0)).shape == (0,)


@pytest.mark.parametrize("kind", SHIPPED)
@pytest.mark.parametrize("stop", [1, 3, 7])
def test_rows_that_are_not_drawn_change_nothing(kind: str, stop: int) -> None:
    resampler = opened(kind)
    low = low_tokens()
    high = resampler.enlarge(low, range(8))
    for way, tokens, cells in ((resampler.enlarge, low, stop * 8), (resampler.reduce, high, stop * 32)):
        absent, other = tokens.copy(), tokens.copy()
        absent[cells:] = NO_TOKEN
        other[cells:] = (other[cells:] * 7 + 3) % CODES
        expected = way(tokens, range(stop - 1, stop))
        assert np.array_equal(way(absent, range(stop - 1, stop)), expected)
        assert np.array_equal(way(other, range(stop - 1, stop)), expected)


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_round_trip_keeps_the_picture(kind: str) -> None:
    resampler = opened(kind)
    decoder = ImageDecoder(settings=ONE_THREAD)
    low = low_tokens()
    back = resampler.reduce(resampler.enlarge(low, range(8)), range(8))
    before, after, other = (decoder(tokens, PAIR.low).astype(float) for tokens in (low, back, np.roll(low, 27)))
    assert np.square(after - before).mean() < 0.25 * np.square(other - before).mean()


@pytest.mark.parametrize("kind", [kind for kind in SHIPPED if kind in LATENT])
def test_a_latent_sampler_proposes_the_likeliest_and_is_causal_by_row(kind: str) -> None:
    resampler = opened(kind)
    assert isinstance(resampler, TokenResampler)
    low = low_tokens()
    whole = resampler.enlarge(low, range(8))
    assert np.array_equal(resampler.logits(low, range(8)).argmax(axis=1), whole)
    by_row = [resampler.enlarge(low, range(row, row + 1)) for row in range(8)]
    assert np.mean(np.concatenate(by_row) == whole) > 0.99  # float ties aside


@pytest.mark.parametrize("kind", SHIPPED)
def test_bad_tokens_are_refused(kind: str) -> None:
    resampler = opened(kind)
    low = low_tokens()
    with pytest.raises(ValueError, match="expected low tokens \\[64\\]"):
        resampler.enlarge(low[:-1], range(8))
    with pytest.raises(ValueError, match="not drawn"):
        resampler.enlarge(np.where(np.arange(64) < 20, low, NO_TOKEN), range(2, 3))
    with pytest.raises(ValueError, match=f"0 to {CODES - 1}"):
        resampler.reduce(np.full(256, CODES), range(1))
    with pytest.raises(ValueError, match="rows within"):
        resampler.enlarge(low, range(7, 9))
    with pytest.raises(ValueError, match="rows within"):
        resampler.reduce(np.zeros(256, dtype=np.int64), range(-1, 2))


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match="there is no 'bicubik'"):
        open_resampler("bicubik", PAIR)


def copy_model(name: str, folder: Path) -> None:
    """The manifest, the graph or table, and the weights, of a shipped model."""
    for file in FOLDER.glob(f"{name}.*"):
        copyfile(file, folder / file.name)


def folder_with(tmp_path: Path, **changed: object) -> Path:
    """The shipped tokenizer, and a super-resolution manifest that was made for something else."""
    for name in ("vq_encoder", "vq_decoder", "codebook"):
        copy_model(name, tmp_path)
    manifest = json.loads((FOLDER / "vq_decoder.json").read_text())
    settings = {"low": [8, 8], "high": [16, 16], "codebook": codebook_digest(read_codebook())} | changed
    manifest |= {"name": "superres", "kind": "superres", "settings": settings}
    (tmp_path / "superres.json").write_text(json.dumps(manifest))
    return tmp_path


def test_a_sampler_for_another_pair_or_codebook_is_refused(tmp_path: Path) -> None:
    open_resampler("superres", PAIR, folder_with(tmp_path))
    with pytest.raises(ValueError, match="trained between grids of 8x8 and 24x24, asked for 8x8 and 16x16"):
        open_resampler("superres", PAIR, folder_with(tmp_path, high=[24, 24]))
    with pytest.raises(ValueError, match="trained for the codebook 123456"):
        open_resampler("superres", PAIR, folder_with(tmp_path, codebook="123456"))
    with pytest.raises(ValueError, match="expected settings low, high and codebook"):
        open_resampler("superres", PAIR, folder_with(tmp_path, low=None))
    with pytest.raises(ValueError, match="there is no model 'sampler_up'"):
        open_resampler("latent", PAIR, tmp_path)


def test_a_down_sampler_of_other_losses_is_looked_for_by_its_own_name(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    for name in ("sampler_up", "sampler_down"):
        copy_model(name, folder)
    open_resampler("latent", PAIR, folder, ONE_THREAD)
    for losses in ("pixel", "gan"):
        name = f"sampler_down_{losses}"
        assert models_behind(f"latent-down-{losses}", (64, 256)) == ("sampler_up_64_256", f"{name}_64_256")
        with pytest.raises(ValueError, match=f"there is no model '{name}'; no recipe makes it for these models"):
            open_resampler(f"latent-down-{losses}", PAIR, folder, ONE_THREAD)
