"""What a run rests on stays as it was, or the batch is refused."""

import copy
import pickle

import numpy as np
import pytest
from helpers import needs

from privproj.errors import InvalidParameterError, UnsupportedError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from unit.training.helpers import data, losses_of, mlp, own, private, state, step  # noqa: E402


@pytest.mark.parametrize("change", [nn.Module.bfloat16, nn.Module.half, nn.Module.float])
def test_module_that_changes_dtype_is_rejected(change):
    """Noise in 16 bits has few values, and norms of 16 bits are wrong by more than the slack."""
    x, y = data()
    module, optimizer, _ = private(mlp(), x, y)
    change(module)
    with pytest.raises(InvalidParameterError, match="as when make_private was called"):
        optimizer._turn.open(12)
    module, optimizer, _ = private(mlp(), x, y)
    optimizer._turn.open(12)
    optimizer.backward_on(own(module), (x, y))
    change(module)
    with pytest.raises(InvalidParameterError, match="as when make_private was called"):
        optimizer.step()
    assert optimizer._steps == 0


def test_tensor_unfrozen_midway_is_rejected():
    x, y = data()
    module = mlp()
    module[0].requires_grad_(False)
    module, optimizer, _ = private(module, x, y)
    step(module, optimizer, x, y)
    module[0].requires_grad_(True)
    with pytest.raises(InvalidParameterError, match="as when make_private was called"):
        optimizer._turn.open(12)
    module[0].requires_grad_(False)
    optimizer._turn.drawn = None
    step(module, optimizer, x, y)
    # A second optimizer finds nothing to step by, whenever the tensor was unfrozen.
    optimizer._turn.open(12)

    def losses(part):
        module[0].requires_grad_(True)
        return own(module)(part)

    with pytest.raises(InvalidParameterError, match="as when make_private was called"):
        optimizer.backward_on(losses, (x, y))
    assert all(p.grad is None for p in module.parameters())


def test_buffer_that_asks_for_a_gradient_is_rejected():
    x, y = data()
    module = mlp()
    module.register_buffer("scale", torch.ones((), dtype=torch.float64).requires_grad_(True))
    module, optimizer, _ = private(module, x, y)
    with pytest.raises(InvalidParameterError, match="as when make_private was called"):
        optimizer._turn.open(12)


class Keeper(nn.Module):
    """A head that keeps something of every batch that it sees."""

    def __init__(self, keep):
        super().__init__()
        torch.manual_seed(0)
        self.head, self.keep = nn.Linear(6, 3).double(), keep
        self.register_buffer("ema", torch.zeros(6).double())
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.frozen = nn.Parameter(torch.zeros(6).double(), requires_grad=False)

    def forward(self, x):
        self.keep(self, x.detach().mean(0))
        return self.head(x)


def replaced(module, mean):
    module.ema = 0.9 * module.ema + 0.1 * mean


def in_place(module, mean):
    module.ema.mul_(0.9).add_(0.1 * mean)


def by_data(module, mean):
    module.ema.data.mul_(0.9).add_(0.1 * mean)


def by_new_data(module, mean):
    module.ema.data = 0.9 * module.ema.data + 0.1 * mean


def frozen_weight(module, mean):
    module.frozen.data.copy_(mean)


def registered(module, mean):
    module.register_buffer("late", mean)


def attribute(module, mean):
    module.seen = mean


def number(module, mean):
    module.seen = float(mean.sum())


def whole_number(module, mean):
    module.seen = getattr(module, "seen", 0) + int((1000.0 * mean).sum())


def flag(module, mean):
    module.seen = getattr(module, "seen", False) != bool(mean[0] > mean[1])


def numpy_number(module, mean):
    module.seen = np.float64(mean.sum())


def members(module, mean):
    module.__dict__.setdefault("seen", set()).add(round(float(mean[0]), 3))


def histogram(module, mean):
    module.seen = getattr(module, "seen", torch.zeros(6, dtype=torch.long)) + (1000.0 * mean).long()


def table(module, mean):
    module.__dict__.setdefault("seen", {})["mean"] = mean


