"""A privacy loss dominates its run, composes as schedules do, and converts on the safe side, against dp-accounting."""

import math
import random
from statistics import NormalDist

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution as their_pld
from dp_accounting.rdp import RdpAccountant

import privproj
from privproj import M1, M2, Gaussian, InvalidParameterError, Laplace, Side, UnsupportedError, Wishart
from privproj.accounting.lower_bounds import with_details
from privproj.contrib.losses import PrivacyLoss, convert, privacy_loss
from privproj.schedule import Composition, phase_of

RUNS = {
    "gaussian": (Gaussian(noise_multiplier=1.0), {}),
    "many gaussians": (Gaussian(noise_multiplier=20.0), {"steps": 100}),
    "laplace": (Laplace(noise_multiplier=1.0), {}),
    "sampled": (Gaussian(noise_multiplier=1.0), {"steps": 20, "sampling_rate": 0.1}),
    "projected": (M2(dim=64, rank=4, noise_multiplier=1.0), {}),
    "replaced": (M2(dim=64, rank=4, noise_multiplier=1.0), {"relation": "replace"}),
    "one sampled release": (Gaussian(noise_multiplier=1.0), {"sampling_rate": 0.1, "steps": 1}),
    "renyi": (Gaussian(noise_multiplier=2.0), {"bound": "rdp", "steps": 3}),
    "a good event": (M2(dim=256, rank=8, change_rank=4, noise_multiplier=2.0), {"bound": "beta-tail"}),
    "persons": (Gaussian(noise_multiplier=4.0), {"group_size": 2}),
    "shuffled": (Gaussian(noise_multiplier=2.0), {"sampling": "shuffle", "steps": 2}),
    "known projection": (M1(dim=100, rank=30, noise_multiplier=4.0), {}),
}
"""Runs with a curve of every kind."""


def loss_of(name):
    mechanism, run = RUNS[name]
    return privacy_loss(mechanism, **run)


def truth_of(name, eps):
    """A lower bound of the true delta: what a good event says is not convex, and may be improved on by its hull."""
    if name != "a good event":
        return math.exp(loss_of(name).curve().log_delta(eps).lower)
    mechanism, run = RUNS[name]
    least = with_details(privproj.delta(mechanism, epsilon=eps, **run)).lower_bound
    return 0.0 if least is None else 10.0**least.value


def delta_of(pair, eps):
    """The delta of a pair of laws: ``m + sum over l > eps of p (1 - e^(eps - l))``."""
    beyond = pair.losses > eps
    return pair.infinity_mass + float(pair.masses[beyond] @ -np.expm1(eps - pair.losses[beyond]))


@pytest.mark.parametrize("name", RUNS)
def test_privacy_loss_dominates_run(name):
    """At epsilons off the grid, in both directions; the upper masses are a distribution."""
    loss, rng = loss_of(name), random.Random(name)
    last = loss.epsilon(delta=1e-9).value
    above = loss.above
    assert above.masses.min() >= 0 and above.masses.sum() + above.infinity_mass >= 1 - 1e-9
    assert float(above.masses @ np.exp(-above.losses)) + above.infinity_mass_q >= 1 - 1e-9
    for eps in (0.0, *(rng.uniform(0.0, last) for _ in range(40))):
        truth = truth_of(name, eps) * (1 - 1e-9)
        assert delta_of(above, eps) >= truth and delta_of(above.mirrored(), eps) >= truth


@pytest.mark.parametrize("name", ["gaussian", "many gaussians", "sampled", "projected"])
def test_privacy_loss_is_tight(name):
    loss = loss_of(name)
    for delta in (1e-2, 1e-5, 1e-8):
        eps = loss.epsilon(delta=delta).value
        assert delta_of(loss.above, eps) <= 1.03 * delta


def test_privacy_loss_composes_as_schedule():
    first, second = loss_of("gaussian"), loss_of("projected")
    both = PrivacyLoss((first.phases[0].with_run(steps=2), second.phases[0]))
    assert first + second + first == first * 2 + second == both
    assert (first * 2 + second).epsilon(delta=1e-5) == both.epsilon(delta=1e-5)
    assert (first * 2 + second).delta(epsilon=1.0) == both.delta(epsilon=1.0)
    assert privacy_loss(Composition(both.phases, requirements=("x",))) == PrivacyLoss(both.phases, requirements=("x",))
    with pytest.raises(InvalidParameterError, match="relation"):
        first + loss_of("replaced")


