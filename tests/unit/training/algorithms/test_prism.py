"""PRISM: identities and equivalences."""

import numpy as np
import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import (  # noqa: E402
    DOUBLE,
    batch_of,
    data,
    gradient,
    gradients,
    matrix_of,
    mlp,
    one_step,
    own,
    point,
    private,
    projected,
    step,
    take_in,
)

from privproj.training import (  # noqa: E402
    Batch,
    Steps,
    add_frozen_lora,
    add_prism,
)
from privproj.training.algorithms.prism import Point  # noqa: E402


def prism_model(rank, steps=None, hidden=5):
    torch.manual_seed(2)
    return add_prism(mlp(hidden=hidden), rank, steps=steps, insecure_seed=4)


def test_prism_tangent_norms_match_materialized_gradients():
    x, y = data(tokens=3)
    module = prism_model(2)
    layers = [part for part in module if hasattr(part, "base")]
    with torch.no_grad():
        for layer in layers:
            layer.s.copy_(torch.tensor([0.7, 0.2]))
    dense = mlp()
    with torch.no_grad():
        for layer, copy in zip(layers, (dense[0], dense[2]), strict=True):
            copy.weight.copy_(layer.base.weight + (layer.u * layer.s) @ layer.v.T)
            copy.bias.copy_(layer.base.bias)
    rows, norms = gradients(dense, x, y), torch.zeros(12, dtype=DOUBLE)
    sizes = [p.numel() for p in dense.parameters()]
    for layer, part in zip(layers, (rows.split(sizes, 1)[0], rows.split(sizes, 1)[2]), strict=True):
        at = Point(layer.u.detach(), layer.s.detach(), layer.v.detach())
        norms += torch.stack([projected(g.view(len(at.u), -1), at).flat().square().sum() for g in part])
    _, optimizer, _ = private(module, x, y, algorithm="prism")
    optimizer._recorder.begin(np.random.SeedSequence(1))
    optimizer._recorder.losses(own(module), batch_of(x, y)._groups[0])
    found = sum(view.squared_norms() for view in optimizer._views)
    assert torch.allclose(found, norms, rtol=1e-9)


def test_full_rank_prism_is_dp_sgd():
    x, y = data(width=4)
    layer = nn.Linear(4, 4, bias=False).double()
    plain = nn.Linear(4, 4, bias=False).double()
    plain.weight.data = layer.weight.data.clone()
    change = one_step(plain, x, y, max_grad_norm=0.5)
    module = add_prism(layer, 4)
    _, optimizer, _ = private(module, x, y, algorithm="prism", max_grad_norm=0.5)
    step(module, optimizer, x, y)
    found = -12 * (module.u * module.s) @ module.v.T
    assert torch.allclose(found.flatten(), change, rtol=1e-8, atol=1e-12)


def test_prism_does_not_depend_on_the_gauge():
    """Turning U and V by one rotation where singular values are equal changes nothing."""
    x, y = data()
    turn = torch.linalg.qr(torch.randn(2, 2, dtype=DOUBLE))[0]
    found = []
    for rotation in (torch.eye(2, dtype=DOUBLE), turn):
        module = add_prism(mlp()[0], 2, insecure_seed=4)
        with torch.no_grad():
            module.s.fill_(0.5)
            module.u.copy_(module.u @ rotation)
            module.v.copy_(module.v @ rotation)
        _, optimizer, _ = private(module, x, y, algorithm="prism", max_grad_norm=0.3)
        step(module, optimizer, x, y % 5)
        found.append((module.u * module.s) @ module.v.T)
    assert torch.allclose(*found, atol=1e-10)


def test_part_of_prism_with_fixed_rows_is_lora_fa():
    """Keeping only G V of the tangent vector, clipped on it, is DP-LoRA-FA with A = V^T."""
    x, y = data()
    layer = nn.Linear(6, 3, bias=False).double()
    v = torch.linalg.qr(torch.randn(6, 2, dtype=DOUBLE))[0]
    adapted = add_frozen_lora(nn.Linear(6, 3, bias=False).double(), 2)
    adapted.base.weight.data, adapted.lora_A.weight.data = layer.weight.data.clone(), v.T.clone()
    rows = gradients(layer, x, y).view(12, 3, 6) @ v
    norms = rows.flatten(1).norm(dim=1) * (1 + 1e-6)
    expected = (rows * (0.4 / norms).clamp_max(1.0)[:, None, None]).sum(0)
    one_step(adapted, x, y, algorithm="lora-fa", max_grad_norm=0.4)
    assert torch.allclose(-12 * adapted.lora_B.weight, expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "adaptive"])
