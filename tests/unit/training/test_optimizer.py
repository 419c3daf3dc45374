"""The order of a training loop, and what it may not do."""

import copy
import pickle

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError, UnsupportedError

torch = needs("torch", "opacus")

from torch.nn.functional import cross_entropy  # noqa: E402
from unit.training.helpers import (  # noqa: E402
    batch_of,
    clipped_sums,
    data,
    mlp,
    own,
    private,
    state,
    step,
    take_in,
)

from privproj.training import Batch  # noqa: E402


@pytest.fixture
def loop():
    x, y = data()
    module, optimizer, loader = private(mlp(), x, y)
    return module, optimizer, iter(loader)


# --- each batch once ----------------------------------------------------------------------------------


def test_batch_is_taken_in_once(loop):
    module, optimizer, batches = loop
    batch = next(batches)
    optimizer.backward_on(own(module), batch)
    with pytest.raises(InvalidParameterError, match="used once"):
        optimizer.backward_on(own(module), batch)
    optimizer.step()
    with pytest.raises(InvalidParameterError, match="the private loader returned most recently"):
        optimizer.step_on(own(module), batch)


@pytest.mark.parametrize("wrong", [None, (torch.ones(2, 6), torch.zeros(2)), Batch([]), batch_of(*data())])
def test_step_on_takes_only_batches_of_the_loader(loop, wrong):
    module, optimizer, batches = loop
    next(batches)
    with pytest.raises(InvalidParameterError, match="Pass the batch to step_on as it is"):
        optimizer.step_on(own(module), wrong)


def test_step_needs_the_gradients_of_a_batch(loop):
    _, optimizer, batches = loop
    with pytest.raises(InvalidParameterError, match="after drawing a batch from the private loader"):
        optimizer.step()
    next(batches)
    with pytest.raises(InvalidParameterError, match="after backward_on of the batch"):
        optimizer.step()
    with pytest.raises(InvalidParameterError, match="empty batches are released too"):
        optimizer._turn.open(Batch([]))


def test_batch_shows_no_record(loop):
    _, _, batches = loop
    batch = next(batches)
    assert repr(batch) == "Batch(use it in optimizer.step_on)"
    with pytest.raises(TypeError):
        batch[0]
    with pytest.raises(TypeError):
        iter(batch)


def test_batch_that_failed_may_be_passed_again(loop):
    module, optimizer, batches = loop
    batch, calls = next(batches), []

    def fails_late(record):
        calls.append(1)
        if len(calls) == 4:
            raise ZeroDivisionError
        return own(module)(record)

    with pytest.raises(ZeroDivisionError):
        optimizer.backward_on(fails_late, batch, 2)
    optimizer.step_on(own(module), batch, 2)
    expected = state(module)
    module, optimizer, loader = private(mlp(), *data())
    optimizer.step_on(own(module), next(iter(loader)))
    assert torch.allclose(state(module), expected, rtol=1e-9)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_micro_batch_size_is_at_least_one(loop, size):
    module, optimizer, batches = loop
    batch = next(batches)
    with pytest.raises(InvalidParameterError, match="whole number of records >= 1"):
        optimizer.step_on(own(module), batch, size)
    optimizer.step_on(own(module), batch, 1)


def test_step_on_returns_the_mean_loss(loop):
    module, optimizer, batches = loop
    x, y = data()
    with torch.no_grad():
        expected = float(cross_entropy(module(x), y))
    assert float(optimizer.step_on(own(module), next(batches))) == pytest.approx(expected, rel=1e-6)
    assert float(take_in(optimizer, own(module), Batch([]))) == 0.0


# --- nothing but what was released reaches the weights -------------------------------------------------


def test_no_unreleased_gradient_is_left_behind(loop):
    module, optimizer, batches = loop
    optimizer.backward_on(own(module), next(batches))
    assert all(p.grad is None for p in module.parameters())
    optimizer.step()
    assert all(p.grad is None for p in module.parameters())


def test_gradients_from_elsewhere_are_rejected_until_removed(loop):
    module, optimizer, batches = loop
    batch = next(batches)
    own(module)((torch.ones(1, 6).double(), torch.zeros(1, dtype=torch.long))).sum().backward()
    with pytest.raises(InvalidParameterError, match=r"gradients from elsewhere.*zero_grad"):
        optimizer.step_on(own(module), batch)
    optimizer.zero_grad()
    optimizer.step_on(own(module), batch)


def test_step_of_the_wrapped_optimizer_is_rejected(loop):
    module, optimizer, batches = loop
    optimizer.step_on(own(module), next(batches))
    before = state(module)
    with pytest.raises(InvalidParameterError, match="through the private optimizer only"):
        optimizer._original.step()
    assert torch.equal(state(module), before)
    optimizer.close()
    optimizer._original.step()


