"""Profiles made of kernels: one release and many rows have the same enclosures."""

import math
from typing import Any

import numpy as np
import pytest

from privproj import M2, Gaussian, PublicSketch
from privproj.accounting.kernel_rows import row_function
from privproj.errors import ConvergenceError
from privproj.mechanisms.registry import find_bound
from privproj.numerics.jit import COMPILE_ROWS, over_rows
from privproj.profiles.privacy_profile import ProfileKernels, profile_from_kernels

BOUNDS = [
    (Gaussian, "analytic"),
    (M2, "rank-free"),
    (M2, "exact-rank1"),
    (M2, "beta-tail"),
    (M2, "beta-tail-sharp"),
    (PublicSketch, "rank-free"),
    (PublicSketch, "exact-rank1"),
]


def mechanism_of(kind, draw):
    """A mechanism with random parameters of ordinary size."""
    dim = int(10 ** draw.uniform(0.5, 4))
    rank = int(draw.integers(1, dim))
    z = 10 ** draw.uniform(-1, 1)
    if kind is Gaussian:
        return Gaussian(noise_multiplier=z)
    if kind is PublicSketch:
        return PublicSketch(rank=rank, noise_multiplier=z)
    return M2(
        dim=dim, rank=rank, change_rank=int(draw.integers(1, dim + 1)), noise_multiplier=z * math.sqrt(rank / dim)
    )


def columns_of(kind, name, count, seed=5) -> tuple[Any, list, ProfileKernels, Any, Any]:
    """Mechanisms, the kernels of their profile, and their rows."""
    draw, bound = np.random.default_rng(seed), find_bound(kind, name)
    some = [mechanism_of(kind, draw) for _ in range(count)]
    found = [row_function(bound)(one, one.mu) for one in some]
    assert len({id(profile) for profile, _ in found}) == 1
    return bound, some, found[0][0], np.array([row for _, row in found]), draw


@pytest.mark.parametrize(("kind", "name"), BOUNDS)
def test_kernel_row_matches_profile(kind, name):
    bound, some, profile, rows, draw = columns_of(kind, name, 12)
    eps, log_delta = 10 ** draw.uniform(-2, 1, 12), -(10 ** draw.uniform(-1, 2, 12))
    deltas, roots = over_rows(profile.log_delta, eps, rows), over_rows(profile.root, log_delta, rows)[0]
    for i, one in enumerate(some):
        scalar = bound.representation(one)
        assert scalar.log_delta(float(eps[i])) == (deltas[0][i], deltas[1][i])
        assert list(zip(*scalar.log_deltas(eps), strict=True)) == [scalar.log_delta(x) for x in eps.tolist()]
        assert roots[i] == pytest.approx(scalar.epsilon(float(log_delta[i])).upper, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize(("kind", "name"), BOUNDS)
def test_profile_epsilon_is_evaluated_crossing(kind, name):
    bound, some, profile, rows, draw = columns_of(kind, name, 12, seed=6)
    log_delta = -(10 ** draw.uniform(-1, 2, 12))
    ends = [bound.representation(one).epsilon(at) for one, at in zip(some, log_delta.tolist(), strict=True)]
    lower, upper = np.array(ends).T
    slack = 1e-13 * (1.0 - log_delta)
    assert np.all(lower <= upper)
    assert np.all(over_rows(profile.log_delta, upper, rows)[1] <= log_delta + slack)
    positive = lower > 0.0
    assert np.all((over_rows(profile.log_delta, lower, rows)[0] >= log_delta - slack)[positive])


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name"), BOUNDS)
def test_machine_code_matches_plain_kernels(kind, name):
    pytest.importorskip("numba")
    _, _, profile, rows, draw = columns_of(kind, name, 40)
    rows = np.tile(rows, (COMPILE_ROWS // 40 + 1, 1))
    log_delta = np.resize(-(10 ** draw.uniform(-1, 2, 40)), len(rows))
    eps = over_rows(profile.root, log_delta, rows)[0]
    np.testing.assert_allclose(eps[:40], over_rows(profile.root, log_delta[:40], rows[:40])[0], rtol=1e-12, atol=0.0)
    for one, other in zip(
        over_rows(profile.log_delta, eps, rows), over_rows(profile.log_delta, eps[:40], rows[:40]), strict=True
    ):
        np.testing.assert_allclose(one[:40], other, rtol=1e-12, atol=0.0)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name"), BOUNDS)
def test_kernel_root_matches_epsilon_at_every_delta(kind, name):
    """From a delta near 1 to one far below the range of doubles, including epsilons of 0 and inf."""
    bound, some, profile, rows, _ = columns_of(kind, name, 25, seed=7)
    for log_delta in (-1e-9, -1e-3, -0.5, -30.0, -1e4):
        roots = over_rows(profile.root, np.full(25, log_delta), rows)[0]
        for one, root in zip(some, roots.tolist(), strict=True):
            found = bound.representation(one).epsilon(log_delta)
            assert root == pytest.approx(found.upper, rel=1e-9, abs=1e-11), one


def test_profile_from_kernels_raises_without_any_bound():
    unknown = profile_from_kernels(ProfileKernels(lambda eps, row: (-math.inf, math.inf), None), ())
    with pytest.raises(ConvergenceError):
        unknown.log_delta(1.0)
    half_known = profile_from_kernels(ProfileKernels(lambda eps, row: (-1.0, math.inf), None), ())
    assert half_known.log_delta(1.0) == (-1.0, math.inf)


@pytest.mark.parametrize("unknown", [(math.nan, math.nan), (-math.inf, math.inf)])
def test_log_deltas_of_unknown_kernel_are_at_most_zero(unknown):
    columns = ProfileKernels(lambda eps, row: unknown, lambda *_: unknown)
    lower, upper = profile_from_kernels(columns, (1.0,)).log_deltas(np.array([0.5, 2.0]))
    assert (lower == -math.inf).all() and (upper == 0.0).all()


def test_row_is_none_for_layers_of_several_shapes():
    from privproj import Layer

    several = M2(layers=[Layer(dim=64, rank=4), Layer(dim=128, rank=4)], noise_multiplier=1.0)
    assert row_function(find_bound(M2, "rank-free"))(several, several.mu) is None
