"""One mu for a curve: it holds at every epsilon up to the slack, and is nearly the smallest."""

import math

import mpmath
import pytest
from helpers import full_if
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj import M2, Gaussian, Laplace, Wishart
from privproj.accounting.gdp import _edge_mu, _mu_above, fit_gaussian
from privproj.accounting.query import composition_of
from privproj.profiles.gaussian import gaussian_profile, log_gaussian_delta
from privproj.profiles.tradeoff import tradeoff
from privproj.targets import delta_target

CASES = {
    "m2": (M2(dim=256, rank=16, noise_multiplier=0.3), {}),
    "loud m2": (M2(dim=64, rank=2, noise_multiplier=0.05), {}),
    "laplace": (Laplace(noise_multiplier=1.5), {}),
    "wishart": (Wishart(dim=100, rank=8, misalignment=1e-4), {}),
    "sampled once": (Gaussian(noise_multiplier=0.6), {"sampling_rate": 0.02}),
    "run": (Gaussian(noise_multiplier=0.8), {"steps": 60, "sampling_rate": 0.02}),
    "m2 run": (M2(dim=128, rank=8, noise_multiplier=0.3), {"steps": 40, "sampling_rate": 0.05}),
    "zcdp": (Gaussian(noise_multiplier=2.0), {"bound": "zcdp"}),
}
COSTLY = ("wishart", "m2 run")

CONVEX = full_if([name for name in CASES if name != "zcdp"], lambda name: name in COSTLY)
ALL = full_if(CASES, lambda name: name in COSTLY)


def curve_of(name):
    mechanism, run = CASES[name]
    return composition_of(mechanism, run.get("bound"), {k: v for k, v in run.items() if k != "bound"}).curve()


def slack(delta):
    return delta_target(delta, None)


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_delta_is_covered_at_every_epsilon(name, delta):
    curve = curve_of(name)
    mu = fit_gaussian(curve, slack(delta)).mu
    for i in range(60):
        eps = 12.0 * (i / 59) ** 2
        covered = max(log_gaussian_delta(eps, mu), math.log(delta))
        # Where the curve is only known to lie between two ends, the hull of its points may lie between them too.
        ends = curve.log_delta(eps)
        known = ends.upper - ends.lower < 1e-6
        assert (ends.upper if known else ends.lower) <= covered + 1e-9


@pytest.mark.full
@pytest.mark.parametrize("name", CONVEX)
def test_no_much_smaller_mu_would_do(name):
    curve = curve_of(name)
    found = fit_gaussian(curve, slack(1e-7))
    smaller = 0.95 * found.mu
    epsilons = [0.0, *(math.exp(-6.0 + 0.1 * i) for i in range(106))]
    ends = [(eps, curve.log_delta(eps).upper) for eps in epsilons]
    assert any(end > max(log_gaussian_delta(eps, smaller), math.log(1e-7)) for eps, end in ends)


@pytest.mark.parametrize("name", ALL)
def test_trade_off_function_lies_above_that_of_mu(name):
    curve, delta = curve_of(name), 1e-6
    found = fit_gaussian(curve, slack(delta))
    rates = [*(10.0 ** (-8.0 + 0.4 * i) for i in range(20)), 0.3, 0.6, 0.9, 0.99]
    for rate, miss in zip(rates, tradeoff(curve, rates), strict=True):
        mirrored = float(mpmath.ncdf(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(rate)) - found.mu))
        # The search for the best epsilon may stop 1e-9 short of it.
        assert miss >= mirrored - delta - 1e-9
        if min(rate, mirrored) >= found.least_rate:
            assert miss >= mirrored * (1 - 1e-4) - 1e-9


@settings(max_examples=15, deadline=None)
@given(st.floats(0.3, 20.0), st.sampled_from([1e-3, 1e-9, None]))
def test_mu_of_laplace_noise_covers_it_at_fifty_digits(noise, delta):
    curve = composition_of(Laplace(noise_multiplier=noise), None, {}).curve()
    mu = fit_gaussian(curve, delta and slack(delta)).mu
    with mpmath.workdps(50):
        top, m = 1 / mpmath.mpf(noise), mpmath.mpf(mu)
        # delta(eps) = 1 - e^((eps - 1/z)/2), and G = Phi(m/2 - eps/m) - e^eps Phi(-m/2 - eps/m)
        for i in range(40):
            eps = top * i / 40
            gaussian = mpmath.ncdf(m / 2 - eps / m) - mpmath.exp(eps) * mpmath.ncdf(-m / 2 - eps / m)
            assert -mpmath.expm1((eps - top) / 2) <= gaussian
        # A release with epsilon alone is mu-GDP at -2 Phi^-1(1/(1 + e^eps)).
        worst = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(top / 2))
        assert m <= worst * (1 + mpmath.mpf("1e-9"))


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-4, 1e-30])
def test_of_gaussian_it_is_its_own(mu, delta):
    found = fit_gaussian(gaussian_profile(mu), slack(delta))
    assert mu <= found.mu * (1 + 1e-12) and found.mu <= mu * (1 + 2e-4)
    assert found.regret <= 0.01


def test_last_false_positive_rate_starts_the_slack():
    curve = curve_of("m2")
    found, last = fit_gaussian(curve, slack(1e-6)), curve.epsilon(math.log(1e-6)).upper
    mu = found.mu
    exact = float(mpmath.ncdf(-mu / 2 - last / mu))
    assert exact <= found.least_rate <= exact * (1 + 1e-6)
    assert fit_gaussian(curve_of("laplace"), slack(1e-6)).least_rate == 0.0


@pytest.mark.parametrize("name", ALL)
def test_regret_is_above_every_gap(name):
    curve = curve_of(name)
    found = fit_gaussian(curve, slack(1e-5))
    gaps = []
    for i in range(60):
        eps = 10.0 * (i / 59) ** 2
        ends = curve.log_delta(eps)
        gap = math.exp(log_gaussian_delta(eps, found.mu)) - math.exp(ends.upper)
        gaps.append(gap / (1.0 + math.exp(eps)))
    assert max(gaps) <= found.regret + 1e-9
    assert found.regret <= max(gaps) + 2e-3 or name == "zcdp"


def test_larger_slack_needs_no_larger_mu():
    curve = curve_of("run")
    found = [fit_gaussian(curve, slack(delta)).mu for delta in (1e-3, 1e-9)]
    assert found[0] <= found[1] * (1 + 1e-3)
    assert fit_gaussian(curve, slack(0.9)).mu == 0.0


def test_vacuous_curve_has_no_mu():
    found = fit_gaussian(gaussian_profile(60.0), slack(1e-9))
    assert found.mu == math.inf
    assert fit_gaussian(gaussian_profile(1.0), None).mu == math.inf


@given(st.floats(0.05, 5.0), st.floats(0.0, 3.0), st.floats(0.01, 2.0), st.floats(0.1, 1.0))
def test_edge_lies_below_profile_of_its_mu(mu, eps, width, share):
    # Two points, the second of which is as far below the profile of mu as share says.
    low = (eps, log_gaussian_delta(eps, mu))
    high = (eps + width, log_gaussian_delta(eps + width, mu) + math.log(share))
    found = _edge_mu(low, high, max(_mu_above(*low), _mu_above(*high)))
    (t, top), (u, bottom) = ((math.exp(e), math.exp(d)) for e, d in (low, high))
    for i in range(101):
        x = t + (u - t) * i / 100
        edge = top + (bottom - top) * i / 100
        assert edge <= math.exp(log_gaussian_delta(math.log(x), found)) * (1 + 1e-9)
