"""Tail-truncation levels: epsilon increases smoothly as delta decreases, down to 1e-300 and below."""

import math
import re

import mpmath
import numpy as np
import pytest
from helpers import gaussian, needs

import privproj
from privproj import M1, M2, Gaussian, Laplace, Wishart
from privproj.accounting.lower_bounds import with_details
from privproj.accounting.query import composition_of
from privproj.composition.compose import compose_on_grid, compose_phases
from privproj.profiles.conversion import read_epsilon, read_log_delta
from privproj.profiles.gaussian import log_gaussian_delta
from privproj.profiles.privacy_profile import PrivacyProfile, at_first_level, log_delta_unless
from privproj.run import Run
from privproj.targets import delta_target

pytestmark = pytest.mark.full  # extremes, which take a minute together

LOG_10 = math.log(10.0)
RUNS = {
    "gaussian": (Gaussian(noise_multiplier=1.0), {"sampling_rate": 0.01, "steps": 1000}),
    "large rate": (Gaussian(noise_multiplier=20.6), {"sampling_rate": 0.908, "steps": 44}),
    "few steps": (Gaussian(noise_multiplier=1.306), {"sampling_rate": 0.0033, "steps": 12}),
    "many scales": (Gaussian(noise_multiplier=0.309), {"sampling_rate": 8.9e-6, "steps": 5}),
    "laplace": (Laplace(noise_multiplier=4.0), {"sampling_rate": 0.1, "steps": 100}),
    "m2": (M2(dim=2048, rank=16, noise_multiplier=0.155974), {"sampling_rate": 0.01, "steps": 2000}),
    "balls": (Gaussian(noise_multiplier=1.0), {"sampling": "balls-in-bins", "batches": 20, "steps": 5}),
}
SLOW = ("m2", "balls", "many scales", "few steps")


def curve_of(name):
    mechanism, run = RUNS[name]
    return composition_of(mechanism, None, run).curve()


def some_runs():
    marks = {name: pytest.mark.full if name == "few steps" else pytest.mark.slow for name in SLOW}
    return [pytest.param(name, marks=marks.get(name, ())) for name in RUNS]


@pytest.mark.parametrize("name", some_runs())
def test_epsilon_has_no_cliff(name):
    """At small deltas, equal steps of ln delta are about equal steps of epsilon, or smaller ones."""
    curve = curve_of(name)
    eps = [curve.epsilon(power * LOG_10).upper for power in range(-14, -301, -11)]
    steps = np.diff(eps)
    assert (steps > 0.0).all() or name == "laplace"
    largest = np.maximum.accumulate(steps)
    assert (steps[1:] <= 1.6 * np.maximum(largest[:-1], 0.02 * np.array(eps[1:-1]))).all()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("gaussian", marks=pytest.mark.full),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("large rate", "m2")),
    ],
)
def test_composed_epsilon_is_at_most_renyi_and_near_lower_bound(name):
    mechanism, run = RUNS[name]
    renyi = "mixture-rdp" if name == "m2" else "rdp"
    for power in (-20, -30, -36, -59.9, -60.1, -110, -185):
        found = privproj.epsilon(mechanism, log10_delta=power, **run)
        assert found.value <= privproj.epsilon(mechanism, log10_delta=power, bound=renyi, **run).value
        # Few rare large losses of M2 make lumps, and far out no tilt resolves two neighbors.
        close = 1.03 if name == "m2" and power < -120 else 1.01
        assert found.lower <= found.value <= close * found.lower
        assert not any("5 %" in w for w in with_details(found).warnings)
    far = privproj.epsilon(mechanism, log10_delta=-300, **run)
    assert far.value <= 1.005 * privproj.epsilon(mechanism, log10_delta=-300, bound=renyi, **run).value
    assert any("best known lower bound" in warning for warning in with_details(far).warnings)


@pytest.mark.parametrize("steps", [2, 50, 10**4])
def test_unsampled_gaussian_is_enclosed_down_to_1e_180(steps):
    curve = compose_on_grid([(gaussian(math.sqrt(steps)), Run(steps=steps))])
    for power in (-23, -36, -59, -61, -100, -150, -180, -250, -300, -2000):
        low, high = curve.epsilon(power * LOG_10)
        assert log_gaussian_delta(high, 1.0) <= power * LOG_10
        assert low == -math.inf or log_gaussian_delta(low, 1.0) >= power * LOG_10
        assert high <= (1.0005 if power > -190 else 1.01) * low or power < -190
        assert curve.log_delta(high).upper <= power * LOG_10 + 1e-9


