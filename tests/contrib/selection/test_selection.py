"""Private selection: agreement of three queries, other bounds, and dp-accounting's event."""

import math
import random

import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from helpers import GUARANTEES, mechanism_for

import privproj
from privproj import M1, M2, Gaussian, InvalidParameterError, Sketch, UnsupportedError, Wishart
from privproj.accounting.batch_notes import NO_AMPLIFICATION
from privproj.accounting.lower_bounds import with_details
from privproj.contrib.selection import draw_trials, select

RUN = {"steps": 200, "sampling_rate": 0.02}

SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "poisson": math.inf}


@pytest.mark.parametrize("distribution", SHAPES)
@pytest.mark.parametrize("bound", ["analytic", "rdp"])
@pytest.mark.parametrize(("z", "mean"), [(1.0, 2), (4.0, 10), (1.0, 100)])
def test_select_is_at_most_repeat_and_select_event(z, mean, distribution, bound):
    peer = RdpAccountant([1.0 + math.exp(s / 20.0) for s in range(-60, 120)])
    peer.compose(dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(z), mean, SHAPES[distribution]))
    ours = select(Gaussian(noise_multiplier=z), trials=mean, distribution=distribution, delta=1e-5, bound=bound)
    assert ours.value <= peer.get_epsilon(1e-5) * (1.0 + 1e-6)


@pytest.mark.parametrize("bound", [None, "rdp"])
def test_select_of_sampled_run_is_at_most_event(bound):
    peer = RdpAccountant(range(2, 200))
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.0)), 200)
    peer.compose(dp_event.RepeatAndSelectDpEvent(event, 10, 1))
    ours = select(Gaussian(noise_multiplier=1.0), trials=10, delta=1e-5, bound=bound, **RUN)
    assert ours.value < peer.get_epsilon(1e-5)


@pytest.mark.parametrize(
    ("distribution", "run"),
    [*((distribution, {}) for distribution in SHAPES), pytest.param("geometric", RUN, marks=pytest.mark.full),
     pytest.param("logarithmic", RUN, marks=pytest.mark.slow), pytest.param("poisson", RUN, marks=pytest.mark.slow)],
)  # fmt: skip
def test_select_epsilon_delta_and_noise_are_consistent(distribution, run):
    draw = random.Random(5)
    requested = {"trials": draw.uniform(2.0, 20.0), "distribution": distribution, **run}
    for mechanism in (Gaussian(), M2(dim=64, rank=8))[: 1 if distribution == "poisson" else 2]:
        eps, delta = draw.uniform(0.3, 3.0), 10.0 ** draw.uniform(-8, -4)
        found = select(mechanism, epsilon=eps, delta=delta, **requested)
        noisy = type(mechanism)(**{**mechanism.parameters(), "noise_multiplier": found.value})
        answer = select(noisy, delta=delta, **requested)
        assert 0.999 * eps < answer.value <= eps
        assert select(noisy, epsilon=eps, **requested).value <= delta
        assert select(noisy, epsilon=answer.value, **requested).value <= delta
        less = type(mechanism)(**{**mechanism.parameters(), "noise_multiplier": 0.99 * found.value})
        assert select(less, delta=delta, **requested).value > eps


@pytest.mark.parametrize("name", ["gaussian.analytic", "gaussian.two-sided", "gaussian.zcdp", "gaussian.gdp",
                                  "laplace.exact", "m2.rank-free", "m2.mixture-rdp", "m1.known-projection-rank1",
                                  "sketch-public.exact-rank1", "sketch.rdp-best",
                                  pytest.param("wishart.exact", marks=pytest.mark.slow)])  # fmt: skip
