"""Projected gradients: draws, noise, limits."""

import math

import numpy as np
import pytest
from helpers import needs
from scipy import stats

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import DOUBLE, data, mlp, one_step, own, private, view  # noqa: E402

from privproj.training import per_example  # noqa: E402
from privproj.training.generators import streams  # noqa: E402


@pytest.mark.full
@pytest.mark.parametrize(("frame", "energy"), [("haar", 6**2 / 2), ("wishart", 6 * (6 + 2 + 1) / 2)])
def test_projections_are_unbiased_with_known_energy(frame, energy):
    """E M = I, captured energy of a unit vector Beta(r/2, (d-r)/2), E |M|^2 = d^2/r (Haar), d(d+r+1)/r (Wishart)."""
    found, drawn = view(2, frame), streams(insecure_seed=3)
    total, captured, sizes = torch.zeros(6, 6, dtype=DOUBLE), [], []
    for _ in range(4000):
        found.refresh(drawn)
        matrix = found.q @ found.back
        assert torch.allclose(matrix, matrix.T, atol=1e-10) and torch.linalg.matrix_rank(matrix) == 2
        total += matrix
        captured.append(float(found.q[0].square().sum()))
        sizes.append(float(matrix.square().sum()))
    assert torch.allclose(total / 4000, torch.eye(6, dtype=DOUBLE), atol=0.12)
    assert stats.kstest(captured, stats.beta(1.0, 2.0).cdf).pvalue > 1e-3
    assert abs(np.mean(sizes) - energy) <= 4 * np.std(sizes) / math.sqrt(4000) + 1e-9


def test_low_dimensional_noise_is_projected_noise():
    """(E Q) with E standard normal is standard normal, so S + Xi has the law of (sum + E) Q."""
    found = view(3)
    draw = torch.Generator().manual_seed(0)
    full = torch.randn(20_000, 6, generator=draw, dtype=DOUBLE) @ found.q
    assert torch.allclose(full.T @ full / 20_000, torch.eye(3, dtype=DOUBLE), atol=0.04)
    g, inputs = torch.randn(12, 1, 4, generator=draw, dtype=DOUBLE), torch.randn(12, 1, 6, generator=draw, dtype=DOUBLE)
    ones = torch.ones(12, dtype=DOUBLE)
    low = per_example.clipped_sum(ones, g, found.sketched(inputs))
    assert torch.allclose(low, per_example.clipped_sum(ones, g, inputs) @ found.q, rtol=1e-9)


@pytest.mark.parametrize("algorithm", ["m2", "m2-projected-clip"])
def test_full_rank_haar_is_dp_sgd(algorithm):
    x, y = data(width=5)
    module = lambda: nn.Linear(5, 4).double()  # noqa: E731
    torch.manual_seed(0)
    model = module()
    options = {"rank": 6, "clipping": "per-layer", "algorithm": algorithm}
    copy = module()
    copy.load_state_dict(model.state_dict())
    assert torch.allclose(one_step(model, x, y, **options), one_step(copy, x, y), rtol=1e-9)
    found = view(6)
    assert torch.allclose(found.q @ found.back, torch.eye(6, dtype=DOUBLE), atol=1e-12)
    assert torch.allclose(found.back @ found.back.T, torch.eye(6, dtype=DOUBLE), atol=1e-12)


@pytest.mark.full
def test_projected_dp_sgd_tends_to_dp_sgd_with_its_rank():
    x, y = data()
    expected = one_step(mlp(), x, y)
    steps = [one_step(mlp(), x, y, algorithm="projected-dp-sgd", rank=rank) for rank in (10, 10**6)]
    errors = [float((step - expected).norm()) for step in steps]
    assert errors[1] < 0.02 * float(expected.norm()) and errors[1] < 0.1 * errors[0]


def test_projection_serves_one_release():
    found = view(2)
    mean = torch.zeros(4, 2, dtype=DOUBLE)
    found.update(mean)
    with pytest.raises(InvalidParameterError, match="fresh projection"):
        found.update(mean)


def test_every_release_has_its_own_projection():
    x, y = data()
    module = mlp()
    _, optimizer, loader = private(module, x, y, algorithm="m2", rank=2)
    seen = []
    for _ in range(3):
        for batch in loader:
            seen.append(optimizer._views[0].q.clone())
            optimizer.backward_on(own(module), batch)
            optimizer.step()
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
