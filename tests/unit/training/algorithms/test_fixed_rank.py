"""Geometry of matrices of fixed rank."""

import math

import numpy as np
import pytest
from helpers import needs

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import DOUBLE, as_matrix, data, gradient, matrix_of, point, private, projected  # noqa: E402

from privproj.training import (  # noqa: E402
    Batch,
    add_prism,
)
from privproj.training.algorithms import prism as fixed_rank  # noqa: E402

TOLERANCE = {DOUBLE: 1e-6, torch.float32: 1e-4}


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_fixed_rank_projection_is_orthogonal(dtype):
    at, close = point(dtype=dtype), {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    g, other = gradient(at), gradient(at, 2)
    xi = projected(g, at)
    p, q = at.u @ at.u.T, at.v @ at.v.T
    assert torch.allclose(as_matrix(xi, at), p @ g + g @ q - p @ g @ q, **close)
    assert torch.allclose(projected(as_matrix(xi, at), at).flat(), xi.flat(), **close)
    left, right = (as_matrix(xi, at) * other).sum(), (g * as_matrix(projected(other, at), at)).sum()
    assert torch.allclose(left, right, **close)
    energy = (g @ at.v).square().sum() + (at.u.T @ g).square().sum() - (at.u.T @ g @ at.v).square().sum()
    assert torch.allclose(xi.flat().square().sum(), energy, **close)
    assert torch.allclose(as_matrix(xi, at).square().sum(), energy, **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(9, 7, 3), (4, 7, 3), (5, 4, 4), (6, 6, 1)])
def test_retraction_is_the_truncated_svd(dtype, shape):
    at = point(*shape, dtype=dtype)
    xi = projected(gradient(at), at)
    new = fixed_rank.retracted(at, xi, 0.3)
    u, s, vt = torch.linalg.svd(matrix_of(at) - 0.3 * as_matrix(xi, at))
    best = (u[:, : shape[2]] * s[: shape[2]]) @ vt[: shape[2]]
    assert torch.allclose(matrix_of(new), best, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.allclose(new.u.T @ new.u, torch.eye(shape[2], dtype=dtype), atol=TOLERANCE[dtype])
    assert (new.s >= 0).all() and (new.s.diff() <= 0).all()


def test_transport_is_the_projection_at_the_new_point():
    at = point()
    xi = projected(gradient(at), at)
    new = fixed_rank.retracted(at, projected(gradient(at, 3), at), 0.5)
    expected = projected(as_matrix(xi, at), new)
    assert torch.allclose(fixed_rank.transported(xi, at, new).flat(), expected.flat(), atol=1e-12)


def test_lift_is_horizontal_and_carries_the_tangent_vector():
    at = point()
    xi = projected(gradient(at), at)
    a, b = at.u * at.s.sqrt(), at.v * at.s.sqrt()
    da, db = fixed_rank.lifted(xi, at)
    assert torch.allclose(da @ b.T + a @ db.T, as_matrix(xi, at), atol=1e-12)
    assert torch.allclose(a.T @ da, db.T @ b, atol=1e-12)


@pytest.mark.full
def test_noise_moment_of_the_lift():
    at, draws = point(), []
    stream = torch.Generator().manual_seed(0)
    for _ in range(20_000):
        row = 0.2 * torch.randn(3 * (3 + 9 + 7), generator=stream, dtype=DOUBLE)
        da, _ = fixed_rank.lifted(fixed_rank.from_flat(row, at), at)
        draws.append(da.T @ da / 9)
    mean = torch.stack(draws).mean(0)
    known = torch.diag(fixed_rank.noise_moment(at.s, 9, 0.2))
    assert torch.allclose(mean, known, rtol=0.05, atol=0.02 * float(known.max()))


def test_fixed_rank_noise_is_isotropic_on_tangent_space():
    """Its covariance is the tangent projector, of rank r (m + n - r): every linear functional of a release is noisy."""
    at = point(5, 4, 2)
    rows = torch.eye(2 * (2 + 5 + 4), dtype=DOUBLE)
    lifted = torch.stack([as_matrix(fixed_rank.from_flat(row, at), at).flatten() for row in rows])
    covariance = lifted.T @ lifted
    assert torch.allclose(covariance @ covariance, covariance, atol=1e-12)
    assert torch.linalg.matrix_rank(covariance) == 2 * (5 + 4 - 2) == round(float(covariance.trace()))


def test_energy_of_the_noise():
    module = add_prism(nn.Linear(30, 20).double(), 4)
    x, y = data(width=30)
    _, optimizer, _ = private(module, x, y, algorithm="prism", noise_multiplier=3.0)
    view, energies = optimizer._views[0], []
    for _ in range(400):
        optimizer._turn.open(Batch([]))
        optimizer._turn.close()
        optimizer._noisy_sum.record = lambda: None
        (mean,) = optimizer._noisy_sum.release()
        energies.append(float(fixed_rank.from_flat(mean, view.point).flat().norm()))
    known = 3.0 / 12 * math.sqrt(4 * (20 + 30 - 4))
    assert abs(np.mean(np.square(energies)) - known**2) < 5 * np.std(np.square(energies)) / math.sqrt(400)
