"""Noise along one random direction: how far the truth is above the claim."""

import math

import numpy as np
import pytest

import privproj
from privproj import R1SMG, Refused


def claimed_noise(dim, delta):
    """The noise multiplier at which epsilon 1 at this delta is claimed."""
    found = privproj.sigma(R1SMG(dim=dim), epsilon=1.0, delta=delta, allow_refuted=True)
    return found.value


@pytest.mark.parametrize(("dim", "measured"), [(10, 0.18), (100, 0.97), (1000, 0.9999)])
def test_the_exact_likelihood_ratio_is_far_above_the_claim(dim, measured):
    z, count = claimed_noise(dim, 1e-5), 40_000
    assert z is not None
    rng = np.random.default_rng(dim)
    direction = rng.standard_normal((count, dim)) if dim <= 100 else None
    if direction is None:  # the first coordinate of a uniform direction is all that counts
        first = rng.standard_normal(count)
        cosine = first / np.sqrt(first**2 + rng.chisquare(dim - 1, count))
    else:
        cosine = direction[:, 0] / np.linalg.norm(direction, axis=1)
    # y = f + z g u has the density 2 phi(|y - f|/z)/z over the area |y - f|^(M-1) of its sphere; f' = f - e_1.
    near = (z * rng.standard_normal(count)) ** 2
    far = near + 2.0 * np.sqrt(near) * cosine + 1.0
    loss = (far - near) / (2.0 * z * z) + 0.5 * (dim - 1) * np.log(far / near)
    draws = np.maximum(-np.expm1(1.0 - loss), 0.0)
    assert draws.mean() == pytest.approx(measured, rel=0.05)
    assert draws.mean() - 5.0 * draws.std() / math.sqrt(count) > 1e4 * 1e-5


@pytest.mark.parametrize(("dim", "radius", "least"), [(10, 0.5, 0.05), (100, 0.9, 0.4)])
def test_a_ball_tells_neighbours_apart(dim, radius, least):
    z = claimed_noise(dim, 1e-5)
    assert z is not None
    # 2 Phi(t/z) - 1 - e^eps t^(M-1)/2 (C22)
    assert math.erf(radius / z / math.sqrt(2.0)) - 0.5 * math.e * radius ** (dim - 1) > least


def test_it_is_refused_by_name_of_what_is_sound():
    with pytest.raises(Refused, match="gaussian"):
        privproj.epsilon(R1SMG(dim=100, noise_multiplier=2.0), delta=1e-5)
    marked = privproj.epsilon(R1SMG(dim=100, noise_multiplier=2.0), delta=1e-5, allow_refuted=True)
    assert marked.side is privproj.Side.NONE and marked.outcome is privproj.Outcome.REFUSED