@pytest.mark.parametrize("name", ["gaussian", pytest.param("few steps", marks=pytest.mark.full)])
def test_epsilon_and_delta_are_inverses_at_every_level(name):
    """Also at the boundaries between levels (C24)."""
    curve = curve_of(name)
    for power in (-15.4, -15.5000001, -15.5, -15.6, -40, -60, -60.0000001, -119.99, -150):
        target = delta_target(None, power)
        eps = read_epsilon(curve, target).upper
        assert read_log_delta(curve, eps).upper <= target.log_delta * (1.0 - 1e-15)


CUT = {"sampling_rate": 0.01, "steps": 100, "max_batch_size": 640, "dataset_size": 50000}


@pytest.mark.parametrize(
    "name", ["gaussian", "truncated", *(pytest.param(n, marks=pytest.mark.full) for n in SLOW[2:])]
)
def test_log_delta_unless_decides_as_log_delta(name):
    """And a value above the threshold is exactly that of ``log_delta``."""
    curve = composition_of(Gaussian(noise_multiplier=1.0), None, CUT).curve() if name == "truncated" else curve_of(name)
    for eps in (0.5, 4.0, 9.0, 20.0):
        whole = curve.log_delta(eps)
        assert curve.log_delta(eps).upper == whole.upper
        for enough in (whole.upper - 9.0, whole.upper - 1e-6, whole.upper, whole.upper + 1e-6, -3.0, -37.0, -100.0):
            found = log_delta_unless(curve, eps, enough)
            assert found == whole.upper if whole.upper > enough else whole.lower <= found <= enough


DEEP = (M1(dim=8129, rank=244, noise_multiplier=4.87838), {"steps": 190, "sampling_rate": 1.0636545721186354e-07})


@pytest.mark.parametrize("name", ["gaussian", "large rate", pytest.param("known projection", marks=pytest.mark.slow)])
def test_log_delta_is_at_most_that_of_first_level(name):
    mechanism, run = DEEP if name == "known projection" else RUNS[name]
    curve = composition_of(mechanism, "known-projection" if mechanism is DEEP[0] else None, run).curve()
    for eps in (0.0786819,) if mechanism is DEEP[0] else (1.0, 6.0, 8.0, 9.0, 9.5, 10.0, 12.0):
        assert curve.log_delta(eps).upper <= at_first_level(curve).log_delta(eps).upper
    if mechanism is DEEP[0]:
        assert curve.log_delta(0.0786819).upper < -55.0


@pytest.mark.full
def test_phases_are_composed_at_every_level():
    poisson = Run(steps=100, sampling_rate=0.02, sampling="poisson")
    curve = compose_phases([(gaussian(1.2), poisson), (gaussian(15.0), Run(steps=50))])
    alone = compose_on_grid([(gaussian(1.2), poisson)])
    eps = [curve.epsilon(power * LOG_10) for power in (-30, -36, -60, -150, -300)]
    assert all(one.upper > alone.epsilon(power * LOG_10).upper for one, power in zip(eps, (-30, -36), strict=False))
    assert all(end.upper <= 1.01 * end.lower for end in eps[:4]) and eps[4].upper < 3.0 * eps[3].upper


def test_epsilon_is_above_certified_lower_bound():
    needs("flint")
    found = privproj.epsilon(RUNS["gaussian"][0], log10_delta=-60, **RUNS["gaussian"][1])
    # 18.12 was proved in balls at 1e-60, and that of 18.10 to be above 1e-60.
    assert 18.10 < found.lower < found.value < 18.13


