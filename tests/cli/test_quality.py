import numpy as np
import pytest
from scipy.linalg import sqrtm

from tests.cli.synthetic_pipeline import real_scenes
from underpaint.runtime.evaluation.quality import (
    Reading,
    Reference,
    frechet_distance,
    frechet_floor,
    load_reference,
    read_right,
    reference_arrays,
)
from underpaint.zoo.textured_prompts import MAIN_ACCURACY, parse_textured


def test_frechet_distance_matches_the_matrix_square_root():
    rng = np.random.default_rng(0)
    left = rng.standard_normal((60, 6)) @ rng.standard_normal((6, 6))
    right = rng.standard_normal((90, 6)) @ rng.standard_normal((6, 6)) + 0.7
    apart = left.mean(0) - right.mean(0)
    cov_left, cov_right = np.cov(left.T), np.cov(right.T)
    between = np.trace(np.real(sqrtm(cov_left @ cov_right)))
    expected = apart @ apart + np.trace(cov_left) + np.trace(cov_right) - 2 * between
    assert frechet_distance(left, right) == pytest.approx(expected, rel=1e-8)
    assert frechet_distance(left, right) == pytest.approx(frechet_distance(right, left), rel=1e-8)


def test_frechet_distance_of_few_pictures_is_finite_and_zero_to_itself():
    few = np.random.default_rng(1).standard_normal((3, 64))
    assert frechet_distance(few, few) == pytest.approx(0.0, abs=1e-9)
    assert np.isfinite(frechet_distance(few, np.random.default_rng(2).standard_normal((500, 64))))


def test_frechet_distance_refuses_one_picture():
    with pytest.raises(ValueError, match="n >= 2"):
        frechet_distance(np.zeros((1, 4)), np.zeros((5, 4)))


def test_the_floor_falls_with_the_sample_and_says_when_there_are_too_few():
    reference = real_scenes()
    small, large = frechet_floor(reference, 8), frechet_floor(reference, 150)
    assert small > large > 0
    assert frechet_floor(reference, 1) is None
    assert frechet_floor(reference, 201) is None


def test_a_reference_file_reads_back(tmp_path):
    one, other = real_scenes(1), real_scenes(2)
    path = tmp_path / "reference.npz"
    np.savez_compressed(path, **reference_arrays({64: one, 128: other}))
    for side, expected in ((64, one), (128, other)):
        reference = load_reference(path, side)
        np.testing.assert_allclose(reference.features_a, expected.features_a, rtol=1e-6)
        np.testing.assert_allclose(reference.features_b, expected.features_b, rtol=1e-6)
        assert reference.accuracy == expected.accuracy
    with pytest.raises(ValueError, match="no real scenes of 256 px"):
        load_reference(path, 256)


def test_a_damaged_reference_is_refused(tmp_path):
    path = tmp_path / "reference.npz"
    path.write_bytes(b"no arrays here")
    with pytest.raises(ValueError, match="not a reference"):
        load_reference(path, 64)
    with pytest.raises(ValueError, match="finite"):
        Reference(np.full((3, 2), np.nan), np.zeros((3, 2)), {})


def test_prompt_accuracy_needs_both_things_and_their_finishes():
    attributes = right = parse_textured("a woolly fox, a stone owl").attributes()
    readings = [
        Reading(right, np.zeros(2)),
        Reading(right | {"other_finish": "woolly"}, np.zeros(2)),
        Reading(right | {"thing": "panda"}, np.zeros(2)),
        Reading(right | {"colour": "no such"}, np.zeros(2)),
    ]
    right = read_right(readings, [attributes] * 4)
    assert right[MAIN_ACCURACY].tolist() == [True, False, False, True]
    shares = {slot: hits.mean() for slot, hits in right.items()}
    assert (shares["other_finish"], shares["thing"], shares["colour"], shares["light"]) == (0.75, 0.75, 0.75, 1.0)
    assert read_right([], [])[MAIN_ACCURACY].shape == (0,)
