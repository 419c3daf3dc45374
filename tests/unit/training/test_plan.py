"""The accounting of a run comes from what is trained."""

import math

import numpy as np
import pytest
from helpers import needs
from scipy import stats

import privproj
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.integrations.opacus import ProjectionAccountant
from privproj.io.ledger import INSECURE, read_ledger

needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import data, mlp, own, private  # noqa: E402

from privproj.training import Batch  # noqa: E402
from privproj.training.plan import GRID, Method, Plan  # noqa: E402

# --- accounting ---------------------------------------------------------------------------------------


def test_event_comes_from_what_is_trained():
    x, y = data()
    one = private(nn.Linear(6, 3).double(), x, y, algorithm="m2", rank=4, noise_multiplier=1.0)[1].plan
    assert one.mechanism == privproj.M2(dim=7, rank=4, columns=3, noise_multiplier=1.0)
    two = private(mlp(hidden=8), x, y, algorithm="m2", rank=4, noise_multiplier=1.0)[1].plan
    assert {str(layer) for layer in two.mechanism.layers} == {"7x4x1", "9x4x1"}
    for algorithm in ("m2-projected-clip", "projected-dp-sgd"):
        plan = private(mlp(), x, y, algorithm=algorithm, rank=4, noise_multiplier=1.0)[1].plan
        assert plan.mechanism == privproj.Gaussian(noise_multiplier=1.0)
    # Told to the last bit, so that a run that is given it again goes on: 1 / (1 / z) is another number for this one.
    z = 3.987624891323114
    assert private(mlp(), x, y, noise_multiplier=z)[1].noise_multiplier == z != 1.0 / (1.0 / z)


@pytest.mark.full
def test_calibrated_run_costs_its_target():
    x, y = data(records=400)
    module = mlp()
    _, optimizer, loader = private(
        module,
        x,
        y,
        algorithm="m2",
        rank=2,
        noise_multiplier=None,
        epsilon=2.0,
        delta=1e-5,
        steps=30,
        sampling_rate=0.1,
    )
    known = privproj.sigma(
        privproj.M2(layers=(privproj.Layer(dim=7, rank=2), privproj.Layer(dim=6, rank=2))),
        epsilon=2.0, delta=1e-5, steps=30, sampling_rate=optimizer.plan.sampling_rate,
    )  # fmt: skip
    assert optimizer.plan.noise_multiplier == known.value
    assert 1.99 < optimizer.epsilon(1e-5).value <= 2.0
    while optimizer.steps_done < 30:
        for batch in loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
    assert 1.99 < optimizer.epsilon(1e-5).value <= 2.0
    assert list(loader) == []
    optimizer._turn.open(Batch([]))
    with pytest.raises(UnsupportedError, match="all 30 planned steps"):
        optimizer.step()


@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        ({"frame": "orthogonal"}, "frame must be haar"), ({"every": 0}, "every must be an integer"),
        ({"beta": 1.5}, "beta must be .* got 1.5"),
        ({"rank": 0}, "rank must be an integer"), ({"beta": float("nan")}, "beta must be .* got nan"),
    ],
)  # fmt: skip
def test_plan_made_by_hand_takes_options_of_make_private(changed, condition):
    release = privproj.M2(dim=64, rank=8, noise_multiplier=2.0)
    options = {"rank": 8, "frame": "haar"}
    good = {"mechanism": release, "ranks": (8,), "clip": 0.5, "steps": 10}
    good |= {"sampling_rate": 0.125, "dataset_size": 800}
    assert Plan(algorithm=Method("m2", **options), **good).algorithm.rank == 8
    with pytest.raises(InvalidParameterError, match=condition):
        Plan(algorithm=Method("m2", **options | changed), **good)
    with pytest.raises(InvalidParameterError, match="a Method"):
        Plan(algorithm="m2", **good)  # pyright: ignore[reportArgumentType]


def test_opacus_accountants_can_listen():
    x, y = data()
    accountant = ProjectionAccountant()
    _, optimizer, _ = private(mlp(), x, y, algorithm="m2", rank=2, noise_multiplier=1.5)
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(1.0))
    optimizer._turn.open(Batch([]))
    optimizer.step()
    assert accountant.history == [(optimizer.plan.mechanism, 1.0, 1)]


def test_rates_are_on_the_grid_of_the_sampler():
    x, y = data(records=50)
    _, optimizer, loader = private(mlp(), x, y, sampling_rate=0.1, steps=2000)
    rate = optimizer.plan.sampling_rate
    assert 0.1 <= rate < 0.1 + GRID and (rate / GRID).is_integer()
    counts = np.zeros(50)
    sizes = []
    for batch in loader.sampler(2000):
        counts[batch] += 1
        sizes.append(len(batch))
    assert stats.chisquare(counts).pvalue > 1e-3
    assert abs(counts.sum() - 1e4) < 5 * math.sqrt(1e5 * 0.1 * 0.9)
    assert np.std(sizes) == pytest.approx(math.sqrt(50 * 0.09), rel=0.1, abs=0)


# --- what the loop may not do -----------------------------------------------------------------------


def test_fixed_seed_is_named_with_every_number():
    x, y = data()
    _, optimizer, _ = private(mlp(), x, y, noise_multiplier=1.0, insecure_seed=3)
    optimizer._turn.open(Batch([]))
    optimizer.step()
    assert INSECURE in optimizer.epsilon(1e-5).warnings


# --- filters ----------------------------------------------------------------------------------------


def test_plan_under_filter_reports_the_budget(tmp_path):
    """A first plan that takes all of the budget is stopped; what is left is calibrated for another one."""
    book, (x, y) = str(tmp_path / "ledger.jsonl"), data()
    budget = {"epsilon": 4.0, "delta": 1e-5, "noise_multiplier": None, "ledger": book, "adaptive_order": 8}
    for made, options in ((5, {"steps": 20}), (4, {"steps": 4, "algorithm": "m2", "rank": 2})):
        module, optimizer, loader = private(mlp(), x, y, **options, **budget)
        planned = read_ledger(book).planned.budget()
        assert (1.0 - 1e-6) * planned.budget < planned.spent <= planned.budget
        while optimizer.steps_done < made:
            batch = next(iter(loader))
            optimizer.backward_on(own(module), batch)
            optimizer.step()
        optimizer.close()
    found = optimizer.epsilon(1e-5)
    assert 3.999 < found.value <= 4.0 and read_ledger(book).epsilon(1e-5).value == found.value
    assert Requirement.FIXED_FILTER in found.requirements and Requirement.FIXED_SCHEDULE not in found.requirements
    assert read_ledger(book).spent == 9 and found.run["steps"] == 9
    for options, condition in (
        ({"adaptive_order": 9}, "cannot change after the first release"),
        ({}, "nothing is left|leave nothing"),
    ):
        with pytest.raises(UnsupportedError, match=condition):
            private(mlp(), x, y, steps=10**6, **{**budget, **options})


def test_filter_needs_the_budget_it_keeps():
    with pytest.raises(InvalidParameterError, match=r"adaptive_order must be .* got 8"):
        private(mlp(), *data(), adaptive_order=8)
