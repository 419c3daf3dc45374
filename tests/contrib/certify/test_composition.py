"""A run in balls: each step of its proof at releases that are known exactly, and whole runs against mpmath."""

import itertools
import math
from dataclasses import dataclass, replace

import mpmath as mp
import numpy as np
import pytest
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import arb, ctx  # noqa: E402
from reference import runs  # noqa: E402

from privproj.contrib.certify.certificate import prove_run  # noqa: E402
from privproj.contrib.certify.composition import (  # noqa: E402
    BallPair,
    BallPhase,
    ComposedDistribution,
    Grid,
    Knot,
    RunInBalls,
    Window,
    _excesses_at,
    pair_above,
    pair_below,
)
from privproj.contrib.certify.profiles import BallGaussianProfile  # noqa: E402
from privproj.reference import composition as one_release  # noqa: E402
from privproj.reference.special import gaussian_delta  # noqa: E402
from privproj.schedule import from_data  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def many_digits():
    """Balls are read without rounding."""
    with mp.workdps(60):
        yield


def number(ball):
    """An exact ball as a number of mpmath."""
    assert ball.is_exact()
    mantissa, exponent = ball.man_exp()
    return mp.ldexp(int(mantissa), int(exponent))


def hockey_stick(masses, t):
    """``H(t)`` of a pair of discrete laws; a list of pairs ``(p, q)``."""
    return mp.fsum(max(p - t * q, mp.mpf(0)) for p, q in masses)


@dataclass(frozen=True)
class Discrete:
    """Releases of a pair of discrete laws, whose excess is known up to a relative and an absolute slack."""

    masses: tuple
    steps: int
    one_sided: bool
    slack: float = 0.0

    def excess(self, cell, h):
        t = (cell * h).exp()
        value = sum(((arb(p) - t * arb(q)).max(arb(0)) for p, q in self.masses), arb(0)) - (1 - t).max(arb(0))
        # Each cell knows more or less.
        low, high = (arb(self.slack) * ((factor * cell) % 4) / 4 for factor in (7, 5))
        return (value * (1 - low)).lower(), (value * (1 + high) + high**3).upper()

    def truth(self, eps, others=()):
        """Delta of the run and of further ones, by enumeration: the larger of both orders."""
        orders = []
        for turn in (1, -1) if self.one_sided or any(other.one_sided for other in others) else (1,):
            parts = [[pair[::turn] for pair in phase.masses] for phase in (self, *others) for _ in range(phase.steps)]
            with mp.workdps(60):
                product = [tuple(map(mp.fprod, zip(*found, strict=True))) for found in itertools.product(*parts)]
                orders.append(hockey_stick(product, mp.exp(mp.mpf(eps))))
        return max(orders)


def discrete(weights, one_sided, steps, slack=0.0):
    """A pair of laws with masses proportional to whole numbers, in sixteenths of a power of two: exact doubles."""
    p, q = ([max(0, w) for w in column] for column in zip(*weights, strict=True))
    p[0], q[-1] = p[0] + 1, q[-1] + 1
    # The last mass brings each sum to a power of two.
    size = 1 << max(sum(p), sum(q)).bit_length()
    p[-1] += size - sum(p)
    q[0] += size - sum(q)
    masses = [(x / size, y / size) for x, y in zip(p, q, strict=True)]
    if not one_sided:
        masses = [(x / 2, y / 2) for x, y in [*masses, *((y, x) for x, y in masses)]]
    return Discrete(tuple(masses), steps, one_sided, slack)


releases = st.builds(
    discrete,
    st.lists(st.tuples(st.integers(-5, 40), st.integers(-5, 40)), min_size=2, max_size=3),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from([0.0, 1e-9, 1e-3, 0.05]),
)
cells = st.lists(st.integers(-40, 40), min_size=2, max_size=30).map(lambda found: tuple(sorted({-41, 0, 41, *found})))
cells = st.one_of(cells, st.integers(1, 5).map(lambda gap: tuple(range(-40 * gap, 41 * gap, gap))))
orders = st.floats(-3.0, 2.0).map(lambda x: 10.0**x)
windows = st.builds(Window, st.integers(-120, 60), st.integers(2, 150), orders, orders)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(releases, cells), min_size=1, max_size=2), st.sampled_from([0.02, 0.125, 0.9]), windows,
       windows, st.integers(0, 80), st.floats(0.0, 1.0), st.sampled_from([64, 128]))  # fmt: skip
