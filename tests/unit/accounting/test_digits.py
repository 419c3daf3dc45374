"""Values to many digits by mpmath: ``--digits`` of a query and ``check --reference``."""

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product

import mpmath as mp
import pytest

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Laplace, UnsupportedError
from privproj.accounting.digits import difference, noise_difference, reference_value, with_digits
from privproj.accounting.query import composition_of
from privproj.errors import ConvergenceError
from privproj.targets import epsilon_target, full_target


def digits_of(result, digits):
    return with_digits(result, digits).numerics["mpmath"]["value"]


def gaussian_delta_at_60_digits(eps, mu):
    """Balle, Wang 2018, Theorem 8, from the complementary error function."""
    eps, mu = mp.mpf(eps), mp.mpf(mu)
    return (mp.erfc((eps / mu - mu / 2) / mp.sqrt(2)) - mp.exp(eps) * mp.erfc((eps / mu + mu / 2) / mp.sqrt(2))) / 2


@pytest.mark.parametrize("z", [0.05, 0.3, 1.0, 7.0, 1e3])
@pytest.mark.parametrize("eps", [0.0, 1e-3, 1.0, 40.0])
def test_digits_of_gaussian_delta_match_erfc(z, eps):
    with mp.workdps(400):
        exact = gaussian_delta_at_60_digits(eps, 1 / mp.mpf(z))
        found = mp.mpf(digits_of(privproj.delta(Gaussian(noise_multiplier=z), epsilon=eps), 40))
        assert abs(found - exact) <= abs(exact) * mp.mpf(10) ** -39


@pytest.mark.parametrize("log10_delta", [-5, -320, pytest.param(-1000, marks=pytest.mark.full)])
def test_digits_of_epsilon_are_inverse_to_delta(log10_delta):
    found = digits_of(privproj.epsilon(Gaussian(noise_multiplier=1.0), log10_delta=log10_delta), 40)
    with mp.workdps(2000):
        assert abs(mp.log10(gaussian_delta_at_60_digits(mp.mpf(found), 1)) - log10_delta) < mp.mpf(10) ** -35


@pytest.mark.parametrize("digits", [2, 5])
def test_few_digits_are_compared_with_the_whole_result(digits):
    result = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)
    assert digits_of(result, digits) == f"{result.value:.{digits}g}"


def test_digits_of_m2_match_a_quadrature():
    found = digits_of(privproj.delta(M2(dim=20, rank=4, noise_multiplier=0.5), epsilon=1.0, bound="exact-rank1"), 40)
    with mp.workdps(60):

        def density(b):
            return b * (1 - b) ** 7 / mp.beta(2, 8) * gaussian_delta_at_60_digits(1, 2 * mp.sqrt(b))

        exact = mp.quad(density, [0, 0.05, 0.1, 0.2, 0.4, 0.7, 1])
        assert abs(mp.mpf(found) - exact) <= exact * mp.mpf(10) ** -30


def beta_expectation(dim, rank, f, start=0):
    """``E[f(B); B > start]`` for ``B ~ Beta(r/2, (d-r)/2)``, by quadrature over the angle of a random direction."""

    def density(angle):
        # B = sin^2 angle has the density 2 sin^(r-1) cos^(d-r-1) / Beta(r/2, (d-r)/2) in the angle.
        sine = mp.sin(angle)
        return sine ** (rank - 1) * mp.cos(angle) ** (dim - rank - 1) * f(sine**2)

    first = mp.asin(mp.sqrt(start))
    places = [first + (mp.pi / 2 - first) * mp.mpf(i) / 12 for i in range(13)]
    return 2 * mp.quad(density, places) / mp.beta(mp.mpf(rank) / 2, mp.mpf(dim - rank) / 2)


def two_sided_delta(eps, mu):
    """Equation 10 of arXiv 2601.21719: the probability that the loss of a Gaussian exceeds ``eps`` on either side."""
    return (mp.erfc((eps / mu - mu / 2) / mp.sqrt(2)) + mp.erfc((eps / mu + mu / 2) / mp.sqrt(2))) / 2


