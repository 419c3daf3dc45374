"""What is refused before any data, and accepted until it changes."""

import math
import warnings

import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import read_ledger

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import data, losses_of, mlp, one_step, own, private  # noqa: E402

# --- norms ----------------------------------------------------------------------------------------


# --- what the loop may not do -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "options", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), {}, "a layer that does not mix records"),
        (lambda: nn.LSTM(6, 3), {}, "per-example gradients"),
        (lambda: mlp().requires_grad_(False), {}, "tensors that require gradients"),
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
        (mlp, {"sampling_rate": 1.5}, "sampling_rate"),
        (mlp, {"steps": None}, "missing steps; give steps or epochs"),
        (mlp, {"clipping": "per-layer", "shares": (0.5, 0.6)}, "sum to 1"),
        (mlp, {"algorithm": "sgd"}, "did you mean 'dp-sgd'"),
        (mlp, {"epochs": 0, "steps": None}, "epochs"),
        (mlp, {"frame": "wishart"}, "haar or wishart"),
    ],
)
def test_what_is_rejected_before_any_data(build, options, words):
    module = build()
    trained = [p.requires_grad for p in module.parameters()]
    with pytest.raises(InvalidParameterError, match=words):
        private(module, *data(), optimizer=lambda p: torch.optim.SGD(p or [torch.zeros(1)], lr=1.0), **options)
    assert [p.requires_grad for p in module.parameters()] == trained


def test_frozen_statistics_are_accepted_until_someone_thaws_them():
    x, y = data()
    norm = nn.BatchNorm1d(6).double().eval().requires_grad_(False)
    one_step(nn.Sequential(norm, nn.Linear(6, 3).double()), x, y)
    module = nn.Sequential(norm, nn.Linear(6, 3).double())
    _, optimizer, _ = private(module, x, y)
    module.train()
    optimizer._turn.open(12)
    with pytest.raises(InvalidParameterError, match=r"running_mean must be .*(?i:no running statistics)"):
        optimizer.backward_on(own(module), (x, y))
    module[0].track_running_stats = False
    module[0].running_mean = module[0].running_var = None
    optimizer._turn.drawn = None
    optimizer._turn.open(12)
    with pytest.raises(InvalidParameterError, match="with the other records of the batch"):
        optimizer.backward_on(own(module), (x, y))
    optimizer.close()
    module(x)


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
    optimizer._turn.open(12)
    module[0].requires_grad_(True)
    before = module[0].weight.detach().clone()
    with pytest.raises(InvalidParameterError, match="as when make_private was called"):
        optimizer.backward_on(own(module), (x, y))
    assert module[0].weight.grad is None
    with pytest.raises(InvalidParameterError, match="all 12 records"):
        optimizer.step()
    assert torch.equal(module[0].weight, before) and optimizer._steps == 0
    module[0].requires_grad_(False)
    optimizer._turn.drawn = None
    module[0].weight.grad = torch.ones_like(before)
    optimizer._turn.open(0)
    optimizer.step()
    assert torch.equal(module[0].weight, before)


def test_tied_layers_with_different_biases_are_rejected():
    module = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    module[1].weight = module[0].weight
    with pytest.raises(InvalidParameterError, match=r"(?i)untie"):
        private(module, *data())


def test_ledger_that_holds_releases_of_the_plan_is_said(tmp_path):
    """A fresh module under an old ledger would be trained by the rest of the plan only, or not at all."""
    book, (x, y) = str(tmp_path / "ledger.jsonl"), data()
    for made, words in ((0, None), (1, "1 of 2"), (2, "nothing is left")):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            module, optimizer, loader = private(mlp(), x, y, steps=2, ledger=book)
        told = [str(w.message) for w in said if w.category.__name__ == "ResumedLedger"]
        assert (len(told) == 1 and words in told[0]) if words else not told, made
        if made == 2:
            with pytest.raises(UnsupportedError, match="all 2 planned steps were released"):
                next(iter(loader))
        for batch in () if made == 2 else loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
            break
        optimizer.close()


def test_one_module_has_one_private_run_at_a_time():
    """Two would count the releases of one module apart from each other."""
    x, y = data()
    module = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3).requires_grad_(False)).double()
    module, optimizer, loader = private(module, x, y)
    with pytest.raises(InvalidParameterError, match=r"Call optimizer\.close\(\) of the earlier run"):
        private(module, x, y)
    batch = next(iter(loader))
    optimizer.close()
    with pytest.raises(InvalidParameterError, match="one whose run is closed"):
        optimizer.step_on(lambda part: losses_of(module, *part), batch)
    private(module, x, y)[1].close()


def test_make_private_group_size_gives_user_level_epsilon(tmp_path):
    module, (x, y) = mlp(), data()
    run = {"sampling_rate": 0.25, "steps": 4, "group_size": 3}
    path = str(tmp_path / "ledger.jsonl")
    _, optimizer, _ = private(module, x, y, noise_multiplier=None, epsilon=3.0, delta=1e-3, ledger=path, **run)
    z = optimizer._plan.noise_multiplier
    asked = privproj.epsilon(privproj.Gaussian(noise_multiplier=z), delta=1e-3, **run)
    assert 2.99 < asked.value <= 3.0
    assert read_ledger(path).planned.epsilon(1e-3).value <= 3.0
    assert "at most 3 records" in " ".join(read_ledger(path).planned.epsilon(1e-3).data_assumptions)
