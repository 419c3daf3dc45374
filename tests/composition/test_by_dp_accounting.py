"""The same runs composed by dp-accounting, and where that is refused."""

import pytest
from dp_accounting.pld import privacy_loss_distribution as dp
from helpers import RUN

import privproj
from privproj import M2, Gaussian
from privproj.errors import PrecisionLimit


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
        theirs = privproj.epsilon(mechanism, delta=1e-5, discretization=step, composer="dp-accounting", **run)
        assert theirs.value == pytest.approx(ours.value, rel=1e-6, abs=0)
        assert theirs.numerics["composer"] == "dp-accounting"


def test_dp_accounting_refuses_below_its_floor():
    peer = {**RUN, "composer": "dp-accounting"}
    with pytest.raises(PrecisionLimit, match="default composer"):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-13, **peer)
    with pytest.raises(PrecisionLimit):
        privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=30.0, **peer)
    with pytest.raises(PrecisionLimit):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, discretization=1e-9, **peer)