@pytest.mark.parametrize(
    "keep",
    [
        *(replaced, in_place, by_data, by_new_data, frozen_weight, registered, attribute, number, table),
        *(whole_number, numpy_number, members, histogram),
    ],
)
def test_module_that_keeps_something_of_a_batch_is_rejected(keep):
    x, y = data()
    module, optimizer, loader = private(Keeper(keep), x, y)
    batch = next(iter(loader))
    with pytest.raises(InvalidParameterError, match=r"by the forward pass|other tensors than before"):
        optimizer.step_on(own(module), batch)
    assert optimizer._steps == 0 and all(total is None for total in optimizer._noisy_sum.sums)


@pytest.mark.parametrize("parts", [{"strict": True}, {"micro_batch_size": 3}])
def test_what_only_later_parts_of_a_batch_leave_is_rejected(parts):
    def late(module, mean):
        module.calls = getattr(module, "calls", 0) + 1
        if module.calls > 1:
            module.seen = float(mean.sum())

    x, y = data()
    module, optimizer, loader = private(Keeper(late), x, y)
    with pytest.raises(InvalidParameterError, match="seen must be constant within a batch, got a value changed"):
        optimizer.step_on(own(module), next(iter(loader)), **parts)
    assert optimizer._steps == 0


@pytest.mark.parametrize("keep", [whole_number, flag, histogram])
def test_strict_rejects_whole_numbers_that_records_leave(keep):
    x, y = data(64)
    module, optimizer, loader = private(Keeper(keep), x, y)
    with pytest.raises(InvalidParameterError, match="seen must be constant within a batch, got a value changed"):
        optimizer.step_on(own(module), next(iter(loader)), strict=True)
    assert optimizer._steps == 0


def test_integer_state_is_a_counter_or_a_size():
    """Either alone may stay; by turns they tell something of each record."""

    def by_turns(module, mean):
        before = getattr(module, "seen", -1)
        module.seen = 1 if before > 0 and mean[0] > 0.0 else before + 1

    x, y = data(64)
    module, optimizer, loader = private(Keeper(by_turns), x, y)
    with pytest.raises(InvalidParameterError, match="seen must be constant within a batch, got a value changed"):
        optimizer.step_on(own(module), next(iter(loader)), strict=True)


@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 5}, {"strict": True}])
def test_counter_a_size_and_a_table_of_constants_may_stay(parts):
    def count(module, x):
        module.calls = getattr(module, "calls", 0) + 1
        module.size, module.shapes = len(x), {x.dim(): (len(x), x.shape[1])}
        if not hasattr(module, "places"):
            module.places = torch.arange(6.0)

    x, y = data()
    module, optimizer, loader = private(Keeper(lambda *_: None), x, y)
    module.register_forward_pre_hook(lambda module, args: count(module, *args))
    for batch in loader:
        optimizer.step_on(lambda part: losses_of(module, *part), batch, **parts)
    assert optimizer._steps == 1 and module.calls > 0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("parts", [{}, {"strict": True}])
def test_fused_step_of_other_optimizer_is_detected(kind, parts):
    """Fused kernels do not count that they write."""
    x, y = data(dtype=torch.float32)
    module, optimizer, loader = private(mlp(dtype=torch.float32), x, y)
    other = kind(module.parameters(), lr=0.1, fused=True)
    optimizer.step_on(own(module), next(iter(loader)), **parts)
    losses_of(module, x, y).sum().backward()
    other.step()
    with pytest.raises(InvalidParameterError, match="got a change outside the release"):
        optimizer.step_on(own(module), next(iter(loader)), **parts)
    assert optimizer._steps == 1


def test_teacher_update_is_allowed_after_a_release_only():
    x, y = data()
    module, optimizer, loader = private(Keeper(lambda *_: None), x, y)
    optimizer.attach_step_hook(lambda _: module.frozen.add_(1.0))
    optimizer.step_on(own(module), next(iter(loader)))
    optimizer.backward_on(own(module), next(iter(loader)))
    module.frozen.add_(1.0)
    with pytest.raises(
        InvalidParameterError,
        match=r"frozen must be constant .*, got a change outside the release.*those of a teacher, in",
    ):
        optimizer.step()