def test_privacy_loss_repr_is_one_line():
    assert repr(loss_of("sampled")) == "<privacy loss of 20 releases: gaussian.analytic, proved, add-remove>"


def distribution_of_mu(mu, eps):
    """``delta(eps)`` of two Gaussians at the distance mu."""

    def beyond(x):
        """The normal tail, with all digits far out."""
        return 0.5 * math.erfc(x / math.sqrt(2.0))

    return beyond(eps / mu - mu / 2) - math.exp(eps) * beyond(eps / mu + mu / 2)


@pytest.mark.parametrize("name", [*RUNS])
def test_convert_to_mu_covers_curve_up_to_slack(name):
    loss = loss_of(name)
    found = convert(loss, "mu", at=1e-6)
    for eps in np.linspace(0.0, loss.epsilon(delta=1e-8).value, 23):
        assert truth_of(name, float(eps)) <= max(distribution_of_mu(found.value, eps), 1e-6) * (1 + 1e-9)
    assert found.value == privproj.gdp_mu(loss, delta=1e-6).value and found.side in (Side.UPPER, Side.EXACT)


def test_convert_to_rho_of_gaussian_and_bounded_runs():
    found = convert(Gaussian(noise_multiplier=2.0), "rho", steps=8)
    assert 1.0 <= found.value <= 1.0 + 1e-12 and found.side is Side.EXACT
    # epsilon-DP is (epsilon^2/2)-zCDP; the mu of Laplace noise has a larger one.
    assert convert(Laplace(noise_multiplier=2.0), "rho").value >= 0.5 * math.tanh(0.25) * 0.5
    with pytest.raises(UnsupportedError, match="no finite mu"):
        convert(Gaussian(noise_multiplier=1.0), "rho", steps=10, sampling_rate=0.1)


def test_convert_to_renyi_equals_closed_form_and_adds():
    found = convert(loss_of("many gaussians"), "renyi", at=[1.5, 2, 40])
    for order, value in zip([1.5, 2, 40], found.value, strict=True):
        assert order * 0.125 <= value <= order * 0.125 * (1 + 1e-9)
    pair = privacy_loss(
        Composition((phase_of(Gaussian(noise_multiplier=1.0)), phase_of(M2(dim=64, rank=4, noise_multiplier=1.0))))
    )
    parts = [convert(PrivacyLoss((phase,)), "renyi", at=3).value for phase in pair.phases]
    assert convert(pair, "renyi", at=3).value == pytest.approx(sum(parts), rel=1e-12, abs=0) and min(parts) > 0
    with pytest.raises(UnsupportedError, match="Renyi"):
        convert(M1(dim=100, rank=30, noise_multiplier=4.0), "renyi", at=2)


def test_convert_to_trade_off_is_below_true_function():
    mu, normal, rates = 0.5, NormalDist(), [1e-6, 1e-3, 0.1, 0.5, 0.9]
    found = convert(Gaussian(noise_multiplier=2.0), "trade-off", at=rates)
    for rate, value in zip(rates, found.value, strict=True):
        true = normal.cdf(normal.inv_cdf(1.0 - rate) - mu)
        assert true * (1 - 1e-3) <= value <= true * (1 + 1e-12)
    assert (
        found.side is Side.LOWER
        and convert(Gaussian(noise_multiplier=2.0), "trade-off", at=0.1).value == found.value[2]
    )


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda: convert(loss_of("gaussian"), "eps"), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), "renyi", at=1.0), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), "renyi"), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), "trade-off", at=[0.1, 2.0]), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), "rho", at=1e-9), InvalidParameterError),
        (lambda: privacy_loss(Composition(loss_of("gaussian").phases), steps=3), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), "mu", steps=100), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), "mu", bound="rdp"), InvalidParameterError),
        (lambda: convert(loss_of("gaussian"), ["mu"]), InvalidParameterError),
        (lambda: privacy_loss(3), InvalidParameterError),
        (lambda: convert(Gaussian(noise_multiplier=6.0), "mu", bound="classical"), UnsupportedError),
    ],
)
def test_convert_rejects_unsupported_runs(ask, error):
    with pytest.raises(error):
        ask()


