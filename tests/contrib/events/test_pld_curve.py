"""Dominating pairs composed by dp-accounting, and unsupported runs."""

import math

import pytest
from dp_accounting.pld import privacy_loss_distribution as dp
from helpers import RUN, gaussian

import privproj
from privproj import M2, Gaussian
from privproj.composition.compose import compose_phases
from privproj.composition.dominating_pairs import describe_coarsely
from privproj.contrib.events.pld_curve import compose, default_grid_step
from privproj.errors import PrecisionError
from privproj.integrations.dp_accounting import distributions_of
from privproj.run import Run
from privproj.schedule import phase_of


def composed(phases, step=None):
    """The curve of a run of these phases, by dp-accounting."""
    shapes = [describe_coarsely(*phase) for phase in phases]
    step = step or default_grid_step(shapes)
    return compose(distributions_of(shapes, step), step)


def phases_of(mechanism, run):
    """The phases of a run of one."""
    return [phase_of(mechanism, **run).profile()]


def dp_epsilon(z, run, step, delta=1e-5):
    """dp-accounting's own subsampled Gaussian."""
    single = dp.from_gaussian_mechanism(z, sampling_prob=run["sampling_rate"], value_discretization_interval=step)
    return single.self_compose(run["steps"]).get_epsilon_for_delta(delta)


@pytest.mark.parametrize(
    ("z", "run", "step"),
    [
        (0.8, RUN, 1e-3),
        (1.0, {"steps": 1000, "sampling_rate": 0.01}, 1e-3),
        (2.0, {"steps": 50, "sampling_rate": 0.3}, 1e-3),
    ],
)
def test_full_rank_and_gaussian_runs_equal_dp_accounting(z, run, step):
    peer = dp_epsilon(z, run, step)
    for mechanism in (Gaussian(noise_multiplier=z), M2(dim=30, rank=30, noise_multiplier=z)):
        ours = privproj.epsilon(mechanism, delta=1e-5, discretization=step, **run)
        assert ours.value == pytest.approx(peer, rel=5e-5, abs=0)
        assert ours.lower < peer
        theirs = composed(phases_of(mechanism, run), step)
        assert theirs.epsilon(math.log(1e-5)).upper == pytest.approx(ours.value, rel=1e-6, abs=0)
        assert theirs.numerics["composer"] == "dp-accounting"


def test_mixed_sampling_agrees_with_dp_accounting():
    phases = [(gaussian(0.8), Run(steps=300, sampling_rate=0.01)), (gaussian(5.0), Run(steps=20))]
    ours = compose_phases(phases, 1e-3)
    theirs = composed(phases, 1e-3)
    log_delta = math.log(1e-6)
    assert ours.epsilon(log_delta).upper == pytest.approx(theirs.epsilon(log_delta).upper, rel=1e-6, abs=0)


def test_pld_curve_rejects_delta_below_floor():
    mechanism = Gaussian(noise_multiplier=1.0)
    curve = composed(phases_of(mechanism, RUN))
    with pytest.raises(PrecisionError, match="a larger delta"):
        curve.epsilon(math.log(1e-13))
    assert math.exp(curve.log_delta(30.0).upper) == pytest.approx(curve.floor, rel=1e-12, abs=0)
    with pytest.raises(PrecisionError, match="cells"):
        composed(phases_of(mechanism, RUN), 1e-9)
