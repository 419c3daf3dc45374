"""Special functions and Gaussian kernels against mpmath, and compiled kernels against plain ones."""

import math
import random

import mpmath as mp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from privproj.mechanisms.m2.beta_tail_kernels import beta_tail_epsilon
from privproj.numerics.interval import widen_outward
from privproj.numerics.jit import compile_kernel
from privproj.numerics.special import log_beta_tail
from privproj.profiles.gaussian import log_gaussian_delta, log_two_sided
from privproj.reference import special as reference

wide = st.floats(-6, 2).map(lambda x: 10.0**x)


@pytest.fixture(autouse=True)
def precision():
    with mp.workdps(40):
        yield


def log_error(log_value: float, truth: mp.mpf) -> float:
    """Return the error of a log relative to ``1 + |log|``."""
    exact = mp.log(truth)
    return abs(float(log_value - exact)) / (1 + abs(float(exact)))


@settings(max_examples=150, deadline=None)
@given(eps=wide, mu=wide)
def test_gaussian_kernels_match_mpmath(eps, mu):
    assume((eps / mu + mu) ** 2 < 3000)
    assert log_error(log_gaussian_delta(eps, mu), reference.gaussian_delta(eps, mu)) < 1e-13
    assert log_error(log_two_sided(eps, mu), reference.two_sided(eps, mu)) < 1e-13


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(1e-6, 30), reach=st.floats(0, 38))
def test_log_gaussian_delta_far_tail_within_margin(mu, reach):
    eps = mu * (reach + mu / 2)
    truth = mp.log(reference.gaussian_delta(eps, mu))
    low, high = widen_outward(log_gaussian_delta(eps, mu), steepness=mu * mu)
    assert low <= truth <= high
    assert high - low < 1e-10


@pytest.mark.parametrize("mu", [1e-100, 1e-8, 1e-3, 1.0, 50.0, 1e8, 1e100])
@pytest.mark.parametrize("eps", [0.0, 1e-100, 1e-8, 1.0, 1e4, 1e100])
def test_gaussian_kernels_at_extreme_arguments(eps, mu):
    for value in (log_gaussian_delta(eps, mu), log_two_sided(eps, mu)):
        assert value <= 0.0


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(3, 3000),
    share=st.floats(0, 1),
    deviations=st.floats(-3, 25),
)
def test_log_beta_tail_matches_mpmath(dim, share, deviations):
    rank = 1 + round(share * (dim - 2))
    a, b = rank / 2, (dim - rank) / 2
    x = 1 / (1 + math.exp(-(math.log(a / b) + deviations * math.sqrt(1 / a + 1 / b))))
    y = 1.0 - x
    assume(x > 1e-12 and y > 1e-9)
    assert log_error(log_beta_tail(a, b, x, y), reference.beta_tail(a, b, x)) < 1e-14


@pytest.mark.parametrize(("rank", "x"), [(1, 3e-5), (16, 1e-4), (1024, 0.0013), (500_000, 0.501), (999_999, 0.9999999)])
def test_log_beta_tail_in_dimension_one_million(rank, x):
    a, b = rank / 2, (10**6 - rank) / 2
    assert log_error(log_beta_tail(a, b, x, 1.0 - x), reference.beta_tail(a, b, x)) < 5e-13


def random_columns(rows):
    """Parameter columns of the Beta-tail bound."""
    draw = random.Random(7)
    dim = [draw.randint(40, 10**6) for _ in range(rows)]
    rank = [draw.randint(1, 39) for _ in dim]
    k = [draw.choice([1, 10, 30]) for _ in dim]
    mu = [10 ** draw.uniform(-1, 1) for _ in dim]
    delta = [10 ** draw.uniform(-12, -3) for _ in dim]
    return dim, rank, k, mu, delta


@pytest.mark.full
@pytest.mark.parametrize("sharp", [False, True])
def test_compiled_kernels_match_plain_kernels(sharp):
    d, r, k, mu, delta = map(np.array, random_columns(200))
    rows = np.stack([r / 2, (d - r) / 2, k, mu, np.log(delta)], 1).tolist()
    plain = [beta_tail_epsilon(*row, sharp) for row in rows]
    run = compile_kernel(beta_tail_epsilon)
    assert [run(*row, sharp) for row in rows] == pytest.approx(plain, rel=1e-10, abs=0)