def test_epsilon_is_infinite_below_floor_of_profile():
    def log_delta(eps):
        inner = gaussian(1.0).log_delta(eps)
        return type(inner)(max(inner.lower, -90.0), max(inner.upper, -90.0))

    curve = compose_on_grid([(PrivacyProfile(log_delta), Run(steps=3))])
    low, high = curve.epsilon(-60.0)
    assert high < 1.03 * low
    # The floor of three releases is at -90 + ln 3.
    assert curve.epsilon(-90.0 + math.log(3.0) - 1e-9) == (math.inf, math.inf)
    assert high < curve.epsilon(-90.0 + math.log(3.0) + 1e-9).upper < math.inf


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "rate", [5e-324, 1e-308, *(pytest.param(q, marks=pytest.mark.full) for q in (1e-200, 1e-30, 1e-9, 1.0 - 2.0**-53))]
)
@pytest.mark.parametrize("noise", [1e-6, 1.0, pytest.param(1e12, marks=pytest.mark.full)])
def test_extreme_rates_and_noises_are_sound_or_raise(rate, noise):
    for steps in (1, 2, 10**8):
        for target in ({"delta": 1e-6}, {"log10_delta": -320}):
            try:
                found = privproj.epsilon(
                    Gaussian(noise_multiplier=noise), sampling_rate=rate, sampling="poisson", steps=steps, **target
                )
            except privproj.PrivprojError as error:
                assert "report" not in str(error)
                assert "nan" not in str(error).lower()
            else:
                assert found.value >= 0.0
                if rate * steps < target.get("delta", 0.0):
                    assert found.value == 0.0


def log_delta_of_two_sampled_releases(eps, z, q):
    """Return ``ln delta`` of two Poisson-sampled Gaussian releases in the remove direction, by one integral."""
    with mpmath.workdps(60):
        e, z, q = mpmath.mpf(eps), mpmath.mpf(z), mpmath.mpf(q)

        def ratio(x):
            return 1 - q + q * mpmath.exp((x - mpmath.mpf(1) / 2) / z**2)

        def one(t):
            """``E_P (1 - t/W)_+`` of one release."""
            if t <= 1 - q:
                return 1 - t
            x = z**2 * mpmath.log((t - 1 + q) / q) + mpmath.mpf(1) / 2
            plain, moved = mpmath.erfc(x / z / mpmath.sqrt(2)) / 2, mpmath.erfc((x - 1) / z / mpmath.sqrt(2)) / 2
            return (1 - q) * plain + q * moved - t * plain

        def term(x):
            return mpmath.npdf(x, 0, z) * ratio(x) * one(mpmath.exp(e) / ratio(x))

        # If the first output alone decides, the second factor changes from a tail to a straight line.
        turn = z**2 * mpmath.log((mpmath.exp(e) / (1 - q) - 1 + q) / q) + mpmath.mpf(1) / 2
        near = [turn + sign * mpmath.mpf(2) ** k for k in range(-12, 3) for sign in (-1, 1)]
        ends = sorted([turn, *near, *(mpmath.mpf(i) * z for i in range(-12, 60))])
        return float(mpmath.log(mpmath.quad(term, ends)))


def few(first, *rest):
    """Return the cases, all but the first marked slow."""
    return [first, *(pytest.param(*case, marks=pytest.mark.slow) for case in rest)]


@pytest.mark.full
@pytest.mark.parametrize(("z", "q"), few((1.0, 0.05), (0.5, 0.2), (2.0, 0.003), (1.0, 1e-6)))
@pytest.mark.parametrize("power", few(-75, (-17,), (-36,), (-170,), (-330,)))
def test_two_sampled_releases_are_enclosed_at_every_level(z, q, power):
    curve = compose_on_grid([(gaussian(z), Run(steps=2, sampling_rate=q, sampling="poisson"))])
    low, high = curve.epsilon(power * LOG_10)
    assert log_delta_of_two_sampled_releases(high, z, q) <= power * LOG_10
    assert log_delta_of_two_sampled_releases(low, z, q) >= power * LOG_10
    assert log_delta_of_two_sampled_releases(high / 1.05, z, q) > power * LOG_10


@pytest.mark.parametrize(("z", "rate", "steps"), [(0.2, 1e-30, 10**6), (0.2, 1e-31, 1000), (0.1, 1e-30, 2)])
def test_tiny_rates_are_sound(z, rate, steps):
    """Delta is between that of one step and basic composition, ``T`` times one at ``eps / T`` (C23)."""
    profile, run = gaussian(z), Run(steps=steps, sampling_rate=rate, sampling="poisson")
    curve = compose_on_grid([(profile, run)])
    one = profile.sampled(rate)
    most = math.log(steps) + one.log_delta(0.1 / steps).upper
    found = curve.log_delta(0.1)
    assert one.log_delta(0.1).lower <= found.upper <= most + 1e-9
    assert found.lower <= most
    deep = curve.epsilon(-150 * LOG_10)
    assert one.epsilon(-150 * LOG_10).lower <= deep.upper < 1e3


