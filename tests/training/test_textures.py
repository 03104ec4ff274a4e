"""Textures: repeatable, wide in their spectrum, and the same at every resolution up to the finest octave."""

import numpy as np
import pytest

from underpaint.training.data.textures import KINDS, TILE, TILES, UPRIGHT, window


def octaves(pixels: np.ndarray) -> np.ndarray:
    """Share of the variance in each octave of frequency of a square of 256 px: 1 to 2 cycles, ..., 64 to 128."""
    spectrum = np.abs(np.fft.fft2(pixels - pixels.mean())) ** 2
    cycles = np.hypot(*np.meshgrid(*[np.fft.fftfreq(len(pixels), 1 / len(pixels))] * 2))
    bands = [spectrum[(cycles >= 2**power) & (cycles < 2 ** (power + 1))].sum() for power in range(7)]
    return np.array(bands) / spectrum.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_texture_has_a_wide_spectrum(kind: str) -> None:
    # Means over windows: one window's lowest octaves hold a handful of frequencies.
    share = np.mean([octaves(window(kind, 0, x, 2 * x, 0, 256, 256).astype(float)) for x in (0, 40, 90)], axis=0)
    assert (share > 0.01).sum() >= 5, share.round(3)
    assert share.max() < 0.75, share.round(3)
    level = window(kind, 0, 0, 0, 0, 256, 256)
    assert level.std() > 25
    assert len(np.unique(level)) > 150


@pytest.mark.parametrize("kind", KINDS)
def test_a_coarse_window_is_the_average_of_the_fine_one(kind: str) -> None:
    for x, y, flips in ((0, 0, 0), (34, 130, 3), (254, 254, 1)):
        fine = window(kind, 1, x, y, flips, 256, 256).astype(float)
        for size in (128, 64):
            factor = 256 // size
            mean = fine.reshape(size, factor, size, factor).mean(axis=(1, 3))
            coarse = window(kind, 1, x, y, flips, size, size)
            # Each was rounded to a whole number once.
            assert np.abs(coarse - mean).max() <= 1.0 + 1e-6


def test_half_the_picture_shows_a_texture_half_as_large() -> None:
    wide = window("brick", 0, 20, 40, 0, 128, 128)
    small = window("brick", 0, 20, 40, 0, 128, 64)
    np.testing.assert_allclose(small[:64, :64], wide.reshape(64, 2, 64, 2).mean(axis=(1, 3)), atol=1.0)


def test_tiles_repeat_without_a_seam_and_differ() -> None:
    tile = window("rock", 0, 0, 0, 0, TILE + 8, 256).astype(float)
    np.testing.assert_array_equal(tile[:, TILE:], tile[:, :8])
    assert np.abs(tile[:, TILE] - tile[:, TILE - 1]).mean() < 2 * np.abs(tile[:, 1] - tile[:, 0]).mean()
    assert TILES > 1
    assert np.corrcoef(tile[:TILE, :TILE].ravel(), window("rock", 1, 0, 0, 0, TILE, 256).ravel())[0, 1] < 0.2


def test_mirrored_windows() -> None:
    plain, turned = window("sand", 0, 2, 4, 0, 64, 64), window("sand", 0, 2, 4, 3, 64, 64)
    np.testing.assert_array_equal(turned, plain[::-1, ::-1])
    for kind in UPRIGHT:
        np.testing.assert_array_equal(window(kind, 0, 2, 4, 2, 64, 64), window(kind, 0, 2, 4, 0, 64, 64))


def test_wrong_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of sand"):
        window("mud", 0, 0, 0, 0, 64, 64)
    with pytest.raises(ValueError, match="a tile below"):
        window("sand", TILES, 0, 0, 0, 64, 64)
    with pytest.raises(ValueError, match="even x and y"):
        window("sand", 0, 1, 0, 0, 64, 64)