def test_select_supports_every_profile_and_renyi_curve(name):
    record = next(bound for bound in GUARANTEES if f"{bound.mechanism.name}.{bound.name}" == name)
    mechanism, bound = mechanism_for(record, 5.0), record.name
    one = privproj.epsilon(mechanism, delta=1e-5, bound=bound)
    found = select(mechanism, trials=5, delta=1e-5, bound=bound)
    assert found.value > one.value and found.numerics["epsilon_of_one_run"] == one.value
    assert (found.bound, found.status, found.data_assumptions) == (
        f"{bound} + selection",
        one.status,
        one.data_assumptions,
    )
    assert (
        found.side == "upper bound" and len({*found.requirements} - {*one.requirements}) == 4 and "C34" in found.source
    )
    assert found.run["selection"]["distribution"] == "geometric" and found.mechanism == one.mechanism
    assert select(mechanism, trials=5, epsilon=found.value, bound=bound).value <= 1e-5


def test_select_rejects_bounds_without_curve():
    with pytest.raises(UnsupportedError, match="operator-norm: this bound does not support private selection"):
        select(M1(dim=64, rank=8, noise_multiplier=5.0), trials=5, delta=1e-5, bound="operator-norm")
    with pytest.raises(UnsupportedError, match="no amplification theorem"):
        select(Sketch(rank=16, gamma=1000.0), trials=5, delta=1e-5, **RUN)
    with pytest.raises(UnsupportedError, match="refuted") as rejected:
        select(Wishart(dim=64, rank=8, misalignment=1e-4), trials=5, delta=1e-5, bound="rp-gd")
    assert rejected.value.result is not None and rejected.value.result.value is None
    with pytest.raises(InvalidParameterError, match="noise"):
        select(Gaussian(), trials=5, delta=1e-5)
    with pytest.raises(InvalidParameterError, match="select"):
        select(Gaussian(noise_multiplier=1.0), trials=5, delta=1e-5, epsilon=1.0)
    with pytest.raises(InvalidParameterError, match="delta"):
        select(Gaussian(noise_multiplier=1.0), trials=5)


def test_select_warns_if_fixed_number_is_cheaper():
    """Many releases of little noise: a second run changes little, but the choice among a random number does."""
    dear = select(Gaussian(noise_multiplier=0.05), trials=2, delta=1e-5, distribution="poisson")
    assert dear.numerics["epsilon_of_all_trials"] > dear.value and not any("fix their" in w for w in dear.warnings)
    cheap = select(Gaussian(noise_multiplier=4.0), trials=50, delta=1e-5, distribution="poisson")
    same = privproj.epsilon(Gaussian(noise_multiplier=4.0), delta=1e-5, steps=50).value
    assert cheap.numerics["epsilon_of_all_trials"] == same
    assert any("fix their" in w for w in cheap.warnings) == (same <= cheap.value)


def test_select_repeats_warnings_of_run():
    run = {"steps": 3, "batches": 10, "sampling": "shuffle"}
    found = select(Gaussian(noise_multiplier=5.0), trials=3, delta=1e-5, **run)
    assert NO_AMPLIFICATION in found.warnings and with_details(found).lower_bound is None


def test_draw_trials_follows_distribution():
    found = [draw_trials(3.0) for _ in range(3000)]
    assert min(found) == 1 and sum(found) / 3000 == pytest.approx(3.0, abs=6.0 * math.sqrt(6.0 / 3000), rel=0)
    assert draw_trials(1.0) == 1 and 0 in {draw_trials(1.0, "poisson") for _ in range(200)}
    with pytest.raises(InvalidParameterError):
        draw_trials(0.0)


def test_select_takes_batch_size_dataset_size_and_epochs():
    mechanism, sizes = Gaussian(noise_multiplier=1.0), {"batch_size": 256, "dataset_size": 50_000, "epochs": 3}
    plain = {"sampling_rate": 256 / 50_000, "steps": 588, "dataset_size": 50_000}
    by_sizes, by_rate = (select(mechanism, trials=9, delta=1e-5, **run) for run in (sizes, plain))
    assert by_sizes.value == by_rate.value