@pytest.mark.full
def test_epsilon_at_tiny_delta_states_its_gap():
    loose = privproj.epsilon(Gaussian(noise_multiplier=0.5), delta=1e-100, sampling_rate=0.001, steps=100)
    assert loose.value > 1.01 * loose.lower
    (shown,) = (re.search(r"between ([\d.]+) and ([\d.]+)\. ", warning) for warning in loose.warnings)
    assert float(shown[1]) <= loose.lower and loose.value <= float(shown[2])
    tight = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-100, sampling_rate=0.01, steps=1000)
    assert tight.value < 1.01 * tight.lower and not any("not tight" in warning for warning in tight.warnings)


@pytest.mark.full
@pytest.mark.parametrize("power", [-20, -30, -45, -60, -75, -100])
def test_composed_m2_is_within_1_percent_at_tiny_deltas(power):
    found = privproj.epsilon(M2(dim=57, rank=11, noise_multiplier=2.0), log10_delta=power, steps=195)
    assert found.lower <= found.value <= 1.01 * found.lower


@pytest.mark.parametrize(
    ("z", "run", "powers"),
    [
        (1.0, {"sampling_rate": 0.01, "steps": 1000, "discretization": 0.05}, (-15.3, -15.52, -15.6, -17, -22.1)),
        pytest.param(
            0.58, {"sampling_rate": 0.00197, "steps": 145}, (-86.9, -87.1, -91.9, -92.1), marks=pytest.mark.full
        ),
    ],
    ids=["coarse grid", "rare losses"],
)
def test_levels_that_differ_agree_on_round_trips(z, run, powers):
    mechanism, last = Gaussian(noise_multiplier=z), 0.0
    for power in powers:
        eps = privproj.epsilon(mechanism, log10_delta=power, **run).value
        assert eps >= last and privproj.delta(mechanism, epsilon=eps, **run).log10_delta <= power
        last = eps


@pytest.mark.parametrize(
    ("mechanism", "run", "powers"),
    [
        (Gaussian(noise_multiplier=1.32), {"steps": 7580, "sampling_rate": 6.4e-8}, (-20, -30, -60)),
        (M2(dim=1024, rank=4, noise_multiplier=0.219), {"steps": 1424, "sampling_rate": 4.5e-7}, (-30, -60)),
    ],
    ids=["gaussian", "m2"],
)
def test_deep_tails_at_tiny_rates_are_tight(mechanism, run, powers):
    """Rare large losses: before grids were fine below the deltas of a level, these ratios were 2.7 to 38."""
    for power in powers:
        found = privproj.epsilon(mechanism, log10_delta=power, **run)
        assert found.lower <= found.value <= 1.03 * found.lower


def test_heavy_tails_keep_losses_within_reach_of_squaring():
    """Losses up to 171 nats count as finite. With shorter tails, this epsilon was 120."""
    run, mechanism = {"steps": 50}, Wishart(dim=25, rank=8, misalignment=1.038e-6)
    found = privproj.epsilon(mechanism, log10_delta=-20, **run)
    assert found.lower <= found.value <= 1.06 * found.lower
    infinite = privproj.epsilon(mechanism, log10_delta=-30, **run)
    assert infinite.value == math.inf
    assert not any("composition is not tight" in warning for warning in infinite.warnings)


def test_round_trip_and_order_hold_at_useless_epsilons():
    """Most mass of a step that is sampled is beyond the losses of a grid. These round trips gave 1e-6 for 1e-20."""
    run, last = {"sampling_rate": 1e-6, "steps": 200, "sampling": "poisson"}, 0.0
    mechanism = Gaussian(noise_multiplier=0.031)
    for power in (-5.0, -6.5, -15.4, -15.6, -20.0, -30.0):
        eps = privproj.epsilon(mechanism, log10_delta=power, **run).value
        assert last <= eps and privproj.delta(mechanism, epsilon=eps, **run).log10_delta <= power
        last = eps


def test_mass_of_infinite_losses_is_rounded_down():
    """Also where the mass is subnormal."""
    for rank, steps in ((200, 2), (20, 50), (1, 10**6)):
        curve = composition_of(Wishart(dim=1000, rank=rank, misalignment=3e-4), None, {"steps": steps}).curve()
        with mpmath.workdps(400):
            mass = mpmath.exp(curve.phases[0][0].log_delta(1e300).lower)
            exact = mpmath.log(-mpmath.expm1(steps * mpmath.log1p(-mass)))
            assert exact - 1e-8 <= curve.log_beyond(1e300) <= exact
