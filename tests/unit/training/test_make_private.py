"""What is rejected before any data, and accepted until it changes."""

import math
import warnings

import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import read_ledger

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import batch_of, data, mlp, one_step, own, private, take_in  # noqa: E402

from privproj import training  # noqa: E402
from privproj.training import Batch, Method, make_private  # noqa: E402
from privproj.training.algorithms import ALGORITHMS  # noqa: E402
from privproj.training.dataset import STAMP  # noqa: E402
from privproj.training.private import OWNERS  # noqa: E402

# --- norms ----------------------------------------------------------------------------------------


# --- what the loop may not do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "options", "condition"),
    [
        (lambda: mlp().requires_grad_(False), {}, "tensors that require a gradient"),
        (lambda: mlp().half(), {}, "float32"),
        (mlp, {"algorithm": "m2"}, "rank"),
        (mlp, {"algorithm": "m2", "rank": 6}, "clipping=per-layer"),
        (mlp, {"algorithm": "m2", "rank": 2.5}, "rank must be an integer from 1 to 1e7, got 2.5"),
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)), {"algorithm": "m2", "rank": 2}, "unprojected"),
        (mlp, {"algorithm": "lora-fa", "rank": 2}, "add_frozen_lora"),
        (mlp, {"algorithm": "dp-sgd", "rank": 2}, "rank must be omitted for dp-sgd"),
        (mlp, {"noise_multiplier": math.nan}, "noise_multiplier"),
        (mlp, {"noise_multiplier": None}, "missing noise_multiplier"),
        (mlp, {"max_grad_norm": 0.0}, "max_grad_norm must be a number from 1e-20 to 1e12, got 0"),
        (mlp, {"sampling_rate": 1.5}, "rate must be a number above 0 and at most 1, got 1.5"),
        (mlp, {"steps": None}, "missing steps; give steps or epochs"),
        (mlp, {"clipping": "per-layer", "shares": (0.5, 0.6)}, "sum to 1"),
        (mlp, {"algorithm": "sgd"}, "did you mean 'dp-sgd'"),
        (mlp, {"epochs": 0, "steps": None}, "epochs"),
        (mlp, {"frame": "wishart"}, "haar or wishart"),
    ],
)
def test_what_is_rejected_before_any_data(build, options, condition):
    module = build()
    trained = [p.requires_grad for p in module.parameters()]
    with pytest.raises(InvalidParameterError, match=condition):
        private(module, *data(), optimizer=lambda p: torch.optim.SGD(p or [torch.zeros(1)], lr=1.0), **options)
    assert [p.requires_grad for p in module.parameters()] == trained


@pytest.mark.parametrize(
    ("algorithm", "option", "remedy"),
    [
        ("dp-sgd", {"rank": 16}, r'Method\("m2", rank=16\)'),
        ("flora", {"rank": 16}, r'Method\("flora", rank=16\)'),
        ("dp-sgd", {"bound": "rdp"}, r"""Method\("dp-sgd", bound='rdp'\)"""),
    ],
)
def test_option_of_algorithm_error_names_method(algorithm, option, remedy):
    module = mlp()
    optimizer, loader = torch.optim.SGD(module.parameters(), lr=1.0), DataLoader(TensorDataset(*data()), batch_size=2)
    settings = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "steps": 1, "algorithm": algorithm, **option}
    with pytest.raises(InvalidParameterError, match=f"given with the algorithm, got .* Pass algorithm={remedy}"):
        make_private(module=module, optimizer=optimizer, data_loader=loader, **settings)


def test_options_with_owners_are_those_of_method():
    assert set(OWNERS) == set(Method.__dataclass_fields__) - {"name"}
    assert set(OWNERS.values()) <= set(ALGORITHMS)


def test_batch_norm_trains_in_evaluation_mode_only():
    x, y = data()
    norm = nn.BatchNorm1d(6).double().eval()
    module = nn.Sequential(norm, nn.Linear(6, 3).double())
    one_step(module, x, y)
    module = nn.Sequential(norm, nn.Linear(6, 3).double())
    module.requires_grad_(True)
    for part in (*module.parameters(), *module.modules()):
        vars(part).pop(STAMP, None)
    _, optimizer, _ = private(module, x, y)
    module.train()
    with pytest.raises(InvalidParameterError, match=r"BatchNorm1d in training mode. Replace it by nn\.GroupNorm"):
        take_in(optimizer, own(module), batch_of(x, y))


