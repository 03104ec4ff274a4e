"""The Fréchet distance of Gaussians against closed forms."""

import numpy as np
import pytest

from underpaint.runtime.evaluation.quality import gaussian_distance


def gaussian(seed, width=6):
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((width, width))
    return rng.standard_normal(width), factor @ factor.T


def test_gaussians_with_one_covariance_are_as_far_apart_as_their_means():
    (mean_a, covariance), (mean_b, _) = gaussian(1), gaussian(2)
    distance = gaussian_distance(mean_a, covariance, mean_b, covariance)
    assert distance == pytest.approx(((mean_a - mean_b) ** 2).sum(), abs=1e-6)


def test_gaussians_that_share_axes_have_the_distance_of_their_deviations():
    mean, covariance = gaussian(3)
    _, axes = np.linalg.eigh(covariance)
    one, other = np.array([1.0, 2, 3, 4, 5, 6]), np.array([2.0, 2, 1, 0, 5, 9])
    distance = gaussian_distance(mean, (axes * one) @ axes.T, mean, (axes * other) @ axes.T)
    assert distance == pytest.approx(((np.sqrt(one) - np.sqrt(other)) ** 2).sum(), abs=1e-6)


def test_any_two_gaussians_by_the_root_of_the_product():
    linalg = pytest.importorskip("scipy.linalg")
    (mean_a, cov_a), (mean_b, cov_b) = gaussian(4), gaussian(5)
    root = linalg.sqrtm(cov_a @ cov_b).real
    expected = ((mean_a - mean_b) ** 2).sum() + np.trace(cov_a + cov_b - 2 * root)
    assert gaussian_distance(mean_a, cov_a, mean_b, cov_b) == pytest.approx(expected, abs=1e-6)


def test_features_of_two_networks_have_no_distance():
    with pytest.raises(ValueError, match="use one network"):
        gaussian_distance(np.zeros(2), np.eye(2), np.zeros(3), np.eye(3))
