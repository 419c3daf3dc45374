"""What a view does with a released mean, and in which form gradients are kept."""

import numpy as np
import pytest
from helpers import needs

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from unit.training.helpers import DOUBLE, Twice, batch_of, data, gradients, mlp, one_step, own, private, step  # noqa: E402

from privproj.training import per_example  # noqa: E402


@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"lr": 0.5, "weight_decay": 0.1}])
def test_bias_with_settings_of_its_own_is_moved_by_them(settings):
    """Plain SGD takes low-rank updates straight into the weights, but a bias in another group has its own rate."""
    x, y = data()
    ends = []
    for kind in (torch.optim.SGD, lambda groups: torch.optim.SGD(groups, momentum=1e-30)):
        module = mlp()
        biases = [layer.bias for layer in (module[0], module[2])]
        groups = [{"params": [module[0].weight, module[2].weight], "lr": 1.0}, {"params": biases, **settings}]
        before = [bias.detach().clone() for bias in biases]
        options = {"algorithm": "m2", "rank": 3, "insecure_seed": 7}
        _, optimizer, _ = private(module, x, y, optimizer=lambda _, g=groups, k=kind: k(g), **options)
        step(module, optimizer, x, y)
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
        moved = [not torch.equal(bias, old) for bias, old in zip(biases, before, strict=True)]
        assert all(moved) if settings["lr"] else not any(moved)
    # With momentum the wrapped optimizer makes the step itself, each group by its own settings.
    assert torch.allclose(*ends, rtol=1e-9)


@pytest.mark.parametrize("tokens", [2, 9])
def test_gradients_take_the_form_that_is_smaller(tokens):
    """A gradient of 5 x 7 entries is smaller than the factors of nine tokens, and larger than those of two."""
    x, y = data(tokens=tokens)
    module = mlp()
    _, optimizer, _ = private(module, x, y)
    recorder, trained = optimizer._recorder, optimizer._trained
    recorder.begin(np.random.SeedSequence(1))
    recorder.losses(own(module), batch_of(x, y)._groups[0])
    assert [one.formed is not None for one in trained] == [tokens == 9, True]
    taken = [one.take() for one in trained]
    found = torch.cat([(part[0] if len(part) == 1 else per_example.formed(*part)).flatten(1) for part in taken], 1)
    norms = gradients(mlp(), x, y).square().sum(1)
    assert torch.allclose(found.square().sum(1), norms, rtol=1e-12)
    assert [one.take() for one in trained] == [None, None]


@pytest.mark.parametrize("algorithm", ["dp-sgd", "m2", "m2-projected-clip", "projected-dp-sgd"])
@pytest.mark.parametrize("build", [mlp, Twice])
def test_formed_or_not_makes_no_difference(algorithm, build, monkeypatch):
    x, y = data(tokens=9)
    options = {"algorithm": algorithm, "insecure_seed": 7, **({} if algorithm == "dp-sgd" else {"rank": 3})}
    formed = one_step(build().to(DOUBLE), x, y, **options)
    monkeypatch.setattr(per_example, "is_smaller_formed", lambda *_: False)
    assert torch.allclose(one_step(build().to(DOUBLE), x, y, **options), formed, rtol=1e-6, atol=1e-9)


class Recomputed(nn.Module):
    """A perceptron whose activations are recomputed on the way back."""

    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.reentrant = mlp(), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("tokens", [None, 9])
def test_view_recomputed_activations_give_the_same_sum(reentrant, tokens):
    x, y = data(tokens=tokens)
    expected = one_step(mlp(), x, y)
    assert torch.allclose(one_step(Recomputed(reentrant), x, y), expected, rtol=1e-9)
