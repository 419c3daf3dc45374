"""Profiles of Beta and Gamma squared sensitivities against ball arithmetic and at extreme parameters."""

import math
import random

import mpmath as mp
import pytest

from privproj.distributions import beta_gamma_kernels as shift_kernels
from privproj.distributions.beta_gamma_kernels import (
    BETA_GAMMA_KERNELS,
    beta_gamma_params,
    coordinate,
    log_tail_and_hazard,
    mixture_log_delta,
    point_at,
    rounding_of_tails,
)
from privproj.errors import ConvergenceError
from privproj.profiles.privacy_profile import profile_from_kernels
from privproj.reference import special as reference

FAR = [(5.0, math.inf), (0.5, math.inf), (0.5, 20.0), (1.5, 0.5), (1.0, 1.0), (8.0, 1016.0), (5e8, 5e8), (0.5, 5e8)]


@pytest.mark.parametrize("any_rank", [0.0, 1.0])
@pytest.mark.parametrize(("a", "b"), FAR)
@pytest.mark.parametrize("mu", [1e-6, 1e-3, 1.0, 30.0, 1e3, 1e6])
def test_mixture_ends_decrease_for_extreme_parameters(a, b, mu, any_rank):
    row = (a, b, mu * mu * (1.0 if b < math.inf else 1.0 / a), any_rank)
    last = 0.0
    for eps in (0.0, 1e-9, 1e-3, 0.1, 3.0, 1e3, 1e5):
        lower, upper = mixture_log_delta(eps, row)
        assert -math.inf <= lower <= upper <= 0.0
        assert lower <= last
        last = upper


@pytest.mark.parametrize("any_rank", [0.0, 1.0])
@pytest.mark.parametrize("log_delta", [-1e-3, -1.0, -30.0, -1e4, -1e6])
@pytest.mark.parametrize(("a", "b"), FAR)
def test_mixture_root_is_crossing_for_extreme_parameters(a, b, log_delta, any_rank):
    for mu in (1e-4, 1.0, 100.0):
        row = (a, b, mu * mu * (1.0 if b < math.inf else 1.0 / a), any_rank)
        try:
            lower, upper = profile_from_kernels(BETA_GAMMA_KERNELS, row).epsilon(log_delta)
        except ConvergenceError:  # so far out only
            assert log_delta <= -1e6
            continue
        assert 0.0 <= lower <= upper < math.inf
        assert mixture_log_delta(upper, row)[1] <= log_delta * (1.0 - 1e-12) + 1e-12
        assert lower == 0.0 or mixture_log_delta(lower, row)[0] >= log_delta * (1.0 + 1e-12) - 1e-12


@pytest.mark.parametrize(("a", "b"), FAR)
@pytest.mark.parametrize("deviations", [-3.0, -0.3, 0.0, 1.0, 4.0, 20.0])
def test_log_tail_in_dimensions_up_to_1e9(a, b, deviations):
    dist = beta_gamma_params((a, b, 1.0, 0.0))
    s = deviations * math.sqrt(1.0 / a + (0.0 if b == math.inf else 1.0 / b))
    growth, rise, _ = point_at(s, dist)
    log_tail, _ = log_tail_and_hazard(s, growth, rise, dist)
    error = 0.1 * rounding_of_tails(a, b)
    assert s > 10.0 or coordinate(dist[2] * growth / (1.0 + dist[3] * rise), dist) == pytest.approx(
        s, rel=1e-9, abs=1e-12
    )
    with mp.workdps(60):
        ratio = mp.exp(s)
        if b == math.inf:
            truth = mp.gammainc(a, a * ratio, mp.inf, regularized=True) if a < 1e6 else None
        elif a + b < 1e6:
            truth = reference.beta_tail(a, b, a * ratio / (a * ratio + b))
        else:
            density = lambda z: mp.exp(a * (z - mp.mpf(s)) - (a + b) * mp.log((a * mp.exp(z) + b) / (a * ratio + b)))  # noqa: E731
            scale = mp.sqrt(mp.mpf(1) / a + mp.mpf(1) / b)
            if b < 1e8 or a < 1e8:
                return
            places_of = [s + k * scale for k in range(0, 40, 2)]
            front = mp.log(a) * a + b * mp.log(b) - (a + b) * mp.log(a + b)
            beta = mp.loggamma(a) + mp.loggamma(b) - mp.loggamma(a + b)
            shape = a * mp.mpf(s) - (a + b) * mp.log((a * ratio + b) / (a + b))
            truth = mp.exp(front - beta + shape) * mp.quad(density, places_of)
        assert log_tail == pytest.approx(float(mp.log(truth)), rel=4e-15, abs=2e-13 + error)


