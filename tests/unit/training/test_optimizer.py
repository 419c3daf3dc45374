"""What the training loop may not do."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from unit.training.helpers import data, losses_of, mlp, one_step, own, private  # noqa: E402


@pytest.fixture
def loop():
    x, y = data()
    module = mlp()
    _, optimizer, loader = private(module, x, y)
    return module, optimizer, iter(loader)


def test_record_comes_back_once(loop):
    module, optimizer, batches = loop
    batch = next(batches)
    optimizer.backward_on(own(module), batch)
    with pytest.raises(InvalidParameterError, match="unchanged and used once"):
        optimizer.backward_on(own(module), batch)


def test_all_records_come_back(loop):
    _, optimizer, batches = loop
    next(batches)
    with pytest.raises(InvalidParameterError, match="all 12 records"):
        optimizer.step()


def test_losses_are_one_for_each_record(loop):
    module, optimizer, batches = loop
    batch = next(batches)
    with pytest.raises(InvalidParameterError, match='reduction="none"'):
        optimizer.backward_on(lambda part: losses_of(module, *part).mean(), batch)


def test_step_needs_a_batch_and_a_batch_a_step(loop):
    _, optimizer, _ = loop
    with pytest.raises(InvalidParameterError, match="private loader"):
        optimizer.step()
    optimizer._turn.open(0)
    with pytest.raises(InvalidParameterError, match="empty batches are released too"):
        optimizer._turn.open(3)


def test_no_unreleased_gradient_is_left_behind(loop):
    module, optimizer, batches = loop
    batch = next(batches)
    optimizer.backward_on(own(module), batch)
    assert all(p.grad is None for p in module.parameters())


def test_weights_that_do_not_move_are_detected():
    x, y = data()

    class Idle(torch.optim.SGD):
        def step(self, closure=None):
            return None

    with pytest.raises(InvalidParameterError, match="must be changed by the first step"):
        one_step(mlp(), x, y, optimizer=lambda p: Idle(p, lr=1.0))
    one_step(mlp(), x, y, optimizer=lambda p: torch.optim.SGD(p, lr=0.0))


def test_step_that_fails_leaves_nothing_for_the_next():
    x, y = data()
    module = mlp()
    _, optimizer, _ = private(module, x, y, max_grad_norm=1e-3)

    def full(*_):
        raise OSError(28, "No space left on device")

    fine, optimizer._noisy_sum.record = optimizer._noisy_sum.record, full
    optimizer._turn.open(12)
    optimizer.backward_on(own(module), (x, y))
    with pytest.raises(OSError, match="No space"):
        optimizer.step()
    optimizer._noisy_sum.record = fine
    optimizer._turn.open(1)
    optimizer.backward_on(own(module), (x[:1], y[:1]))
    assert torch.cat([s.flatten() for s in optimizer._noisy_sum.sums]).norm() <= 1e-3
    optimizer.step()


def test_schedulers_and_close():
    x, y = data()
    module = mlp()
    _, optimizer, loader = private(module, x, y, noise_multiplier=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for batch in loader:
        optimizer.zero_grad()
        optimizer.backward_on(own(module), batch)
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert all(p.requires_grad for p in module.parameters())
    optimizer.close()
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_part_has_at_least_one_record(loop, size):
    module, optimizer, batches = loop
    batch = next(batches)
    with pytest.raises(InvalidParameterError, match="whole number of records >= 1"):
        optimizer.step_on(lambda part: losses_of(module, *part), batch, size)
    optimizer.step_on(lambda part: losses_of(module, *part), batch, 1)


def test_large_delta_gives_a_warning():
    x, y = data(records=12)
    module = mlp()
    _, optimizer, loader = private(module, x, y, noise_multiplier=5.0)
    optimizer.step_on(own(module), next(iter(loader)))
    for delta, warned in ((0.08, False), (0.084, True)):
        words = " ".join(optimizer.epsilon(delta).warnings)
        assert ("delta is not below 1/N = 0.0833" in words) == warned
