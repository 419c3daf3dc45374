"""The best of a random number of runs: against exact selections of small mechanisms, the formula, and simulation."""

import itertools
import math
import random
from decimal import localcontext
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from helpers import full_if

from privproj import Gaussian, InvalidParameterError
from privproj.accounting.query import composition_of
from privproj.contrib.selection.selection import selection_curve, trial_distribution
from privproj.numerics.interval import Enclosure
from privproj.profiles.conversion import read_epsilon, read_log_delta
from privproj.profiles.rdp import BestCurve, RenyiCurve
from privproj.targets import delta_target

DISTRIBUTIONS = [("geometric", None), ("logarithmic", None), ("negative-binomial", -0.7), ("negative-binomial", 0.5),
        ("negative-binomial", 4.0), ("poisson", None)]  # fmt: skip


def gaussian_curve(z, bound="analytic", **run):
    """The curve of Gaussian noise."""
    return composition_of(Gaussian(noise_multiplier=z), bound, run).curve()


class PairCurve:
    """The exact profile of two finite laws, in both orders."""

    def __init__(self, p, q):
        self.orders = (p, q), (q, p)

    def log_delta(self, eps):
        found = max(
            sum(max(0.0, a - math.exp(min(eps, 700.0)) * b) for a, b in zip(*pair, strict=True)) for pair in self.orders
        )
        return Enclosure(-math.inf, math.log(found) + 1e-13 if found > 1e-15 else -40.0)

    def epsilon(self, log_delta):
        return Enclosure(-math.inf, next(e for e in np.arange(0.0, 60.0, 0.01) if self.log_delta(e).upper <= log_delta))


def generating_function(distribution):
    """``E x^K``, in closed form."""
    if distribution.shape is None:
        return lambda x: math.exp(distribution.expected * (x - 1.0))
    gamma, eta = distribution.gamma, distribution.shape
    if gamma == 1.0:
        return lambda x: x
    if eta == 0.0:
        return lambda x: math.log(1.0 - (1.0 - gamma) * x) / math.log(gamma)
    return lambda x: ((1.0 - (1.0 - gamma) * x) ** -eta - 1.0) / (gamma**-eta - 1.0)


def selected(p, scores, distribution):
    """The law of the output of the best run, where one of those with the same score is taken at random."""
    f = generating_function(distribution)
    total = {s: sum(a for a, other in zip(p, scores, strict=True) if other == s) for s in scores}
    below = {s: sum(mass for other, mass in total.items() if other < s) for s in scores}
    best = {s: f(below[s] + total[s]) - f(below[s]) for s in scores}
    return [f(0.0), *(a / total[s] * best[s] for a, s in zip(p, scores, strict=True))]


def pairs_of_distributions():
    """Randomized responses, and random laws with and without ties, with the scores of their outputs."""
    draw = random.Random(34)
    yield (0.75, 0.25), (0.25, 0.75), (0, 1)
    yield (0.6, 0.399, 0.001), (0.4, 0.5999, 0.0001), (2, 0, 1)
    for ties in (False, True, True, False):
        raw = [[draw.random() ** 3 + 1e-4 for _ in range(5)] for _ in range(2)]
        p, q = ([x / sum(row) for x in row] for row in raw)
        yield p, q, [draw.randrange(3) if ties else i for i in range(5)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("mean", [1.0, 1.5, 8.0, 60.0])
def test_selection_curve_covers_exact_finite_selections(distribution, mean):
    trials = trial_distribution(mean, *distribution)
    for p, q, scores in pairs_of_distributions():
        curve = selection_curve(PairCurve(p, q), trials)
        for order, eps in itertools.product(((p, q), (q, p)), (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 7.0)):
            a, b = (selected(one, scores, trials) for one in order)
            assert sum(a) == pytest.approx(1.0, rel=1e-9, abs=0)
            true = sum(max(0.0, x - math.exp(eps) * y) for x, y in zip(a, b, strict=True))
            assert true <= math.exp(curve.log_delta(eps).upper) * (1.0 + 1e-9) + 1e-13


@pytest.mark.parametrize("mean", [1.5, 8.0])
def test_poisson_renyi_curve_covers_exact_selections(mean):
    distribution = trial_distribution(mean, "poisson", None)
    for p, q, scores in pairs_of_distributions():
        both = [(p, q), (q, p)]

        def divergence(alpha, both=both):
            sums = [sum(a**alpha * b ** (1.0 - alpha) for a, b in zip(*pair, strict=True)) for pair in both]
            return math.log(max(sums)) / (alpha - 1.0)

        curve = selection_curve(RenyiCurve(divergence, high=40.0), distribution)
        for order, eps in itertools.product(both, (0.0, 0.5, 1.0, 2.0, 4.0)):
            a, b = (selected(one, scores, distribution) for one in order)
            true = sum(max(0.0, x - math.exp(eps) * y) for x, y in zip(a, b, strict=True))
            assert true <= math.exp(curve.log_delta(eps).upper) * (1.0 + 1e-9)


@pytest.mark.parametrize(
    "distribution", [distribution for distribution in DISTRIBUTIONS if distribution[1] != -0.7], ids=str
)
def test_epsilon_without_selection_cost_is_too_small(distribution):
    """The event that the largest of K noisy numbers is above a threshold refutes the epsilon of one run."""
    trials, eps, base = trial_distribution(10.0, *distribution), 1.0, gaussian_curve(1.0)
    f, normal = generating_function(trials), mpmath.ncdf
    true = max(
        (1.0 - f(float(normal(x - 1.0)))) - math.exp(eps) * (1.0 - f(float(normal(x))))
        for x in np.arange(0.0, 5.0, 0.1)
    )
    assert math.exp(base.log_delta(eps).upper) < 0.8 * true
    assert true <= math.exp(selection_curve(base, trials).log_delta(eps).upper)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("mean", [1.0, 2.5, 6.0])
def test_trial_distribution_has_requested_mean(distribution, mean):
    trials = trial_distribution(mean, *distribution)
    with localcontext() as context:
        context.prec = 40
        count = 60_000 if distribution[1] == -0.7 else 1000
        masses = [(k, float(p)) for k, p in itertools.islice(trials.probabilities(), count)]
    assert sum(p for _, p in masses) == pytest.approx(1.0, rel=1e-9, abs=0)
    assert sum(k * p for k, p in masses) == pytest.approx(mean, rel=1e-9, abs=0)
    assert trials.expected >= mean * (1.0 - 1e-12)
    for x in (0.1, 0.7, 0.95):
        assert sum(p * x**k for k, p in masses) == pytest.approx(generating_function(trials)(x), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:1] + DISTRIBUTIONS[-1:], ids=str)