@pytest.mark.parametrize("a", [1e9, 2.5e11])
@pytest.mark.parametrize("deviations", [-2.0, 1.0])
def test_log_tail_of_large_gamma_shape_matches_expansion(a, deviations):
    s = deviations / math.sqrt(a)
    dist = beta_gamma_params((a, math.inf, 1.0, 0.0))
    growth, rise, _ = point_at(s, dist)
    log_tail, _ = log_tail_and_hazard(s, growth, rise, dist)
    with mp.workdps(60):
        # Q(a, u) = erfc(eta sqrt(a/2))/2 + e^(-a eta^2/2)/sqrt(2 pi a) (1/(x - 1) - 1/eta) + O(1/a), x = u/a = e^s,
        # eta^2/2 = x - 1 - ln x (Temme 1979)
        x = mp.exp(mp.mpf(s))
        eta = mp.sign(x - 1) * mp.sqrt(2 * (x - 1 - mp.log(x)))
        rest = mp.exp(-a * eta**2 / 2) / mp.sqrt(2 * mp.pi * a) * (1 / (x - 1) - 1 / eta)
        truth = mp.log(mp.erfc(eta * mp.sqrt(mp.mpf(a) / 2)) / 2 + rest)
    assert log_tail == pytest.approx(float(truth), rel=1e-9)


@pytest.mark.parametrize("longer", [1.5, 3.0, 6.0])
def test_whole_integral_with_longer_step_is_wider(monkeypatch, longer):
    draw = random.Random(3)
    rows = []
    for _ in range(60):
        a, b, scale = (
            draw.choice([0.5, 1.0, 2.0, 8.0]),
            draw.choice([0.5, 1.0, 5.0, 100.0, math.inf]),
            10 ** draw.uniform(-1, 5),
        )
        mean = scale * (a if b == math.inf else a / (a + b))
        rows.append(((a, b, scale, 0.0), 0.5 * mean * draw.uniform(0.2, 4.0)))
    usual = [mixture_log_delta(eps, row) for row, eps in rows]
    for name in ("STEP_IN_WIDTHS", "LONGEST_STEP"):
        monkeypatch.setattr(shift_kernels, name, longer * getattr(shift_kernels, name))
    for (row, eps), (low, high) in zip(rows, usual, strict=True):
        lower, upper = mixture_log_delta(eps, row)
        assert lower <= high and low <= upper


def mean_profile(a, b, scale, eps):
    """``ln E[h_eps(scale B)]`` by mpmath, over the logit of B."""
    with mp.workdps(30):
        a, b, scale, eps = map(mp.mpf, (a, b, scale, eps))

        def missing(t):  # (1 - h) f, which is small where delta is near 1
            x = scale / (1 + mp.exp(-t))
            mu = mp.sqrt(x)
            u = eps / mu - mu / 2
            density = mp.exp(-a * mp.log1p(mp.exp(-t)) - b * mp.log1p(mp.exp(t))) / mp.beta(a, b)
            return (mp.ncdf(u) + mp.exp(eps) * mp.ncdf(-u - mu)) * density

        return mp.log1p(-mp.quad(missing, [mp.mpf(k) / 2 for k in range(-24, 121)]))


@pytest.mark.parametrize(
    ("a", "b", "z", "eps"),
    [
        # Two sums midway between each other agree here by the luck of a phase, and err.
        (5.0, 1.0, 0.016657803370045108, 117.44092874263464),
        pytest.param(5.0, 0.5, 0.0133958920927, 159.2917959, marks=pytest.mark.full),
        # The rise of h is narrow, in the far left of a law whose hill is at its right end.
        pytest.param(17.78141478754283, 1.0, 0.013798087693498, 723.6443230190972, marks=pytest.mark.full),
    ],
)
def test_mixture_ends_near_supremum_are_sound(a, b, z, eps):
    lower, upper = mixture_log_delta(eps, (a, b, 1.0 / z**2, 0.0))
    assert lower <= mean_profile(a, b, 1.0 / z**2, eps) <= upper
    assert upper - lower < 1e-11 * (1.0 - upper)
