"""The Renyi conversion over columns: balls around the exact infimum, the scalar search, and what is left to it."""

import math

import mpmath as mp
import numpy as np
import pytest
from helpers import needs

from privproj import M2
from privproj.laws.mixture_kernels import MIXTURE_COLUMNS
from privproj.mechanisms.m2.mixture_rdp import columns, representation

ROWS = [(7, 1, 0.3, 0.4), (64, 4, 2.0, 0.1), (2048, 16, 1.0, 2.0), (12599, 64, 0.2, 30.0), (7730, 2, 0.344, 0.7)]
"""Dimension, rank, noise multiplier, epsilon."""


def row_of(dim, rank, noise):
    release = M2(dim=dim, rank=rank, noise_multiplier=noise)
    profile, row = columns(release, release.mu)
    assert profile is MIXTURE_COLUMNS
    return row


@pytest.mark.parametrize(("dim", "rank", "noise", "eps"), ROWS)
def test_the_infimum_over_orders_is_enclosed(dim, rank, noise, eps):
    a, n, mu = row_of(dim, rank, noise)
    lower, upper = MIXTURE_COLUMNS.log_delta(eps, (a, n, mu))
    with mp.workdps(40):

        def value(s):
            t = mp.exp(s)
            moment = mp.log(mp.hyp1f1(a, n, t * (1 + t) * mp.mpf(mu) ** 2 / 2))
            return moment - t * eps + t * mp.log(t) - (1 + t) * mp.log(1 + t)

        left, right = mp.mpf(-16), mp.mpf(12)
        while right - left > mp.mpf(10) ** -9:
            third = (right - left) / 3
            left, right = (left, right - third) if value(left + third) < value(right - third) else (left + third, right)
        exact = value((left + right) / 2)
    assert lower <= exact <= upper and upper - lower <= 3e-11 * (1.0 + abs(upper))


def test_rows_agree_with_the_scalar_search_and_invert():
    needs("numpy")
    rng = np.random.default_rng(4)
    for _ in range(12):
        dim, rank = int(np.exp(rng.uniform(2.0, 8.0))), int(rng.choice([1, 2, 4]))
        noise, eps = 10.0 ** rng.uniform(-0.5, 0.7), 10.0 ** rng.uniform(-2.0, 0.5)
        row, scalar = row_of(dim, rank, noise), representation(M2(dim=dim, rank=rank, noise_multiplier=noise))
        lower, upper = MIXTURE_COLUMNS.log_delta(eps, row)
        assert lower <= scalar.log_delta(eps).upper <= upper + 16.0 * (upper - lower)
        least, most = MIXTURE_COLUMNS.epsilon(upper, row)
        assert least <= eps * (1.0 + 1e-14) and most == pytest.approx(eps, rel=1e-8)
        assert MIXTURE_COLUMNS.log_delta(most, row)[1] <= upper


def test_what_needs_long_sums_or_is_nearly_one_is_left_to_the_scalar_search():
    assert MIXTURE_COLUMNS.log_delta(29.0, row_of(10, 9, 5.1)) == (-math.inf, math.inf)
    for noise in (0.08, 0.13, 0.14, 0.15, 0.18):
        row = row_of(6, 5, noise)
        lower, upper = MIXTURE_COLUMNS.log_delta(1.0, row)
        scalar = representation(M2(dim=6, rank=5, noise_multiplier=noise)).log_delta(1.0).upper
        assert upper == math.inf or lower <= scalar <= upper + 16.0 * (upper - lower)
    assert MIXTURE_COLUMNS.log_delta(1.0, row_of(6, 5, 0.08))[1] == 0.0


def test_layers_of_several_shapes_and_unprojected_ones_have_no_row():
    assert columns(M2(dim=8, rank=8, noise_multiplier=1.0), 1.0) is None
