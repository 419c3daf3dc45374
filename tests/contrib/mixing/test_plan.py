"""The plan of mixing meets its target, and neither a smaller gamma nor another noise of the eigenvalue does better."""

import math

import pytest

import privproj
from privproj import InvalidParameterError, UnsupportedError
from privproj.contrib.mixing import Mixing, mixing_plan


def test_mixing_plan_meets_target_with_least_gamma():
    found = mixing_plan(rank=50, epsilon=2.0, delta=1e-6)
    assert privproj.epsilon(found, delta=1e-6).value <= 2.0
    assert privproj.delta(found, epsilon=2.0).value <= 1e-6
    for noise in (0.7, 1.0, 1.4):
        less = Mixing(rank=50, gamma=found.gamma * (1 - 3e-3), eigen_noise=found.eigen_noise * noise)
        assert privproj.epsilon(less, delta=1e-6).value > 2.0


@pytest.mark.full
@pytest.mark.parametrize(("epsilon", "assumed", "margin"), [(1.0, 35.54, 63.43), (4.0, 9.928, 18.95)])
def test_mixing_plan_matches_published_margins(epsilon, assumed, margin):
    """Against the smallest gamma where the least eigenvalue is promised, which the exact profile of a sketch has."""
    sketch = privproj.Sketch(rank=100, gamma=assumed)
    assert privproj.epsilon(sketch, delta=1e-6, bound="exact-rank1").value == pytest.approx(epsilon, rel=1e-3, abs=0)
    assert mixing_plan(rank=100, epsilon=epsilon, delta=1e-6).gamma == pytest.approx(margin, rel=1e-3, abs=0)


def test_mixing_plan_rejects_invalid_targets():
    with pytest.raises(InvalidParameterError, match="rank"):
        mixing_plan(rank=0, epsilon=1.0, delta=1e-6)
    with pytest.raises(InvalidParameterError, match="epsilon"):
        mixing_plan(rank=1, epsilon=math.nan, delta=1e-6)
    with pytest.raises(InvalidParameterError, match="delta"):
        mixing_plan(rank=1, epsilon=1.0, delta=0.0)
    with pytest.raises(UnsupportedError, match="no gamma"):
        mixing_plan(rank=10**9, epsilon=1e-9, delta=1e-6)
