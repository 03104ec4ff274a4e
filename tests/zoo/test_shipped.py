"""The models that ship are of the papers' regime: what their documents say of size, sampling and codes."""

import numpy as np
import pytest

from underpaint.algos.protocols import Grid
from underpaint.artifacts.model_families import TEXTURED_FAMILY
from underpaint.runtime.device.weights import StoredWeights
from underpaint.runtime.engines.images import ImageDecoder, ImageEncoder
from underpaint.runtime.pipeline import Pipeline
from underpaint.zoo.load import FOLDER, locate, manifest

CODES = 4096


def test_one_file_of_20_to_30_million_numbers_serves_both_grids() -> None:
    """Float32 weights are three times a last-level cache of 32 MiB, or more."""
    manifests = {side: manifest(f"target{side}") for side in (64, 128)}
    files = {one.weights.file for one in manifests.values() if one.weights is not None}
    assert len(files) == 1
    assert 20e6 <= StoredWeights(FOLDER / files.pop()).numbers() <= 30e6
    assert {one.settings["vocab_size"] for one in manifests.values()} == {CODES}


def test_all_codes_are_sampled_from_at_temperature_one_by_one_row() -> None:
    pipeline = Pipeline.open(resolution=64)
    assert pipeline.index.family == TEXTURED_FAMILY
    sampling = pipeline.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.guidance) == (1, 0, 1, 1)


@pytest.mark.parametrize(
    "name", ["target64", "target64_int8", "target128", "drafter64", "drafter128", "sampler_up", "superres"]
)
def test_files_are_what_their_manifests_say(name: str) -> None:
    assert locate(name, manifest(name).kind).path.is_file()


def test_the_tokenizer_keeps_smooth_pictures_and_uses_many_codes_for_grain() -> None:
    grid = Grid(16, 16)
    across = np.broadcast_to(np.linspace(25, 230, 128), (128, 128))
    smooth = np.stack([across, across.T, np.full((128, 128), 128.0)], axis=-1)
    encode, decode = ImageEncoder(), ImageDecoder()
    codes = encode(smooth.astype(np.uint8))
    reconstruction, other = (decode(one, grid) / 127.5 for one in (codes, (codes + 1234) % CODES))
    assert np.square(reconstruction - smooth / 127.5).mean() < 0.03
    assert np.square(other - smooth / 127.5).mean() > 0.15
    noise = np.random.default_rng(0).normal(scale=25, size=(4, 128, 128, 3))
    grainy = np.clip(smooth + noise, 0, 255).astype(np.uint8)
    assert len(np.unique(np.concatenate([encode(picture) for picture in grainy]))) > 300