def test_draw_and_best_score_follow_distribution(distribution):
    trials, n, rng = trial_distribution(6.0, *distribution), 4000, np.random.default_rng(34)
    counts = np.array([trials.draw(Fraction(2 * i + 1, 2 * n)) for i in range(n)])
    with localcontext() as context:
        context.prec = 40
        for k, p in itertools.islice(trials.probabilities(), 30):
            assert abs(np.mean(counts == k) - float(p)) <= 1.0 / n
    assert trials.draw(Fraction(2**160 - 1, 2**160)) > 30 and trials.draw(Fraction(0)) == (1 if trials.shape else 0)
    # The largest of K standard normal numbers is below 1.5 with probability f(Phi(1.5)).
    best = np.array([rng.normal(size=k).max(initial=-np.inf) for k in rng.permutation(counts)])
    expected = generating_function(trials)(float(mpmath.ncdf(1.5)))
    assert np.mean(best <= 1.5) == pytest.approx(expected, abs=4.0 * math.sqrt(expected * (1 - expected) / n), rel=0)


def mp_gaussian_delta(eps, mu=1):
    """The profile of Gaussian noise in mpmath."""
    half = mpmath.mpf(mu) / 2
    return mpmath.ncdf(half - eps / mu) - mpmath.exp(eps) * mpmath.ncdf(-half - eps / mu)


@pytest.mark.parametrize(("mean", "eta"), [(2, 0), (10, 1), (10, 0.5), (300, 1)])
def test_negative_binomial_curve_equals_formula(mean, eta):
    distribution = trial_distribution(mean, "negative-binomial", eta)
    curve = selection_curve(gaussian_curve(1.0), distribution)
    with mpmath.workdps(50):
        gamma, shape = mpmath.mpf(distribution.gamma), mpmath.mpf(eta)
        m = shape * (1 / gamma - 1) / (1 - gamma**shape) if eta else (1 / gamma - 1) / -mpmath.log(gamma)
        tau = mpmath.findroot(
            lambda e: mp_gaussian_delta(e) - gamma / (1 - gamma) * mpmath.expm1(e), (0.1, 2), "anderson"
        )
        for eps in (3.0, 6.0, 12.0):
            exact = mpmath.log(m * mp_gaussian_delta(eps - (1 + shape) * tau))
            assert 0 <= curve.log_delta(eps).upper - min(exact, 0) <= 1e-9


@pytest.mark.parametrize("mean", full_if([1.0, 3.0, 30.0], lambda mean: mean == 30.0))
def test_poisson_curve_equals_expectation_up_to_cell_width(mean):
    curve = selection_curve(gaussian_curve(1.0), trial_distribution(mean, "poisson", None))

    def expectation(eps, tau):
        c, lost = mpmath.expm1(tau), mean * mp_gaussian_delta(tau)

        def inner(x):
            return mpmath.exp(-x) * mp_gaussian_delta(eps + tau - lost - c * x)

        beyond = mpmath.exp(-mean) * mp_gaussian_delta(eps - lost - c * mean)
        return mean * (mpmath.quad(inner, [0, min(1, mean), min(4, mean), min(16, mean), mean]) + beyond)

    for eps in (4.0, 8.0, 16.0):
        least = min(expectation(eps, math.log1p(1 / (order - 1))) for order in (2, 3, 5, 9, 16, 32))
        found = math.exp(curve.log_delta(eps).upper)
        least = min(1, least, mean * mp_gaussian_delta(eps - mean * mp_gaussian_delta(0)))
        assert least <= found * (1 + 1e-9) and found <= 1.5 * least