def test_every_grid_encloses_truth(phases, step, one, two, place, part, bits):
    """Any knots, any window (aliasing, or none of the mass inside), any order of Chernoff's bound, any precision."""
    given_phases = [phase for phase, _ in phases]
    both = any(phase.one_sided for phase in given_phases)
    with ctx.workprec(bits):
        found = RunInBalls(given_phases, Grid(step, tuple(c for _, c in phases), (one, two) if both else (one,)))
        for eps in (0.0, place * step, (place + part) * step):
            truth = given_phases[0].truth(eps, given_phases[1:])
            assert number(found.lower(eps)) <= truth * (1 + mp.mpf(10) ** -40)
            assert truth * (1 - mp.mpf(10) ** -40) <= number(found.upper(eps)) <= 1


@settings(max_examples=60, deadline=None)
@given(releases, cells, st.sampled_from([0.02, 0.125]), st.lists(st.floats(-6.0, 6.0), min_size=5, max_size=20),
       st.sampled_from([16, 24, 96]))  # fmt: skip
def test_pair_above_dominates_and_pair_below_never(phase, places, step, logs, bits):
    with ctx.workprec(bits):
        h = arb(step)
        knots = []
        for cell in places:
            low, high = phase.excess(cell, h)
            t = (cell * h).exp()
            plain = (1 - t).max(arb(0))
            knots.append(Knot(cell, t, (low.max(arb(0)) + plain).lower(), (high + plain).min(arb(1)).upper()))
        above, below = pair_above(knots), pair_below(knots)
    for t in (
        [mp.exp(x) for x in logs] + [mp.exp(mp.mpf(step) * cell) for cell in places] + [mp.mpf(0), mp.mpf(10) ** 9]
    ):
        exact = hockey_stick(phase.masses, t)
        assert profile_of(above, step, t) + number(above.rest) >= exact - mp.mpf(10) ** -25
        assert below is None or profile_of(below, step, t) <= exact + number(below.rest) + mp.mpf(10) ** -25


def profile_of(pair, step, t):
    """The profile of the finite part of a pair."""
    places = [mp.exp(mp.mpf(step) * cell) for cell in pair.cells]
    return mp.fsum(number(p) * (1 - t / at) for p, at in zip(pair.masses, places, strict=True) if at > t)


@pytest.mark.parametrize("slack", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("bits", [16, 24, 160])
@pytest.mark.parametrize("turn", [1, -1])
def test_matching_grid_gives_exact_delta(turn, bits, slack):
    """With losses on the grid and knots at each cell, the upper bound differs by rounding and slack only."""
    h, steps = 0.05, 3
    one, two = math.exp(-20 * h), math.exp(25 * h)
    # 0.3 of P at the loss -5 h, 0.4 at 10 h; p and q at the losses -20 h and 25 h: p + q = 0.3, p/one + q/two = rest
    rest = 1 - 0.3 * math.exp(5 * h) - 0.4 * math.exp(-10 * h)
    p = (rest - 0.3 / two) / (1 / one - 1 / two)
    masses = [(p, p / one), (0.3, 0.3 * math.exp(5 * h)), (0.4, 0.4 * math.exp(-10 * h)), (0.3 - p, (0.3 - p) / two)]
    phase = Discrete(tuple(pair[::turn] for pair in masses), steps, one_sided=True, slack=slack)
    with ctx.workprec(bits):
        window = Window(-512, 1024, 40.0, 40.0)
        # As two phases of the same release.
        parts = [replace(phase, steps=1), replace(phase, steps=steps - 1)]
        found = RunInBalls(parts, Grid(h, (tuple(range(-60, 61)),) * 2, (window, window)))
        ends = [(eps, found.lower(eps), found.upper(eps)) for eps in (0.0, 0.3, 0.71, 2.0)]
    for eps, low, high in ends:
        truth = phase.truth(eps)
        # The masses of P and of Q sum to 1 up to rounding.
        assert number(low) * (1 - 1e-14) <= truth <= number(high) * (1 + 1e-14)
        if bits == 160 and slack == 0.0:
            assert number(high) <= truth * (1 + mp.mpf(10) ** -10) and number(low) >= truth / 2


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.integers(-6, 6), st.integers(1, 60), min_size=2, max_size=4), st.integers(1, 3),
       st.integers(-2, 8), st.integers(-2, 8), st.sampled_from([2.0, 60.0]), st.integers(0, 18), st.booleans(),
       st.sampled_from([0.0, 0.0, 2.0**-7]))  # fmt: skip