def test_weights_loaded_between_batches_are_accepted():
    x, y = data()
    module, optimizer, loader = private(mlp(), x, y)
    for _ in range(2):
        optimizer.step_on(own(module), next(iter(loader)))
        module.load_state_dict({name: 0.5 * part for name, part in module.state_dict().items()})
    optimizer.step_on(own(module), next(iter(loader)))
    assert optimizer._steps == 3


def test_fused_optimizer_of_ones_own_and_a_long_warm_up_pass():
    """Steps up and down by one size cancel in a plain sum; those of a warm-up may be less than rounding."""
    for seed in range(40):
        torch.manual_seed(seed)
        x, y = data(dtype=torch.float32, seed=seed)
        module = nn.Sequential(nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 3))
        build = lambda p: torch.optim.AdamW(p, lr=1e-3 if seed % 2 else 1e-8, fused=True)  # noqa: E731, B023
        module, optimizer, loader = private(module, x, y, build, insecure_seed=seed)
        optimizer.step_on(own(module), next(iter(loader)))
        assert optimizer._steps == 1


def test_plain_tensor_that_asks_for_a_gradient_keeps_none():
    x, y = data()
    module, optimizer, loader = private(mlp(), x, y)
    scale = torch.ones((), dtype=x.dtype, requires_grad=True)
    optimizer.step_on(
        lambda part: functional.cross_entropy(scale * module(part[0]), part[1], reduction="none"), next(iter(loader))
    )
    assert optimizer._steps == 1 and scale.grad is None


LEAVES = {
    "weights of the loss": lambda m, w, x: functional.linear(m(x), w),
    "a scale": lambda m, w, x: m(x) * w.sum(),
    "an input of the module": lambda m, w, x: m(x + w.sum(1)[:1]),
}


@pytest.mark.parametrize("name", LEAVES)
@pytest.mark.parametrize("parts", [{}, {"strict": True}])
def test_no_gradient_is_left_on_tensors_outside_the_module(name, parts):
    x, y = data()
    module, optimizer, loader = private(mlp(), x, y)
    outside = nn.Parameter(torch.randn(3, 3, dtype=x.dtype))

    def loss(part):
        return functional.cross_entropy(LEAVES[name](module, outside, part[0]), part[1], reduction="none")

    with pytest.raises(InvalidParameterError, match="differentiable in the trained tensors only"):
        optimizer.step_on(loss, next(iter(loader)), **parts)
    assert outside.grad is None and optimizer._steps == 0


def test_private_optimizer_is_neither_copied_nor_pickled():
    """A copy would draw the same noise again."""
    x, y = data()
    module, optimizer, _ = private(mlp(), x, y)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="repeat its noise"):
            make(optimizer)
    step(module, optimizer, x, y)
    other = torch.optim.SGD(mlp().parameters(), lr=1.0)
    assert copy.deepcopy(other).param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize("build", [mlp, lambda: nn.Linear(6, 3).double()])
def test_module_is_pickled_after_its_run_only(build):
    x, y = data()
    module, optimizer, _ = private(build(), x, y)
    step(module, optimizer, x, y)
    with pytest.raises(UnsupportedError, match=r"module\.state_dict"):
        pickle.dumps(module)
    assert torch.equal(state(copy.deepcopy(module)), state(module))
    optimizer.close()
    assert torch.equal(state(pickle.loads(pickle.dumps(module))), state(module))


def test_private_optimizer_is_a_torch_optimizer():
    """Schedulers, hooks and groups work on it as on the wrapped one."""
    x, y = data()
    module, optimizer, _ = private(mlp(), x, y)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    for _ in range(3):
        step(module, optimizer, x, y)
        scheduler.step()
    assert calls == ["before", "after"] * 3 and isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer._original.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.125


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
    assert optimizer._steps == 4 and optimizer.state is optimizer._original.state and len(optimizer.state) == 4
    assert not torch.equal(state(module), weights)


def test_gradient_scaler_is_rejected():
    x, y = data()
    module, optimizer, _ = private(mlp(), x, y)
    scaler = torch.amp.GradScaler("cpu")
    optimizer._turn.open(12)
    optimizer.backward_on(lambda part: scaler.scale(losses_of(module, *part)), (x, y))
    with pytest.raises(InvalidParameterError, match="Remove the scaler"):
        scaler.step(optimizer)
    assert optimizer._steps == 0
