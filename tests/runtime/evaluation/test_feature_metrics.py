"""FID, KID, the Inception score, precision and recall against closed forms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from underpaint.runtime.evaluation.metrics.features import (
    AdmReference,
    Moments,
    fid,
    gaussian_distance,
    inception_score,
    kid,
    precision_recall,
    read_adm_reference,
)
from underpaint.runtime.evaluation.quality import frechet_distance


def gaussian(seed, width=6):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((width, width))
    return rng.standard_normal(width), factor @ factor.T


def test_gaussians_with_one_covariance_are_as_far_apart_as_their_means():
    (mean_a, covariance), (mean_b, _) = gaussian(1), gaussian(2)
    found = gaussian_distance(mean_a, covariance, mean_b, covariance)
    assert found == pytest.approx(((mean_a - mean_b) ** 2).sum(), abs=1e-6)


def test_gaussians_that_share_axes_have_the_distance_of_their_deviations():
    mean, covariance = gaussian(3)
    _, axes = np.linalg.eigh(covariance)
    one, other = np.array([1.0, 2, 3, 4, 5, 6]), np.array([2.0, 2, 1, 0, 5, 9])
    found = gaussian_distance(mean, (axes * one) @ axes.T, mean, (axes * other) @ axes.T)
    assert found == pytest.approx(((np.sqrt(one) - np.sqrt(other)) ** 2).sum(), abs=1e-6)


def test_any_two_gaussians_by_the_root_of_the_product():
    linalg = pytest.importorskip("scipy.linalg")
    (mean_a, cov_a), (mean_b, cov_b) = gaussian(4), gaussian(5)
    root = linalg.sqrtm(cov_a @ cov_b).real
    wanted = ((mean_a - mean_b) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root)
    assert gaussian_distance(mean_a, cov_a, mean_b, cov_b) == pytest.approx(wanted, abs=1e-6)


def test_a_set_is_not_apart_from_itself():
    features = np.random.default_rng(6).standard_normal((200, 16))
    assert fid(Moments.of(features), Moments.of(features)) == pytest.approx(0.0, abs=1e-6)
    assert fid(Moments.of(features), Moments.of(features[::-1])) == pytest.approx(0.0, abs=1e-6)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_moments_of_parts_are_those_of_the_whole(seed, sizes):
    features = np.random.default_rng(seed).standard_normal((sum(sizes), 3)) * 10 + 100
    parts = np.split(features, np.cumsum(sizes)[:-1])
    found, whole = Moments.merged(Moments.of(part) for part in parts), Moments.of(features)
    assert found.count == whole.count
    np.testing.assert_allclose(found.mean, whole.mean, atol=1e-9)
    np.testing.assert_allclose(found.scatter, whole.scatter, atol=1e-6)
    if whole.count > 1:
        np.testing.assert_allclose(whole.covariance, np.cov(features, rowvar=False), atol=1e-9)


def test_the_two_ways_to_a_distance_agree():
    rng = np.random.default_rng(7)
    one, other = rng.standard_normal((40, 5)), rng.standard_normal((60, 5)) + 1
    assert fid(Moments.of(one), Moments.of(other)) == pytest.approx(frechet_distance(one, other), abs=1e-9)


def test_kid_is_the_sum_over_pairs():
    rng = np.random.default_rng(8)
    one, other = rng.standard_normal((7, 4)), rng.standard_normal((7, 4)) + 0.5

    def kernel(left, right):
        return (left @ right / 4 + 1) ** 3

    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    within = sum(kernel(one[i], one[j]) + kernel(other[i], other[j]) for i, j in pairs) / len(pairs)
    between = np.mean([[kernel(left, right) for right in other] for left in one])
    found = kid(one, other, subsets=3, size=7)
    assert found.mean == pytest.approx(within - 2 * between, abs=1e-9)
    assert found.deviation == pytest.approx(0.0, abs=1e-9)


def test_kid_of_one_distribution_is_zero_in_the_mean():
    rng = np.random.default_rng(9)
    one, other = rng.standard_normal((2000, 8)), rng.standard_normal((2000, 8))
    found = kid(one, other, subsets=50, size=200)
    assert abs(found.mean) < 0.01
    assert kid(one, other + 1.0, subsets=50, size=200).mean > 0.5


@pytest.mark.parametrize("classes", [2, 5, 1008])
def test_the_inception_score_of_certain_and_even_classes_is_their_number(classes):
    certain = np.eye(classes)[np.arange(4 * classes) % classes]
    assert inception_score(certain, splits=2) == pytest.approx((classes, 0.0), abs=1e-6)
    assert inception_score(np.full((20, classes), 1 / classes)) == pytest.approx((1.0, 0.0), abs=1e-6)


def test_precision_and_recall_of_sets_that_are_known():
    rng = np.random.default_rng(10)
    real = rng.standard_normal((1500, 3))
    assert precision_recall(real, real) == (1.0, 1.0)
    assert precision_recall(real + 100.0, real) == (0.0, 0.0)
    few = real[:4] * 1e-6  # all within the real ones' manifold, and covering none of it
    found = precision_recall(few, real)
    assert found.precision == 1.0
    assert found.recall < 0.01


def test_neighbours_are_the_nearest_others():
    real = np.array([[0.0], [1.0], [3.0], [7.0], [20.0]])
    # Balls out to the nearest other: [-1, 1], [0, 2], [1, 5], [3, 11], [7, 33].
    inside = np.array([[-1.0], [2.0], [5.0], [11.0], [33.0]])
    assert precision_recall(inside, real, neighbours=1).precision == 1.0
    outside = np.array([[-1.1], [33.1], [-2.0], [34.0], [40.0]])
    assert precision_recall(outside, real, neighbours=1).precision == 0.0


def test_adms_reference_is_read(tmp_path):
    mean, covariance = gaussian(11)
    np.savez(tmp_path / "reference.npz", mu=mean, sigma=covariance, mu_s=mean, sigma_s=covariance)
    found = read_adm_reference(tmp_path / "reference.npz")
    assert isinstance(found, AdmReference)
    features = np.random.default_rng(12).standard_normal((50, 6))
    ours = Moments.of(features)
    assert fid(ours, found) == gaussian_distance(ours.mean, ours.covariance, mean, covariance)


@pytest.mark.parametrize("held", [{"mu": np.zeros(3)}, {"mu": np.zeros(3), "sigma": np.zeros((2, 2))}])
def test_another_reference_is_refused(tmp_path, held):
    np.savez(tmp_path / "reference.npz", **held)
    with pytest.raises(ValueError, match=r"reference\.npz: expected"):
        read_adm_reference(tmp_path / "reference.npz")


def test_sets_that_are_too_small_are_refused():
    one = np.zeros((1, 3))
    for figure in (lambda: kid(one, one), lambda: precision_recall(one, one), lambda: inception_score(one)):
        with pytest.raises(ValueError, match="take"):
            figure()
    with pytest.raises(ValueError, match="two pictures or more"):
        fid(Moments.of(one), Moments.of(one))
    with pytest.raises(ValueError, match="use one network"):
        gaussian_distance(np.zeros(2), np.eye(2), np.zeros(3), np.eye(3))