def test_prism_from_zero_reaches_a_matrix_of_its_rank(kind):
    """f(Z) = |Z - target|^2 through per-example losses of a linear layer, started at s = 0."""
    draw = torch.Generator().manual_seed(0)
    target = matrix_of(point(5, 6, 2, seed=5))
    x = torch.randn(64, 6, generator=draw, dtype=DOUBLE)
    base = nn.Linear(6, 5, bias=False).double()
    base.weight.data.zero_()
    module = add_prism(base, 2, steps=Steps(kind=kind, momentum=0.5 if kind == "plain" else 0.8))
    rate = 0.3 if kind == "plain" else 0.02
    sgd = lambda p: torch.optim.SGD(p, lr=rate)  # noqa: E731
    _, optimizer, _ = private(
        module, x, torch.zeros(64), sgd, algorithm="prism", max_grad_norm=1e6, steps=800, noise_multiplier=1e-12
    )
    wanted = x @ target.T
    for _ in range(800):
        loss = lambda record: 0.5 * (module(record[0]) - record[1]).square().sum()  # noqa: E731
        take_in(optimizer, loss, batch_of(x, wanted))
        optimizer.step()
    error = ((module.u * module.s) @ module.v.T - target).norm() / target.norm()
    assert error < (1e-6 if kind == "plain" else 0.05)


def test_momentum_is_transported():
    x, y = data()
    module = prism_model(2, Steps(momentum=0.9))
    _, optimizer, _ = private(module, x, y, algorithm="prism")
    view = optimizer._views[0]
    step(module, optimizer, x, y)
    for part, basis in ((view.moment.up, view.point.u), (view.moment.vp, view.point.v)):
        assert torch.allclose(basis.T @ part, torch.zeros(2, 2, dtype=DOUBLE), atol=1e-12)


def test_adaptive_step_does_not_depend_on_the_frame():
    at, found = point(), []
    for flip in (1.0, -1.0):
        turned = Point(at.u * flip, at.s, at.v * flip)
        layer = add_prism(nn.Linear(7, 9).double(), 3, steps=Steps(kind="adaptive", momentum=0.5))
        with torch.no_grad():
            for parameter, value in zip((layer.u, layer.s, layer.v), (turned.u, turned.s, turned.v), strict=True):
                parameter.copy_(value)
        _, optimizer, _ = private(layer, *data(width=7), algorithm="prism", noise_multiplier=0.1)
        view = optimizer._views[0]
        for seed in (1, 2, 3):
            g = gradient(at, seed)
            view.apply(projected(g, view.point).flat(), {"lr": 0.05}, plain=True)
        found.append(matrix_of(view.point))
    assert torch.allclose(*found, atol=1e-9)


def test_bases_that_were_edited_are_mended_or_rejected():
    x, y = data()
    module = prism_model(2)
    with torch.no_grad():
        module[0].s.fill_(0.5)
        module[0].u.mul_(2.0)
    before = ((module[0].u * module[0].s) @ module[0].v.T).detach().clone()
    _, optimizer, _ = private(module, x, y, algorithm="prism", max_grad_norm=1e-3)
    assert torch.allclose((module[0].u * module[0].s) @ module[0].v.T, before, atol=1e-12)
    take_in(optimizer, own(module), batch_of(x[:1], y[:1]))
    assert torch.cat([s.flatten() for s in optimizer._noisy_sum.sums]).norm() <= 1e-3
    optimizer.step()
    module.load_state_dict({**module.state_dict(), "0.u": 2.0 * module[0].u})
    with pytest.raises(InvalidParameterError, match="not orthonormal"):
        take_in(optimizer, own(module), batch_of(x[:1], y[:1]))


def test_layer_with_one_output_trains():
    for seed in range(6):
        module = add_prism(nn.Linear(6, 1).double(), 1, insecure_seed=seed)
        _, optimizer, _ = private(module, *data(), algorithm="prism", noise_multiplier=1.0)
        optimizer._turn.open(Batch([]))
        optimizer.step()


def test_prism_is_accounted_as_gaussian():
    x, y = data()
    plan = private(prism_model(2), x, y, algorithm="prism", noise_multiplier=1.5)[1].plan
    assert plan.mechanism == privproj.Gaussian(noise_multiplier=1.5)
    with pytest.raises(InvalidParameterError, match="add_prism"):
        private(mlp(), x, y, algorithm="prism")
    with pytest.raises(InvalidParameterError, match="add_prism"):
        private(prism_model(2), x, y, algorithm="m2", rank=1)
    with pytest.raises(InvalidParameterError, match="smaller side"):
        prism_model(4)
