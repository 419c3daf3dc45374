"""Audits: the symmetry test separates what is not private, and says nothing where it cannot."""

import numpy as np
import pytest

from privproj import InvalidParameterError
from privproj.contrib.audit import asymmetry, symmetry_test


@pytest.mark.parametrize(("dim", "columns", "rank"), [(8, 2, 1), (30, 5, 4), (64, 8, 16), (10, 3, 40), (5, 5, 5)])
def test_matrix_query_gives_itself_away_every_time(dim, columns, rank):
    rng = np.random.default_rng(dim + rank)
    query = rng.standard_normal((dim, columns))
    other = query + 1e-3 * rng.standard_normal((dim, columns))
    found = symmetry_test(query, other, rank, draws=1000, rng=rng)
    assert found.auc == 1.0 and found.separates


def test_vector_query_does_not():
    rng = np.random.default_rng(5)
    query, other = rng.standard_normal((2, 20, 1))
    found = symmetry_test(query, other, 3, draws=300, rng=rng)
    assert found.auc == 0.5 and not found.separates


def test_proportional_and_common_factor_queries_do_not():
    rng = np.random.default_rng(6)
    left, left_too = rng.standard_normal((2, 12, 1))
    right = rng.standard_normal((1, 4))
    query = rng.standard_normal((12, 4))
    assert symmetry_test(query, 2.5 * query, 3, draws=200, rng=rng).auc == 0.5
    assert symmetry_test(left @ right, left_too @ right, 3, draws=200, rng=rng).auc == 0.5


def test_lora_update_gives_its_gradient_away():
    rng = np.random.default_rng(8)
    gradient, other = rng.standard_normal((2, 6, 20))
    a = rng.standard_normal((3, 20))
    update = gradient @ a.T @ a
    assert asymmetry(update.T, gradient.T) < 1e-12 < 1e-3 < asymmetry(update.T, other.T)


def test_shapes_are_checked():
    with pytest.raises(InvalidParameterError, match="shape"):
        asymmetry(np.ones((3, 2)), np.ones((2, 3)))