def test_step_that_fails_leaves_nothing_for_the_next():
    x, y = data()
    module, optimizer, _ = private(mlp(), x, y, max_grad_norm=1e-3)

    def full(*_):
        raise OSError(28, "No space left on device")

    fine, optimizer._noisy_sum.record = optimizer._noisy_sum.record, full
    take_in(optimizer, own(module), batch_of(x, y))
    with pytest.raises(OSError, match="No space"):
        optimizer.step()
    optimizer._noisy_sum.record = fine
    take_in(optimizer, own(module), batch_of(x[:1], y[:1]))
    assert clipped_sums(optimizer).norm() <= 1e-3
    optimizer.step()


def test_tensors_unfrozen_after_make_private_are_rejected():
    module = mlp()
    module[0].requires_grad_(False)
    module, optimizer, _ = private(module, *data())
    module[0].requires_grad_(True)
    with pytest.raises(InvalidParameterError, match="tensors before make_private only"):
        step(module, optimizer, *data())


def test_gradient_scaler_is_rejected():
    x, y = data()
    module, optimizer, _ = private(mlp(), x, y)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    take_in(optimizer, lambda record: scaler.scale(own(module)(record)), batch_of(x, y))
    with pytest.raises(InvalidParameterError, match="Remove the scaler"):
        scaler.step(optimizer)
    assert optimizer.steps_done == 0


# --- counts, states, copies ------------------------------------------------------------------------------


def test_steps_done_and_left_count_releases():
    module, optimizer, loader = private(mlp(), *data(), noise_multiplier=10.0)
    batches = iter(loader)
    assert (optimizer.steps_done, optimizer.steps_left, optimizer.has_released) == (0, 50, False)
    planned = optimizer.epsilon(1e-5).value
    optimizer.step_on(own(module), next(batches))
    assert (optimizer.steps_done, optimizer.steps_left, optimizer.has_released) == (1, 49, True)
    assert optimizer.epsilon(1e-5).value < planned


def test_schedulers_hooks_and_close():
    module, optimizer, loader = private(mlp(), *data(), noise_multiplier=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for batch in loader:
        optimizer.zero_grad()
        optimizer.backward_on(own(module), batch)
        optimizer.step()
        scheduler.step()
    assert calls == ["before", "after"]
    assert optimizer._original.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.5
    optimizer.close()
    assert all(p.requires_grad for p in module.parameters())


def test_private_optimizer_is_neither_copied_nor_pickled():
    """A copy would draw the same noise again."""
    module, optimizer, _ = private(mlp(), *data())
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="repeat its noise"):
            make(optimizer)
    step(module, optimizer, *data())
    assert torch.equal(state(pickle.loads(pickle.dumps(module))), state(module))
    assert torch.equal(state(copy.deepcopy(module)), state(module))


def test_state_of_more_releases_than_are_accounted_is_rejected(tmp_path):
    """Resuming without the ledger would forget what was released."""
    x, y = data()
    book = str(tmp_path / "ledger.jsonl")
    adam = lambda p: torch.optim.Adam(p, lr=0.1)  # noqa: E731
    module, optimizer, _ = private(mlp(), x, y, adam, ledger=book)
    for _ in range(3):
        step(module, optimizer, x, y)
    saved, weights = copy.deepcopy(optimizer.state_dict()), state(module)
    optimizer.close()
    with pytest.raises(InvalidParameterError, match="a state after 3 releases"):
        private(mlp(), x, y, adam)[1].load_state_dict(saved)
    with pytest.warns(UserWarning, match="already holds 3"):
        module, optimizer, _ = private(mlp(), x, y, adam, ledger=book)
    optimizer.load_state_dict(saved)
    step(module, optimizer, x, y)
    assert optimizer.steps_done == 4 and optimizer.state is optimizer._original.state and len(optimizer.state) == 4
    assert not torch.equal(state(module), weights)


def test_large_delta_gives_a_warning():
    module, optimizer, loader = private(mlp(), *data(), noise_multiplier=5.0)
    optimizer.step_on(own(module), next(iter(loader)))
    for delta, warned in ((0.08, False), (0.084, True)):
        condition = " ".join(optimizer.epsilon(delta).warnings)
        assert ("delta is not below 1/N = 0.0833" in condition) == warned


@pytest.mark.parametrize(
    ("build", "condition"),
    [
        (torch.optim.LBFGS, "no closure"),
        (torch.optim.SparseAdam, "dense gradients"),
        (lambda p: torch.optim.SGD(p, lr=0.1, differentiable=True), "dense gradients"),
    ],
)
def test_optimizers_that_cannot_step_on_releases_are_rejected(build, condition):
    with pytest.raises(InvalidParameterError, match=condition):
        private(mlp(), *data(), optimizer=build)
