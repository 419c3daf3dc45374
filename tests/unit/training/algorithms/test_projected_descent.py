"""Projected descent stays in its range and has no epsilon."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError, UnsupportedError

torch = needs("torch", "opacus")

from unit.training.helpers import data, losses_of, mlp, state  # noqa: E402

from privproj.training import ProjectedDescent  # noqa: E402


def test_projected_descent_stays_in_its_range_and_has_no_epsilon():
    x, y = data()
    module = mlp()
    before = state(module)
    descent = ProjectedDescent(module, 3, lr=0.1)
    moves = []
    for _ in range(5):
        losses_of(module, x, y).mean().backward()
        descent.step()
        moves.append(state(module) - before)
    assert torch.linalg.matrix_rank(torch.stack(moves), rtol=1e-9) <= 3
    outside = moves[-1] - descent.z @ torch.linalg.lstsq(descent.z, moves[-1][:, None]).solution[:, 0]
    assert outside.norm() < 1e-9 * moves[-1].norm() + 1e-12
    with pytest.raises(UnsupportedError, match="no epsilon"):
        descent.epsilon(1e-5)


def test_module_without_trained_tensors_is_rejected():
    with pytest.raises(InvalidParameterError, match="require a gradient"):
        ProjectedDescent(torch.nn.ReLU(), rank=2, lr=0.1)
