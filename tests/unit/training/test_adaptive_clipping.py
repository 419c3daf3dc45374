"""A clip that follows a quantile: its rule, its noise, parts of a batch, what a resume keeps, and what is rejected."""

import math
from dataclasses import replace

import pytest
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

torch = needs("torch")
needs("opacus")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import SILENT, batch_of, data, make_private, mlp, own, private, step, take_in  # noqa: E402

from privproj import M2, InvalidParameterError, UnsupportedError  # noqa: E402
from privproj.integrations.opacus import ProjectionAccountant  # noqa: E402
from privproj.io.ledger import read_ledger  # noqa: E402
from privproj.training import (  # noqa: E402
    AdaptiveClipping,
    Batch,
)

SURE = AdaptiveClipping(sigma=SILENT, learning_rate=0.5, target_quantile=0.4)
"""A count whose noise cannot be seen."""


def count_of(run, before):
    """The noisy count that moved the clip from ``before`` to where it is."""
    adaptive = run.plan.adaptive_clipping
    share = adaptive.target_quantile - math.log(run.clip / before) / adaptive.learning_rate
    return (share - 0.5) * run.plan.expected_batch


positive = st.floats(1e-12, 1e9)


@settings(max_examples=40)
@given(positive, st.floats(-1e9, 1e9), st.floats(0.01, 0.99), st.floats(0.01, 10.0), st.floats(1e-3, 1e9))
def test_adaptive_clip_stays_in_range_and_falls_with_count(clip, count, quantile, rate, batch):
    clipping = AdaptiveClipping(target_quantile=quantile, learning_rate=rate, least=1e-6, most=1e3)
    found = clipping.next_clip(clip, count, batch)
    assert 1e-6 <= found <= 1e3
    assert clipping.next_clip(clip, count + batch, batch) <= found


def test_adaptive_clip_is_constant_at_the_quantile():
    clipping = AdaptiveClipping(target_quantile=0.7, learning_rate=0.3)
    assert clipping.next_clip(2.0, 0.2 * 50, 50.0) == pytest.approx(2.0, rel=1e-14)
    assert clipping.next_clip(2.0, 0.5 * 50, 50.0) == pytest.approx(2.0 * math.exp(-0.3 * 0.3), rel=1e-14)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_quantile": 0.0}, {"target_quantile": 1.0}, {"target_quantile": math.nan}, {"learning_rate": 0.0},
        {"learning_rate": 11.0}, {"sigma": 0.0}, {"sigma": "1"}, {"least": 0.0}, {"least": 2.0, "most": 1.0},
        {"most": math.inf},
    ],
)  # fmt: skip
def test_values_outside_their_ranges_are_rejected(wrong):
    with pytest.raises(InvalidParameterError):
        AdaptiveClipping(**wrong)


def test_adaptive_clipping_sigma_defaults_to_batch_over_20():
    x, y = data(40)
    _, run, _ = private(mlp(), x, y, adaptive_clipping=AdaptiveClipping(), sampling_rate=0.5)
    assert run.plan.expected_batch == 20.0
    assert run.plan.adaptive_clipping.sigma == run.plan.mechanism.adaptive_clipping_sigma == 1.0


def test_noise_is_calibrated_together_with_the_count(tmp_path):
    x, y = data(40)
    given = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5, "steps": 2, "algorithm": "m2", "rank": 2}
    ledger = str(tmp_path / "ledger")
    module = mlp()
    _, run, loader = private(module, x, y, **given, ledger=ledger, adaptive_clipping=AdaptiveClipping(sigma=4.0))
    _, plain, _ = private(mlp(), x, y, **given)
    assert run.noise_multiplier > 1.001 * plain.noise_multiplier
    while run.steps_done < 2:
        for batch in loader:
            run.step_on(own(module), batch)
    assert 2.99 < run.epsilon(1e-5).value <= 3.0
    assert read_ledger(ledger).phases[0][0]["adaptive_clipping_sigma"] == 4.0
    assert read_ledger(ledger).epsilon(1e-5).value == run.epsilon(1e-5).value


def break_at(loss_fn, calls):
    """A loss function that fails at its fourth call."""

    def broken(record):
        calls.append(1)
        if len(calls) == 4:
            raise RuntimeError("broken")
        return loss_fn(record)

    return broken


