"""Bounds on the alignment of vectors against simulation."""

import math

import numpy as np
import pytest

from privproj import InvalidParameterError
from privproj.mechanisms.wishart import alignment


def test_mean_misalignment_bounds_simulation():
    rng = np.random.default_rng(4)
    records, bound = 20, 1.0
    worst, least = 0.0, math.inf
    for _ in range(2000):
        vectors = rng.standard_normal((records + 1, 5)) + 1.5
        vectors *= bound / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), bound)
        means = vectors[:-1].mean(axis=0), vectors[1:].mean(axis=0)
        norms = [np.linalg.norm(mean) for mean in means]
        least = min(least, *norms)
        worst = max(worst, 1 - means[0] @ means[1] / norms[0] / norms[1])
    assert worst <= alignment.mean_misalignment(bound, least, records)
    with pytest.raises(InvalidParameterError, match="norm_floor must be above"):
        alignment.mean_misalignment(1.0, 0.01, 10)


def test_preprocessed_misalignment_bounds_simulation():
    rng = np.random.default_rng(9)
    dim, gamma, m, beta = 400, 4.0, 0.8, 1e-2
    after = alignment.preprocessed_misalignment(m, gamma, dim, beta)
    first, second = np.zeros(dim), np.zeros(dim)
    first[0], second[0], second[1] = 1.0, 1 - m, math.sqrt(m * (2 - m))
    u = rng.standard_normal((5000, dim))
    u *= gamma / np.linalg.norm(u, axis=1, keepdims=True)
    a, b = first + u, second + u
    cosines = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert (cosines < 1 - after).mean() <= beta
    assert alignment.preprocessing_gain(m, gamma, dim, beta) == pytest.approx(m - after, rel=1e-12, abs=0)
    with pytest.raises(InvalidParameterError, match="gamma must be above"):
        alignment.preprocessed_misalignment(1e-4, gamma, dim, beta)
    printed = (1 - 0.2) / (1 + 0.2) * math.sqrt(2 / dim * math.log(8 / beta))
    with pytest.raises(InvalidParameterError):
        alignment.preprocessed_misalignment(m, 1.01 * printed, dim, beta)


def test_descent_condition_bounds_simulation():
    rng = np.random.default_rng(1)
    dim, rank, failure = 10, 400, 0.05
    factor = alignment.descent_condition(dim, rank, failure)
    spectra = [np.linalg.svd(rng.standard_normal((dim, rank)), compute_uv=False) for _ in range(500)]
    assert np.mean([(s[0] / s[-1]) ** 2 > factor for s in spectra]) <= 2 * failure
    with pytest.raises(InvalidParameterError, match="rank must be above"):
        alignment.descent_condition(100, 50, 0.1)
