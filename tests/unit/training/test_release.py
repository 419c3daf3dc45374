"""What leaves the release boundary, for every algorithm."""

import math

import numpy as np
import pytest
from helpers import needs
from scipy import stats

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import (  # noqa: E402
    ALGORITHMS,
    batch_of,
    data,
    losses_of,
    mlp,
    one_step,
    options_of,
    own,
    private,
    released_sums,
    state,
    take_in,
)

from privproj.training import Batch  # noqa: E402

# --- what leaves the boundary -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_micro_batches_and_their_order_change_nothing(name):
    x, y = data()
    expected = one_step(mlp(), x, y, **options_of(name))
    order = torch.randperm(12)
    for parts in (2, 5):
        assert torch.allclose(one_step(mlp(), x[order], y[order], parts, **options_of(name)), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_example_that_is_not_finite_is_absent(name, poison):
    x, y = data()
    expected = one_step(mlp(), x[:11], y[:11], **options_of(name))
    x[11, 2] = poison
    assert torch.allclose(one_step(mlp(), x, y, **options_of(name)), expected, rtol=1e-9)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("clip", [1e-3, 0.5, 1e6])
def test_removing_a_record_changes_the_sum_by_at_most_the_clip(name, clip):
    x, y = data()
    x[0] *= 1e4
    whole = released_sums(name, x, y, max_grad_norm=clip)
    for j in range(0, 12, 4):
        rest = [i for i in range(12) if i != j]
        change = (whole - released_sums(name, x[rest], y[rest], max_grad_norm=clip)).norm()
        assert change <= clip * (1.0 + 1e-12)
    if clip == 1e-3 and name in ("dp-sgd", "projected-dp-sgd"):
        change = (whole - released_sums(name, x[1:], y[1:], max_grad_norm=clip)).norm()
        assert change > 0.99 * clip


@pytest.mark.parametrize("name", ALGORITHMS)
def test_empty_batch_releases_noise_of_the_planned_size(name):
    x, y = data(width=30)
    module = mlp(width=30, hidden=40)
    more = {"rank": 20} if "rank" in ALGORITHMS[name] else {}
    _, optimizer, _ = private(
        module, x, y, **{**options_of(name), **more, "noise_multiplier": 2.5, "max_grad_norm": 3.0}
    )
    take_in(optimizer, own(module), batch_of(x[:0], y[:0]))
    draws = torch.cat([mean.flatten() for mean in optimizer._noisy_sum.release()]) * 12
    assert stats.kstest(draws.numpy() / 7.5, "norm").pvalue > 1e-3
    optimizer.step()
    assert optimizer.steps_done == 2


def test_noise_is_twice_as_large_under_replace():
    x, y = data()
    plan = {r: private(mlp(), x, y, noise_multiplier=2.0, relation=r)[1].plan for r in ("add-remove", "replace")}
    assert plan["add-remove"].noise_multiplier == plan["replace"].noise_multiplier == 2.0
    assert (plan["add-remove"].noise_over_clip, plan["replace"].noise_over_clip) == (2.0, 4.0)
    module = mlp(hidden=200)
    _, optimizer, _ = private(module, x, y, noise_multiplier=2.0, relation="replace", max_grad_norm=0.5)
    optimizer._turn.open(Batch([]))
    draws = torch.cat([mean.flatten() for mean in optimizer._noisy_sum.release()]) * 12
    assert stats.kstest(draws.numpy() / 2.0, "norm").pvalue > 1e-3


def test_without_clip_and_noise_it_is_the_gradient_step():
    x, y = data()
    module = mlp()
    module.zero_grad()
    losses_of(module, x, y).sum().backward()
    expected = torch.cat([p.grad.flatten() for p in module.parameters()])
    assert torch.allclose(one_step(mlp(), x, y, max_grad_norm=1e6), expected, rtol=1e-6, atol=1e-5)


def test_clipped_sum_is_that_of_opacus():
    from opacus import PrivacyEngine

    x, y = data()
    ours = one_step(mlp(), x, y, max_grad_norm=0.4)
    module = mlp()
    before = state(module)
    loader = DataLoader(TensorDataset(x, y), batch_size=12)
    module, optimizer, _ = PrivacyEngine().make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
        noise_multiplier=0.0, max_grad_norm=0.4, poisson_sampling=False, loss_reduction="sum",
    )  # fmt: skip
    losses_of(module, x, y).sum().backward()
    optimizer.step()
    assert torch.allclose(before - state(module), ours, rtol=1e-5)


# --- rounding -----------------------------------------------------------------------------------------


def test_many_parts_lose_no_record_to_rounding():
    """Single precision would swallow every part below half a unit in the last place of a large sum."""
    weights = torch.full((60,), 0.1)
    weights[0] = 1e7
    module = nn.Linear(1, 1, bias=False)
    _, optimizer, _ = private(module, torch.ones(60, 1), weights, max_grad_norm=1e9)
    take_in(optimizer, lambda record: record[1] * module(record[0])[0, 0], batch_of(torch.ones(60, 1), weights), 1)
    assert optimizer._noisy_sum.sums[0].dtype is torch.float64
    assert float(optimizer._noisy_sum.sums[0]) == pytest.approx(1e7 + 5.9, rel=1e-13)


@pytest.mark.parametrize("tokens", [None, 2, 9])
def test_sums_do_not_need_to_know_that_records_are_finite(tokens):
    """A GPU does not wait for that answer: rows of records that are not finite are masked in any case."""
    x, y = data(tokens=tokens)
    module = mlp()
    _, optimizer, _ = private(module, x, y)
    recorder, found = optimizer._recorder, []
    for mask in (None, torch.ones(12, dtype=torch.bool)):
        recorder.begin(np.random.SeedSequence(1))
        recorder.losses(own(module), batch_of(x, y)._groups[0])
        norms = torch.stack([view.squared_norms() for view in optimizer._views], 1)
        c = optimizer._noisy_sum.factors(norms, torch.isfinite(norms).all(1))[:, 0]
        found.append(torch.cat([view.clipped_sum(c, mask).flatten() for view in optimizer._views]))
    assert torch.equal(*found)