def test_conversion_has_bound_and_assumptions():
    assumed = convert(Wishart(dim=100, rank=9, misalignment=1e-6), "mu").basis
    assert assumed.data_assumptions and str(assumed.status) == "conditional" and assumed.requirements
    plain = convert(M2(dim=64, rank=4, noise_multiplier=1.0), "mu").basis
    assert (plain.data_assumptions, str(plain.status)) == ((), "proved")
    # The divergences come from another bound than that of the run.
    divergence = convert(M2(dim=64, rank=4, noise_multiplier=1.0), "renyi", at=2).basis
    assert (plain.bound, divergence.bound) == ("m2.rank-free", "m2.mixture-rdp")


def settings(count):
    """Runs that dp-accounting knows: plain and sampled Gaussian noise, and Laplace noise."""
    rng = random.Random(7)
    for _ in range(count):
        kind, noise = rng.choice(["gaussian", "sampled", "laplace"]), round(10.0 ** rng.uniform(-0.2, 0.8), 3)
        steps = 1 if kind == "laplace" else rng.choice([1, 3, 10, 30])
        rate = round(10.0 ** rng.uniform(-2.5, -0.3), 4) if kind == "sampled" else 1.0
        yield pytest.param(kind, noise, steps, rate, id=f"{kind}-{noise}-{steps}-{rate}")


def their_distribution(kind, noise, rate, *, above):
    """dp-accounting's own distribution of a release, from above or from below."""
    grid = {"value_discretization_interval": 1e-3, "pessimistic_estimate": above}
    if kind == "laplace":
        return their_pld.from_laplace_mechanism(noise, **grid)
    return their_pld.from_gaussian_mechanism(noise, sampling_prob=rate, **grid)


def check_conversions(kind, noise, steps, rate):
    """Each conversion is never on the wrong side of dp-accounting's law from below, nor far from that from above."""
    mechanism = Laplace(noise_multiplier=noise) if kind == "laplace" else Gaussian(noise_multiplier=noise)
    loss = privacy_loss(mechanism, steps=steps, **({"sampling_rate": rate} if rate < 1.0 else {}))
    least, most = (their_distribution(kind, noise, rate, above=above).self_compose(steps) for above in (False, True))
    ours, mu = convert(loss, "dp-accounting").value, convert(loss, "mu", at=1e-8).value
    last = loss.epsilon(delta=1e-8).value
    for eps in np.linspace(0.0, 0.9 * last, 7).tolist():
        truth = least.get_delta_for_epsilon(eps) * (1 - 1e-6) - 1e-12
        assert truth <= ours.get_delta_for_epsilon(eps)
        assert truth <= max(distribution_of_mu(mu, eps), 1e-8) * (1 + 1e-9)
        assert truth <= math.exp(loss.curve().log_delta(eps).upper)
        # An attack at this epsilon, by dp-accounting: our false negative rate must not exceed its rate.
        assert convert(loss, "trade-off", at=0.05).value <= 1.0 - 0.05 + 1e-12
    for delta in (1e-3, 1e-6):
        found = ours.get_epsilon_for_delta(delta)
        assert least.get_epsilon_for_delta(delta) * (1 - 1e-6) - 1e-9 <= found
        if kind != "laplace":  # its losses end in an atom, which a grid moves
            assert found <= 1.05 * most.get_epsilon_for_delta(delta) + 1e-3
    if kind != "laplace":
        theirs = RdpAccountant(orders=[2, 8, 32]).compose(
            dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(float(noise))), steps
            )
        )
        for order, known in zip([2, 8, 32], theirs._rdp, strict=True):
            assert known * (1 - 1e-9) <= convert(loss, "renyi", at=order).value <= known * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(("kind", "noise", "steps", "rate"), [*settings(8)])
def test_convert_rounds_to_safe_side(kind, noise, steps, rate):
    check_conversions(kind, noise, steps, rate)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "noise", "steps", "rate"), [*settings(200)])
def test_convert_rounds_to_safe_side_for_random_runs(kind, noise, steps, rate):
    check_conversions(kind, noise, steps, rate)