def test_count_of_micro_batches_is_added_once():
    x, y = data()
    clips = []
    for parts in (1, 3, 12):
        module = mlp()
        _, run, _ = private(module, x, y, adaptive_clipping=SURE, max_grad_norm=0.7)
        batch, calls = batch_of(x, y), []
        run._turn.open(batch)
        with pytest.raises(RuntimeError, match="broken"):
            run.backward_on(break_at(own(module), calls), batch, 4)
        run.backward_on(own(module), batch, -(-len(x) // parts))
        run.step()
        clips.append(run.clip)
    assert clips[1:] == pytest.approx(clips[:1] * 2, rel=1e-9)


def test_count_treats_non_finite_records_as_clipped():
    x, y = data()
    for bad, unclipped in ((0, len(x)), (3, len(x) - 3)):
        module, rows = mlp(), x.clone()
        rows[:bad] = math.inf
        _, run, _ = private(module, rows, y, adaptive_clipping=SURE, max_grad_norm=1e6)
        step(module, run, rows, y)
        assert count_of(run, 1e6) == pytest.approx(unclipped - 0.5 * len(x), abs=1e-6)
    before = run.clip
    run._turn.open(Batch([]))
    run.step()
    assert count_of(run, before) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("clip", [1e-6, 1e6])
def test_one_record_there_or_not_moves_the_count_by_a_half(clip):
    """A plain count moves by 1 where a record is not clipped: with this noise that is more than is accounted (C31)."""
    x, y = data()
    found = []
    for records in (11, 12):
        module = mlp()
        _, run, _ = private(module, x, y, adaptive_clipping=SURE, max_grad_norm=clip)
        take_in(run, own(module), batch_of(x[:records], y[:records]))
        found.append(float(run._noisy_sum.count))
    assert abs(found[1] - found[0]) == 0.5


@pytest.mark.parametrize(("relation", "times"), [("add-remove", 1.0), ("replace", 2.0)])
def test_noise_follows_the_clip(relation, times):
    x, y = data()
    _, run, _ = private(mlp(), x, y, adaptive_clipping=SURE, noise_multiplier=2.5, relation=relation, insecure_seed=3)
    draws = []
    for clip in (1.0, 40.0):
        run._noisy_sum.set_clip(clip)
        run._noisy_sum.record = lambda: None
        means = torch.cat([mean.flatten() for mean in run._noisy_sum.release()])
        draws.append(means * run.plan.expected_batch / (2.5 * times * clip))
    for found in draws:
        assert abs(float(found.std()) - 1.0) < 5.0 / math.sqrt(2 * found.numel())
    assert run._views[0].noise_scale == 40.0


def test_state_keeps_the_clip_and_checks_its_range():
    x, y = data()
    module = mlp()
    _, run, _ = private(module, x, y, adaptive_clipping=SURE)
    step(module, run, x, y)
    state = run.state_dict()
    assert state["privproj"]["clip"] == run.clip != 1.0
    with pytest.raises(InvalidParameterError, match="releases"):
        private(mlp(), x, y, adaptive_clipping=SURE)[1].load_state_dict(state)
    state["privproj"]["releases"] = 0
    _, other, _ = private(mlp(), x, y, adaptive_clipping=SURE)
    other.load_state_dict(state)
    assert other.clip == run.clip
    for wrong in (1e13, math.nan, "1", None):
        state["privproj"]["clip"] = wrong
        with pytest.raises(InvalidParameterError, match="clip"):
            other.load_state_dict(state)
    # Half of a batch was clipped to one norm: its noise must not be that of another.
    state["privproj"]["clip"] = 0.5
    take_in(run, own(module), batch_of(x, y))
    with pytest.raises(InvalidParameterError, match="between batches"):
        run.load_state_dict(state)
    assert "clip" not in private(mlp(), x, y)[1].state_dict()["privproj"]


def test_what_has_no_clip_that_can_adapt_is_rejected():
    x, y = data()
    for wrong in ({"max_grad_norm": 1e-3, "clipping": AdaptiveClipping(least=1.0)}, {"clipping": 0.5}):
        with pytest.raises(InvalidParameterError):
            private(mlp(), x, y, **wrong)
    _, optimizer, _ = private(mlp(), x, y, adaptive_clipping=SURE)
    with pytest.raises(InvalidParameterError, match="adaptive_clipping"):
        replace(optimizer.plan, shares=(0.5, 0.5))
    with pytest.raises(UnsupportedError, match="does not support adaptive clipping"):
        private(mlp(), x, y, algorithm="m2", rank=2, bound="beta-tail", adaptive_clipping=SURE)


def test_accountant_that_would_leave_the_count_out_rejects():
    x, y = data()
    _, run, _ = private(mlp(), x, y, adaptive_clipping=AdaptiveClipping(sigma=1.0), noise_multiplier=1.0)
    with pytest.raises(UnsupportedError, match="count"):
        ProjectionAccountant().get_optimizer_hook_fn(1.0)(run)


@pytest.mark.full
@pytest.mark.parametrize("quantile", [0.3, 0.7])
def test_clip_finds_its_quantile_from_far_away(quantile):
    """Digits through a linear head that hardly moves: the share of norms below the last clips is the quantile."""
    needs("sklearn")
    from privproj.training.classifier import load

    found = load("digits")
    module = torch.nn.Linear(64, 10)
    clipping = AdaptiveClipping(target_quantile=quantile)
    _, run, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1e-3), algorithm="m2", rank=8,
        data_loader=DataLoader(TensorDataset(found.x, found.y), batch_size=256), max_grad_norm=0.01, epochs=40,
        noise_multiplier=1.0, adaptive_clipping=clipping, insecure_seed=5,
    )  # fmt: skip
    clips = []
    while run.steps_done < run.plan.steps:
        for batch in loader:
            run.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
            clips.append(run.clip)
    with torch.no_grad():
        residual = torch.softmax(module(found.x), 1) - torch.nn.functional.one_hot(found.y, 10)
        sizes = residual.norm(dim=1) * (found.x.square().sum(1) + 1.0).sqrt()
    last = sum(clips[-60:]) / 60
    assert abs(float((sizes <= last).double().mean()) - quantile) < 0.06
    assert run.plan.mechanism == M2(
        dim=65, rank=8, columns=10, noise_multiplier=1.0, adaptive_clipping_sigma=run.plan.adaptive_clipping.sigma
    )