def hundred_settings():
    """Yield the mechanism, the options of the query and a function for the delta, written from the definitions."""
    epsilons = (0.0, 0.01, 0.5, 2.0, 6.0)
    for z, eps in product((0.1, 0.3, 0.7, 1.0, 2.5, 20.0), epsilons):
        exact = partial(lambda z, eps: gaussian_delta_at_60_digits(eps, 1 / mp.mpf(z)), z, eps)
        yield Gaussian(noise_multiplier=z), {"epsilon": eps}, exact
    for z, eps in product((0.02, 0.1, 0.13, 0.15), epsilons):
        exact = partial(lambda z, eps: 1 - mp.exp((mp.mpf(eps) - 1 / mp.mpf(z)) / 2), z, eps)
        yield Laplace(noise_multiplier=z), {"epsilon": eps}, exact
    for (dim, rank), z, eps in product(((20, 4), (9, 2), (33, 3), (64, 16), (5, 1)), (0.3, 1.0), epsilons[1:4]):

        def mixture(dim, rank, z, eps):
            return beta_expectation(dim, rank, lambda b: gaussian_delta_at_60_digits(eps, mp.sqrt(b) / mp.mpf(z)))

        options = {"epsilon": eps, "bound": "exact-rank1"}
        yield M2(dim=dim, rank=rank, noise_multiplier=z), options, partial(mixture, dim, rank, z, eps)
    for (dim, rank, k), tau, eps in product(((40, 5, 3), (200, 16, 10)), (0.125, 0.25, 0.5, 0.75), (0.25, 1.0)):

        def union(dim, rank, k, tau, eps):
            tail = beta_expectation(dim, rank, lambda b: 1, start=mp.mpf(tau))
            return min(1, two_sided_delta(eps, mp.sqrt(mp.mpf(tau)) / mp.mpf(0.4)) + k * tail)

        options = {"epsilon": eps, "bound": "beta-tail", "tau": tau}
        mechanism = M2(dim=dim, rank=rank, change_rank=k, noise_multiplier=0.4)
        yield mechanism, options, partial(union, dim, rank, k, tau, eps)
    for z, eps in product((0.4, 1.0), (0.25, 1.5)):
        options = {"epsilon": eps, "bound": "two-sided"}
        exact = partial(lambda z, eps: two_sided_delta(eps, 1 / mp.mpf(z)), z, eps)
        yield Gaussian(noise_multiplier=z), options, exact


@pytest.mark.full
def test_forty_digits_agree_with_evaluations_at_60_digits():
    settings, differences = [*hundred_settings()], []
    for mechanism, options, evaluate in settings:
        shown = digits_of(privproj.delta(mechanism, **options), 40)
        with mp.workdps(75):
            exact = evaluate()
            differences.append(abs(mp.mpf(shown) / exact - 1))
    assert len(settings) == 100 and max(differences) <= mp.mpf(10) ** -39


def test_digits_of_a_bound_above_one_are_those_of_one():
    mechanism = M2(dim=40, rank=5, change_rank=3, noise_multiplier=0.4)
    assert digits_of(privproj.delta(mechanism, epsilon=0.25, bound="beta-tail", tau=0.125), 5) == "1.0000"


def test_digits_use_the_mechanism_of_the_relation():
    def digits(rank, relation):
        mechanism = M2(dim=64, rank=4, noise_multiplier=0.5, change_rank=rank)
        return digits_of(privproj.delta(mechanism, epsilon=1.0, bound="beta-tail", relation=relation), 20)

    assert digits(2, "replace") == digits(4, "add-remove") != digits(2, "add-remove")


def test_digits_reject_composed_runs():
    composed = privproj.epsilon(M2(dim=20, rank=4, noise_multiplier=0.5), delta=1e-5, steps=10)
    with pytest.raises(UnsupportedError, match="one release"):
        with_digits(composed, 20)
    one = privproj.epsilon(M2(dim=20, rank=4, noise_multiplier=0.5), delta=1e-5)
    for digits in (0, 1001, 2.5):
        with pytest.raises(InvalidParameterError, match="digits"):
            with_digits(one, digits)