def test_window_encloses_composed_grid_masses(weights, steps, left, right, order, place, between, rest):
    """The masses of a pair are given: what is left to bound is the window, at orders at which Chernoff is sharp."""
    # So many cells of the support lie outside of the window on either side.
    part, first, end = 0.3 * between, steps * min(weights) + left, steps * max(weights) + 1 - right
    size = max(2, end - first)
    step, found = 0.25, object.__new__(RunInBalls)
    found.bits = 128
    masses = {cell: weight / 128 for cell, weight in sorted(weights.items())}
    eps = (place + part) * step
    with ctx.workprec(128):
        pair = BallPair(tuple(masses), tuple(map(arb, masses.values())), arb(rest))
        found.above = found.below = [ComposedDistribution([(pair, steps)], step, Window(first, size, order, order))]
        lower, upper = number(found.lower(eps)), number(found.upper(eps))
    exact = mp.mpf(0)
    for parts in itertools.product(masses.items(), repeat=steps):
        total = sum(cell for cell, _ in parts) * step
        exact += mp.fprod(p for _, p in parts) * max(0, 1 - mp.exp(mp.mpf(eps) - total))
    # From above the rest is a mass at infinity of each release; from below the release has so much besides.
    whole, rest = mp.mpf(sum(masses.values())), mp.mpf(rest)
    assert min(mp.mpf(1), exact + (whole + rest) ** steps - whole**steps) <= upper
    assert lower <= max(mp.mpf(0), exact - ((1 + rest) ** steps - 1))


@pytest.mark.parametrize("first", [-12, -6, 0])
def test_mass_before_window_is_not_in_lower_bound(first):
    """Losses -4 h and 4 h: what lies before the window is wrapped to its end, as if it were a large loss."""
    h = 0.125
    p = 1 / (1 + math.exp(-4 * h))
    phase = Discrete(((p, 1 - p), (1 - p, p)), 2, one_sided=False)
    with ctx.workprec(128):
        found = RunInBalls([phase], Grid(h, (tuple(range(-30, 31)),), (Window(first, 50, 8.0, 8.0),)))
        low, high = number(found.lower(0.0)), number(found.upper(0.0))
    truth = phase.truth(0.0)
    assert low <= truth * (1 + 1e-14) and truth * (1 - 1e-14) <= high
    assert first > -12 or low > 0.5 * truth


@pytest.mark.parametrize("steps", [1, 3])
def test_mass_at_infinity_counts_in_every_release(steps):
    """An eighth of P has no counterpart in Q, so that delta is about the chance that it shows in any release."""
    phase = Discrete(((0.125, 0.0), (0.875, 0.875), (0.0, 0.125)), steps, one_sided=False)
    window = Window(-64, 128, 4.0, 4.0)
    with ctx.workprec(128):
        found = RunInBalls([phase], Grid(0.125, (tuple(range(-60, 61)),), (window,)))
        for eps in (0.0, 2.0):
            assert phase.truth(eps) <= number(found.upper(eps))