def test_optimizer_of_other_tensors_is_rejected():
    x, y = data()
    with pytest.raises(InvalidParameterError, match="every trained tensor"):
        private(mlp(), x, y, optimizer=lambda p: torch.optim.SGD(mlp().parameters(), lr=1.0))


# Each of the next ones was a way, found in review, to train on what was not released.
def test_make_private_rejects_tensors_outside_its_layers():
    x, y = data()
    outside = nn.Parameter(torch.ones(()))
    with pytest.raises(InvalidParameterError, match="and no others"):
        private(mlp(), x, y, optimizer=lambda p: torch.optim.SGD([*p, outside], lr=1.0))
    module = mlp()
    module[0].requires_grad_(False)
    held = lambda p: torch.optim.SGD(module.parameters(), lr=1.0)  # noqa: E731
    _, optimizer, _ = private(module, x, y, held)
    module[0].requires_grad_(True)
    before = module[0].weight.detach().clone()
    with pytest.raises(InvalidParameterError, match="as it was planned"):
        take_in(optimizer, own(module), batch_of(x, y))
    assert module[0].weight.grad is None
    with pytest.raises(InvalidParameterError, match="after backward_on of the batch"):
        optimizer.step()
    assert torch.equal(module[0].weight, before) and optimizer.steps_done == 0
    module[0].requires_grad_(False)
    optimizer._turn.batch = None
    module[0].weight.grad = torch.ones_like(before)
    optimizer._turn.open(Batch([]))
    optimizer.step()
    assert torch.equal(module[0].weight, before)


def test_ledger_with_releases_of_the_plan_warns(tmp_path):
    """A fresh module under an old ledger would be trained by the rest of the plan only, or not at all."""
    book, (x, y) = str(tmp_path / "ledger.jsonl"), data()
    for made, condition in ((0, None), (1, "1 of 2"), (2, "nothing is left")):
        with warnings.catch_warnings(record=True) as message:
            warnings.simplefilter("always")
            module, optimizer, loader = private(mlp(), x, y, steps=2, ledger=book)
        shown_values = [str(w.message) for w in message if w.category.__name__ == "ResumedLedger"]
        assert (len(shown_values) == 1 and condition in shown_values[0]) if condition else not shown_values, made
        if made == 2:
            with pytest.raises(UnsupportedError, match="all 2 planned steps were released"):
                next(iter(loader))
        for batch in () if made == 2 else loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
            break
        optimizer.close()


def test_second_call_before_any_release_replaces_the_first():
    x, y = data()
    module, first, loader = private(mlp(), x, y)
    batch = next(iter(loader))
    module, second, loader = private(module, x, y, noise_multiplier=2.0)
    with pytest.raises(InvalidParameterError, match="one whose run is closed"):
        first.step_on(own(module), batch)
    second.step_on(own(module), next(iter(loader)))
    assert second.steps_done == 1
    with pytest.raises(InvalidParameterError, match="from an earlier call of make_private"):
        private(module, x, y)


def test_make_private_takes_what_an_earlier_call_returned():
    module, optimizer, loader = private(mlp(), *data())
    run = training.make_private(
        module=module, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, noise_multiplier=1.0, steps=2
    )
    assert run[1]._original is optimizer._original and run[2].original is loader.original


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("target_epsilon", "Use epsilon=1"), ("target_delta", "Use delta=1"), ("poisson_sampling", "Use batches="),
        ("max_physical_batch_size", "Use micro_batch_size"),
    ],
)  # fmt: skip
def test_make_private_names_of_opacus_give_ours(name, remedy):
    with pytest.raises(InvalidParameterError, match=f"{name} must be omitted, got 1. {remedy}"):
        private(mlp(), *data(), **{name: 1})
    with pytest.raises(InvalidParameterError, match="unknown argument 'nonsense' of make_private"):
        private(mlp(), *data(), nonsense=1)


def test_make_private_group_size_gives_user_level_epsilon(tmp_path):
    module, (x, y) = mlp(), data()
    run = {"sampling_rate": 0.25, "steps": 4, "group_size": 3}
    path = str(tmp_path / "ledger.jsonl")
    _, optimizer, _ = private(module, x, y, noise_multiplier=None, epsilon=3.0, delta=1e-3, ledger=path, **run)
    z = optimizer.plan.noise_multiplier
    requested = privproj.epsilon(privproj.Gaussian(noise_multiplier=z), delta=1e-3, **run)
    assert 2.99 < requested.value <= 3.0
    assert read_ledger(path).planned.epsilon(1e-3).value <= 3.0
    assert "at most 3 records" in " ".join(read_ledger(path).planned.epsilon(1e-3).data_assumptions)
