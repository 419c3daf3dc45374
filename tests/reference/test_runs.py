"""Test deltas of runs by inversion of moments against closed forms and integrals."""

import mpmath as mp
import pytest
from reference import runs

from privproj.reference.special import gaussian_delta


def near(found, exact, digits=11):
    return abs(found - exact) <= abs(exact) * mp.mpf(10) ** -digits


@pytest.mark.parametrize(("mu", "steps", "eps"), [(1.0, 1, 0), (1.0, 1, 3.0), (0.125, 64, 11.0), (4.0, 1, 0.5)])
def test_reference_gaussian_run_has_closed_form(mu, steps, eps):
    delta = runs.run_delta([(runs.gaussian_moments(mu), steps)], eps)
    assert near(delta, gaussian_delta(eps, mu * mp.sqrt(steps)))


def test_reference_gaussian_phases_add_up():
    delta = runs.run_delta([(runs.gaussian_moments(0.75), 1), (runs.gaussian_moments(0.5), 4)], 2.0)
    assert near(delta, gaussian_delta(2.0, 1.25))


def test_reference_sampling_at_rate_one_is_plain():
    for add in (False, True):
        delta = runs.run_delta([(runs.poisson_gaussian_moments(0.5, 1, add=add), 4)], 1.0)
        assert near(delta, gaussian_delta(1.0, 1))


def test_reference_moments_are_normalized():
    """Check that ``M(0) = 1``, the mass of ``P``, and ``M(-1) = 1``, the mass of ``Q``."""
    all_moments = (
        runs.m2_moments(64, 4, 1),
        runs.public_sketch_moments(8, 0.5),
        runs.secret_sketch_moments(8, 5, grows=True),
        runs.secret_sketch_moments(8, 5, grows=False),
        runs.poisson_gaussian_moments(1, 0.1),
        runs.poisson_gaussian_moments(1, 0.1, add=True),
        runs.fixed_gaussian_moments(1, 0.1),
    )
    for release in all_moments:
        for z in (0, -1):
            assert near(next(iter(release.along(mp.mpf(z), 0, 2))), 1)


@pytest.mark.parametrize("eps", [0.0, 0.3, 0.9])
def test_reference_two_laplace_steps_match_integral(eps):
    mu = mp.mpf(1) / 2

    def delta(x):
        """Return delta of one release at any ``x``."""
        return max(1 - mp.exp((x - mu) / 2), mp.mpf(0)) if x > -mu else 1 - mp.exp(x)

    def density(x):
        return mp.exp((x - mu) / 2) / 4

    # The loss of one release: mu with mass 1/2, -mu with mass e^-mu / 2, and a density between.
    places = sorted({-mu, mu, *(x for x in (eps - mu, eps + mu) if -mu < x < mu)})
    exact = delta(eps - mu) / 2 + mp.exp(-mu) / 2 * delta(eps + mu)
    exact += mp.quad(lambda x: density(x) * delta(eps - x), places)
    assert near(runs.laplace_run_delta(mu, 2, eps), exact)


def test_reference_one_laplace_step_has_closed_form():
    assert near(runs.laplace_run_delta(mp.mpf(2), 1, 1), 1 - mp.exp(mp.mpf(-1) / 2))
    assert runs.laplace_run_delta(mp.mpf(2), 3, 6) == 0


def test_reference_sketches_compose_to_more_rows():
    few = runs.run_delta([(runs.secret_sketch_moments(4, 20, grows=True), 10)], 0.5)
    many = runs.run_delta([(runs.secret_sketch_moments(40, 20, grows=True), 1)], 0.5)
    assert near(few, many)


def test_reference_epsilon_beyond_every_loss_has_no_line():
    with pytest.raises(ArithmeticError):
        runs.run_delta([(runs.poisson_gaussian_moments(1, 0.2, add=True), 2)], 1.0)