@pytest.mark.parametrize("factor, found", [(1 - 1e-9, "below"), (1 + 1e-9, "above"), (1.0, "")])
def test_difference_finds_errors_of_1e_9(factor, found):
    result = privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=1.0)
    exact = reference_value(result.query, result.target)
    assert found in difference(result, exact / factor) and bool(found) == bool(difference(result, exact / factor))


def test_digits_of_a_wrong_result_are_an_error(monkeypatch):
    result = privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=1.0)
    object.__setattr__(result, "value", result.value * 1.001)
    with pytest.raises(ConvergenceError, match="above"):
        with_digits(result, 20)


def test_digits_option_prints_a_line_and_a_json_key(run):
    command = "delta gaussian --noise-multiplier 1 --epsilon 1 --digits 30"
    assert "  mpmath:    0.126936737506643945" in run(command)[1]
    found = json.loads(run(f"{command} --json")[1])["numerics"]["mpmath"]
    assert found["digits"] == 30 and found["value"].startswith("0.126936737506643945")
    assert run("sigma gaussian --delta 1e-5 --epsilon 1 --digits 30")[0] == 2


ENTRIES = """
[[bound]]
query = "delta"
mechanism = "m2"
dim = 2048
rank = 16
noise_multiplier = 0.5
epsilon = 1.0
at_most = 1

[[bound]]
mechanism = "m2"
dim = 2048
rank = 16
noise_multiplier = 0.5
steps = 10
delta = 1e-5
at_most = 10
"""


@pytest.mark.parametrize("factor, word", [(1.0, ""), (1 - 1e-9, "at most"), (1 + 3e-6, "above")])
@pytest.mark.parametrize("mechanism", [Gaussian(), M2(dim=64, rank=4)], ids=lambda mechanism: mechanism.name)
def test_noise_difference_finds_too_small_and_too_large_noise(mechanism, factor, word):
    query, target = composition_of(mechanism, None, {}), full_target(1.0, 1e-5, None, zero=False)
    noise = privproj.sigma(mechanism, epsilon=1.0, delta=1e-5).value
    found = noise_difference(query, target, noise * factor)
    assert word in found and bool(word) == bool(found)


def test_check_reference_compares_sigma(run, tmp_path):
    path = tmp_path / "bounds.toml"
    entry = '[[bound]]\nquery = "sigma"\nmechanism = "gaussian"\nat_most = 9\n'
    path.write_text(f"{entry}epsilon = 1\ndelta = 1e-5\n\n{entry}advantage = 0.1\n")
    code, out, _ = run(f"check --reference {path}")
    assert code == 0 and "attack risks" in out and "1 agree with mpmath, 1 were not compared" in out


@pytest.mark.parametrize("error", [-1e-9, pytest.param(1e-9, marks=pytest.mark.full)])
def test_check_reference_finds_an_error_of_a_kernel(error, run, tmp_path, monkeypatch):
    from privproj.distributions import beta_gamma_kernels

    path = tmp_path / "bounds.toml"
    path.write_text(ENTRIES)
    code, out, _ = run(f"check --reference {path}")
    assert code == 0 and "1 agree with mpmath" in out and "not compared" in out
    plain = beta_gamma_kernels.BETA_GAMMA_KERNELS.log_delta

    def wrong(eps, row):
        return tuple(end + math.log1p(error) for end in plain(eps, row))

    # Representations are cached, so the wrong kernel is for another release.
    path.write_text(ENTRIES.replace("noise_multiplier = 0.5", f"noise_multiplier = {0.6 + 1e7 * error}"))
    kernels = replace(beta_gamma_kernels.BETA_GAMMA_KERNELS, log_delta=wrong)
    monkeypatch.setattr("privproj.distributions.mixture_profile.BETA_GAMMA_KERNELS", kernels)
    assert run(f"check {path}")[0] == 0  # within the limit of the entry
    code, out, _ = run(f"check --reference {path}")
    assert code == 1 and ("below" if error < 0 else "above") in out and "(mpmath)" in out


def test_reference_value_rejects_two_phases():
    query = composition_of(Gaussian(noise_multiplier=1.0), None, {})
    two = type(query)((query.phases[0].with_run(steps=2), query.phases[0]))
    with pytest.raises(UnsupportedError, match="several phases"):
        reference_value(two, epsilon_target(1.0))