def test_balls_that_are_too_wide_prove_nothing():
    """Knots that the precision cannot tell apart: no number of the pair is finite."""
    window = Window(1 << 40, 2, 1e6, 1e6)
    with ctx.workprec(128):
        phase = BallPhase(BallGaussianProfile(1e-3), 10**15, 0.01, one_sided=True)
        found = RunInBalls([phase], Grid(1e-300, ((-1, 0, 1),), (window, window)))
        assert all(number(found.upper(eps)) == 1 and number(found.lower(eps)) == 0 for eps in (0.0, 1.0, 1e9))


@settings(max_examples=25, deadline=None)
@given(st.floats(-1, 1), st.floats(-4, 0), st.booleans(), st.integers(-300, 300))
def test_excess_of_sampled_release_is_that_of_its_densities(log_z, log_q, one_sided, cell):
    z, q, step = 10.0**log_z, 10.0**log_q, 0.01
    with ctx.workprec(128):
        phase = BallPhase(BallGaussianProfile(z), 1, q, one_sided)
        [(_, ends)] = _excesses_at(phase, [cell], arb(step))
        low, high = number(ends[0].lower()), number(ends[1].upper())
    with mp.workdps(40):
        t, excess = mp.exp(mp.mpf(step) * cell), None
        mu, rate = 1 / mp.mpf(z), mp.mpf(q)
        if cell < 0 and not one_sided:
            excess = t * rate * gaussian_delta(mp.log1p((1 / t - 1) / rate), mu)
        elif 1 + (t - 1) / rate <= 0:
            excess = mp.mpf(0)
        else:
            # H = (1-q) Q + q P - t Q integrated where it is positive: beyond u with e^(mu u - mu^2/2) = 1 + (t-1)/q
            u = mp.log(1 + (t - 1) / rate) / mu + mu / 2
            value = rate * mp.ncdf(mu - u) + (1 - rate - t) * mp.ncdf(-u)
            excess = value - max(mp.mpf(0), 1 - t)
        slack = mp.mpf(10) ** -30
        assert low - slack <= excess <= high + slack
        assert high - low <= slack


GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 1.0, "bound": "analytic"}
SGD = GAUSSIAN | {"sampling_rate": 0.01, "steps": 1000}
COARSE = GAUSSIAN | {"sampling_rate": 0.2, "steps": 10}
RANK_ONE = {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": 1.0, "bound": "exact-rank1", "steps": 20}
PUBLIC = {"mechanism": "sketch-public", "rank": 8, "noise_multiplier": 2.0, "bound": "exact-rank1", "steps": 20}


def sampled(mu, q, steps):
    """The larger of both orders of a sampled Gaussian run."""
    return lambda eps: largest(
        eps, *([(runs.poisson_gaussian_moments(mu, q, add=add), steps)] for add in (False, True))
    )


def largest(eps, *orders):
    """The largest delta of several orders; an order whose losses end below eps has none."""
    found = []
    for order in orders:
        try:
            found.append(runs.run_delta(order, eps))
        except ArithmeticError:
            found.append(mp.mpf(0))
    assert found[0] > 0
    return max(found)


def plain(release, steps):
    """A run whose orders are alike."""
    return lambda eps: runs.run_delta([(release, steps)], eps)


def two_kinds(eps):
    """Sampled Gaussian releases, and M2 on the whole dataset."""
    both = (
        [(runs.poisson_gaussian_moments(1, 0.05, add=add), 100), (runs.m2_moments(64, 4, 0.5), 10)]
        for add in (False, True)
    )
    return largest(eps, *both)


KINDS = [GAUSSIAN | {"sampling_rate": 0.05, "steps": 100}, RANK_ONE | {"noise_multiplier": 2.0, "steps": 10}]
FIXED = GAUSSIAN | {"sampling_rate": 0.1, "sampling": "fixed", "steps": 100}
M2_SAMPLED = {"mechanism": "m2", "dim": 16, "rank": 4, "noise_multiplier": 0.7, "bound": "exact-rank1"}
M2_SAMPLED |= {"sampling_rate": 0.1, "steps": 60}
LAPLACE = {"mechanism": "laplace", "noise_multiplier": 5.0, "steps": 50}
LESS = {"relation": "replace"}
TRUTHS = {
    "Laplace": ([LAPLACE], {}, 1e-6, lambda eps: runs.laplace_run_delta(mp.mpf(1) / 5, 50, eps)),
    "M2": ([RANK_ONE], {}, 1e-5, plain(runs.m2_moments(64, 4, 1), 20)),
    "public sketch": ([PUBLIC], {}, 1e-5, plain(runs.public_sketch_moments(8, 0.5), 20)),
    "DP-SGD": ([SGD], {}, 1e-5, sampled(1, 0.01, 1000)),
    "DP-SGD, delta 1e-30": ([SGD], {}, 1e-30, sampled(1, 0.01, 1000)),
    "DP-SGD, large delta": ([SGD], {}, 0.05, sampled(1, 0.01, 1000)),
    "few large steps": ([COARSE], {}, 1e-5, sampled(1, 0.2, 10)),
    "two kinds": (KINDS, {}, 1e-5, two_kinds),
    "fixed batches": ([FIXED], LESS, 1e-5, plain(runs.fixed_gaussian_moments(1, 0.1), 100)),
    "M2, sampled": ([M2_SAMPLED], {}, 1e-5,
        lambda eps: largest(eps, *([(runs.poisson_m2_moments(16, 4, 1 / 0.7, 0.1, add=a), 60)] for a in (0, 1)))),
}  # fmt: skip
"""Phases, what holds for all, a target, and delta of the run by other mathematics."""
LEVELS = {"Laplace": (), "M2": (pytest.mark.full,), "public sketch": (pytest.mark.full,), "DP-SGD": (pytest.mark.full,)}
"""Marks of the quick ones and of those of the full run; the others are slow."""
ABOVE, BELOW = 0.01, 0.4
"""How far the certified ends of delta may be from the truth, relative: the upper end is the one that is tight."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=LEVELS.get(n, (pytest.mark.slow,))) for n in TRUTHS])
def test_truth_by_another_way_lies_within_certified_ends(name):
    phases, common, delta, truth = TRUTHS[name]
    schedule = from_data({"phase": phases, **common})
    eps = schedule.epsilon(delta=delta).value
    proof, _ = prove_run(schedule.phases, math.log(delta), eps)
    lower, upper, exact = number(proof.lower(eps)), number(proof.upper(eps)), truth(eps)
    assert exact * (1 - BELOW) <= lower <= exact * (1 + mp.mpf(10) ** -12)
    assert exact * (1 - mp.mpf(10) ** -12) <= upper <= exact * (1 + ABOVE)


@pytest.mark.parametrize(("rate", "eps"), [(0.01, 1e-9), (0.7, 0.01), (1.0, 3.0)])
def test_one_release_is_enclosed_by_its_closed_form(rate, eps):
    phase = BallPhase(BallGaussianProfile(1.0), 1, rate, one_sided=rate < 1)
    window = Window(-3000, 1 << 13, 4.0, 4.0)
    knots = tuple(sorted({*range(-3000, 3000, 5), 0}))
    with ctx.workprec(128):
        found = RunInBalls([phase], Grid(0.005, (knots,), (window, window) if rate < 1 else (window,)))
        lower, upper = number(found.lower(eps)), number(found.upper(eps))

    def profile(x):
        return gaussian_delta(x, 1) if x >= 0 else 1 - mp.exp(x) * (1 - gaussian_delta(-x, 1))

    exact = one_release.poisson_delta(profile, eps, rate)
    assert lower <= exact <= upper <= exact * 1.01


@pytest.mark.parametrize(
    "gamma", [pytest.param(5.0, marks=pytest.mark.full), pytest.param(200.0, marks=pytest.mark.slow)]
)
def test_run_of_secret_sketches_is_bounded_in_both_orders(gamma):
    """The bound takes the larger order at each epsilon, so that only its upper end speaks of either."""
    sketch = {"mechanism": "sketch", "rank": 8, "gamma": gamma, "bound": "exact-rank1", "steps": 10}
    schedule = from_data({"phase": [sketch]})
    eps = schedule.epsilon(delta=1e-5).value
    upper = number(prove_run(schedule.phases, math.log(1e-5), eps)[0].upper(eps))
    orders = [runs.run_delta([(runs.secret_sketch_moments(8, gamma, grows=g), 10)], eps) for g in (True, False)]
    assert max(orders) <= upper <= 3 * max(orders)


@pytest.mark.parametrize(("steps", "cell"), [(2, 0.02), pytest.param(3, 0.08, marks=pytest.mark.full)])
def test_runs_of_fixed_batches_are_those_of_mirrored_profile(steps, cell):
    """The pair of the bound is cut into masses that dominate it, and into masses that it dominates: enumerated."""
    q, eps = 0.3, 0.4
    window = Window(-1024, 1 << 11, 8.0, 8.0)
    with ctx.workprec(128):
        phase = BallPhase(BallGaussianProfile(1.0), steps, q)
        found = RunInBalls([phase], Grid(0.01, (tuple(range(-500, 501, 4)),), (window,)))
        lower, upper = number(found.lower(eps)), number(found.upper(eps))
    least, most = (enumerated(mirrored_pair(q, cell, outward=outward), steps, eps) for outward in (False, True))
    assert least <= upper and lower <= most
    assert upper / lower < 1.02 and most / least < 1.05


def mirrored_pair(q, cell, *, outward):
    """Losses and ``P`` masses around the pair of ``q H(1 + (t-1)/q)`` for ``t >= 1``, and what is left at infinity."""

    def beyond(t):
        # The Q and the P mass beyond the ratio t: H(t) = P - t Q
        eps = math.log1p((t - 1) / q)
        mass = float(mp.ncdf(-eps - 0.5))
        return mass, q * float(gaussian_delta(eps, 1)) + t * mass

    edges = [math.exp(j * cell) for j in range(round(6.0 / cell))]
    tails = [beyond(t) for t in edges]
    found = [(0.0, (1 - q) * float(gaussian_delta(0, 1)))]
    for (a, (more_q, more_p)), (b, (less_q, less_p)) in itertools.pairwise(zip(edges, tails, strict=True)):
        p, mass = more_p - less_p, more_q - less_q
        # All of a cell at its mean ratio, or split between its ends with the same P and Q masses.
        far = (p - a * mass) * b / (b - a)
        split = [(math.log(a), p - far), (math.log(b), far)] if outward else [(math.log(p / mass), p)]
        found += split + [(-x, w * math.exp(-x)) for x, w in split]
    return found, tails[-1][1] * outward * 2


def enumerated(pair, steps, eps):
    """Delta of so many releases of a pair of masses; the mass at infinity counts whole."""
    distribution, lost = pair
    total = [(0.0, 1.0)]
    for _ in range(steps - 1):
        total = [(x + y, p * w) for x, p in total for y, w in distribution]
    delta = sum(p * sum(-w * math.expm1(eps - x - y) for y, w in distribution if x + y > eps) for x, p in total)
    return delta + steps * lost


def test_step_for_group_in_balls_is_within_that_in_floats():
    from privproj.composition.group_privacy import group_step, poisson_weights
    from privproj.contrib.certify.composition import BallGroup
    from privproj.profiles.gaussian import gaussian_profile

    step = group_step(lambda j: gaussian_profile(j / 0.8), poisson_weights(0.02, 4))
    cells, h = (-9, -4, -1, 0, 1, 5, 60, 400), 0.008
    lower, upper = step.excess(h * np.array(cells, float))
    for cell, low, high in zip(cells, lower, upper, strict=True):
        with ctx.workprec(128):
            ends = [float(end) for end in BallGroup(0.8, 1, 0.02, 4).excess(cell, arb(h))]
        assert ends[0] <= ends[1] <= high and low <= ends[1] and ends[1] - ends[0] <= 1e-9 * ends[1]
    assert BallGroup(0.8, 1, 0.02, 4).excess(-11, arb(h))[1] == 0
