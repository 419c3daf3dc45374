"""Flora: sketches, steps and carried momentum."""

from helpers import needs

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import DOUBLE, data, gradients, mlp, private, step  # noqa: E402

from privproj.training.generators import streams  # noqa: E402


def test_sketch_of_flora_is_unbiased():
    _, optimizer, _ = private(mlp(), *data(), algorithm="flora", rank=4)
    view, drawn = optimizer._views[0], streams(insecure_seed=2)
    mean = torch.zeros(7, 7, dtype=DOUBLE)
    for _ in range(4000):
        view.refresh(drawn)
        mean += view.a.T @ view.a / 4000
    assert torch.allclose(mean, torch.eye(7, dtype=DOUBLE), atol=0.1)


def test_flora_without_momentum_is_a_clipped_sketched_step():
    x, y = data()
    layer = nn.Linear(6, 3, bias=False).double()
    before, rows = layer.weight.detach().clone(), gradients(layer, x, y).view(12, 3, 6)
    _, optimizer, _ = private(layer, x, y, algorithm="flora", rank=4, beta=0.0, max_grad_norm=0.4)
    a = optimizer._views[0].a
    step(layer, optimizer, x, y)
    sketched = rows @ a.T
    norms = sketched.flatten(1).norm(dim=1) * (1 + 1e-6)
    expected = (sketched * (0.4 / norms).clamp_max(1.0)[:, None, None]).sum(0) @ a
    assert torch.allclose(12 * (before - layer.weight), expected, rtol=1e-9, atol=1e-12)


def test_flora_keeps_its_sketch_and_carries_its_momentum():
    x, y = data()
    module = mlp()
    _, optimizer, _ = private(module, x, y, algorithm="flora", rank=4, every=2, beta=0.5)
    view, sketches = optimizer._views[0], []
    for _ in range(4):
        sketches.append(view.a)
        old = view.moment
        step(module, optimizer, x, y)
    assert sketches[0] is sketches[1] and sketches[1] is not sketches[2] and sketches[2] is sketches[3]
    assert old is not None and view.moment.shape == (5, 4)
    carried = view.moment
    view.refresh(streams(insecure_seed=1))
    assert view.moment is carried or torch.allclose(view.moment, carried @ sketches[3] @ view.a.T, rtol=1e-9)