@pytest.mark.parametrize(("z", "mean", "eta"), [(1.0, 2, 0.5), (4.0, 10, 1), (1.0, 100, 0), (20.0, 10, 3)])
def test_select_is_at_most_published_renyi_theorem(z, mean, eta):
    distribution, delta = trial_distribution(mean, "negative-binomial", eta), 1e-5
    orders = [1.0 + math.exp(s) for s in np.arange(-5.0, 8.0, 0.005)]
    rdp = {a: a / (2.0 * z * z) for a in orders}
    hat = min((1.0 - 1.0 / a) * rdp[a] + math.log(1.0 / distribution.gamma) / a for a in orders)
    published = min(
        rdp[a] + (1.0 + eta) * hat + (math.log(mean / delta) - math.log(a)) / (a - 1.0) + math.log1p(-1.0 / a)
        for a in orders
    )
    for bound in ("rdp", "analytic"):
        assert (
            read_epsilon(selection_curve(gaussian_curve(z, bound), distribution), delta_target(delta, None)).upper
            < published
        )


def test_poisson_renyi_curve_equals_published_theorem():
    z, mean = 2.0, 7.0
    curve = selection_curve(gaussian_curve(z, "rdp"), trial_distribution(mean, "poisson", None))
    orders = [1.0 + math.exp(s) for s in np.arange(-6.0, 8.0, 0.002)]
    for a in (1.5, 4.0, 20.0):
        tau = math.log1p(1.0 / (a - 1.0))
        shift = min((b - 1.0) * (b / (2 * z * z) - tau + math.log1p(-1.0 / b)) - math.log(b) for b in orders)
        published = a / (2 * z * z) + mean * math.exp(min(shift, 0.0)) + math.log(mean) / (a - 1.0)
        assert curve.divergence(a) == pytest.approx(published, rel=1e-6, abs=0)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_selection_cost_increases_with_trials(distribution):
    base = gaussian_curve(2.0)
    found = [
        read_epsilon(selection_curve(base, trial_distribution(mean, *distribution)), delta_target(1e-6, None)).upper
        for mean in (1.0, 1.1, 2.0, 10.0, 100.0)
    ]
    assert found == sorted(found)
    one = read_epsilon(base, delta_target(1e-6, None)).upper
    assert one <= found[0] and (distribution[0] == "poisson" or found[0] == pytest.approx(one, rel=1e-9, abs=0))


def test_negative_binomial_cost_increases_with_shape():
    base = gaussian_curve(2.0)
    found = [
        read_epsilon(
            selection_curve(base, trial_distribution(10.0, "negative-binomial", s)), delta_target(1e-6, None)
        ).upper
        for s in (-0.9, -0.5, 0.0, 0.5, 1.0, 3.0, 20.0)
    ]
    assert found == sorted(found)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
@pytest.mark.parametrize("bound", ["analytic", "rdp"])
def test_selection_epsilon_and_delta_are_inverse(distribution, bound):
    draw, tried = random.Random(7), 0
    for z in (0.4, 3.0, 50.0):
        curve = selection_curve(gaussian_curve(z, bound), trial_distribution(draw.uniform(1.0, 50.0), *distribution))
        for _ in range(2):
            target = delta_target(10.0 ** draw.uniform(-12, -1), None)
            eps = read_epsilon(curve, target).upper
            assert math.exp(read_log_delta(curve, eps).upper) <= target.delta
            back = math.exp(read_log_delta(curve, eps * draw.uniform(0.8, 1.2)).upper) * (1 + 1e-15)
            tried += back < 1.0
    assert tried


def test_selection_of_several_renyi_curves_is_elementwise():
    first, second = gaussian_curve(2.0, "rdp"), gaussian_curve(3.0, "rdp")
    distribution = trial_distribution(4.0, "poisson", None)
    both = selection_curve(BestCurve((first, second)), distribution)
    assert both.epsilon(-11.0).upper == selection_curve(second, distribution).epsilon(-11.0).upper


@pytest.mark.parametrize(
    "requested",
    [(0.5, "geometric", None), (math.nan, "poisson", None), (2, "binomial", None), (2, "geometric", 1.0),
     (2, "negative-binomial", None), (2, "negative-binomial", -1.0), (2, "negative-binomial", 1e-300),
     (1e9, "poisson", None)],
)  # fmt: skip
def test_invalid_trial_distribution_is_rejected(requested):
    with pytest.raises(InvalidParameterError):
        trial_distribution(*requested)
