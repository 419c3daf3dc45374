"""Laws that every bound must keep, run over the registry; and a control that must fail."""

import itertools
import math
from dataclasses import replace
from functools import cache

import pytest
from helpers import GUARANTEES, SECONDS, full_if, ids, mechanism_for, slow_if
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj.errors import UnsupportedError
from privproj.mechanisms import M2, Gaussian
from privproj.numerics.interval import Enclosure
from privproj.profiles.approximate_dp import EpsilonDeltaRule
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run


@cache
def form_of(bound, **settings):
    """The form of a bound, built once: for some it takes seconds, and a question to it milliseconds."""
    form = bound.representation(mechanism_for(bound, **settings))
    return form if isinstance(form, PrivacyProfile) else form.over_run(Run())


def is_rule(bound):
    return isinstance(form_of(bound), EpsilonDeltaRule)


def over(bounds):
    """A test over all bounds; bounds that take seconds are in the full run."""
    return pytest.mark.parametrize("bound", full_if(bounds, lambda b: b.name in SECONDS), ids=ids)


CONVEX = ("analytic", "gdp", "rank-free", "exact-rank1", "gaussian", "exact")
every_bound = over(GUARANTEES)
every_curve = over(b for b in GUARANTEES if not is_rule(b))
every_profile = over(b for b in GUARANTEES if isinstance(form_of(b), PrivacyProfile))
convex_profiles = over(b for b in GUARANTEES if b.name in CONVEX)
TOLERANCE = {"rdp": 1e-6, "mixture-rdp": 1e-6, "good-event": 1e-3, "good-event-q": 1e-3}
"""The last two minimize over the split of delta in one direction and over tau in the other."""

EPS = [0.0, 1e-4, 0.05, 0.3, 1.0, 2.5, 6.0, 15.0]


@every_curve
def test_delta_is_probability_that_falls_with_epsilon(bound):
    ends = [form_of(bound).log_delta(eps) for eps in EPS]
    assert all(end.lower <= end.upper <= 0.0 for end in ends)
    assert all(later.lower <= earlier.upper for earlier, later in itertools.pairwise(ends))
    assert ends[-1].upper < ends[0].upper


@every_curve
@pytest.mark.parametrize("eps", slow_if(EPS, lambda eps: eps not in (1e-4, 1.0)))
def test_more_noise_never_costs_more(bound, eps):
    deltas = [form_of(bound, z=z).log_delta(eps).upper for z in (0.2, 0.5, 1.0, 3.0)]
    assert deltas == sorted(deltas, reverse=True)


@every_curve
def test_epsilon_inverts_delta(bound):
    form = form_of(bound)
    for eps in (0.4, 1.0, 2.5, 6.0):
        log_delta = form.log_delta(eps).upper
        if -600 < log_delta < -1e-6:
            found = form.epsilon(log_delta)
            tolerance = TOLERANCE.get(bound.name, 1e-9)
            assert found.upper == pytest.approx(eps, rel=tolerance, abs=0)
            assert form.log_delta(found.upper).upper <= log_delta + 10 * tolerance


@convex_profiles
def test_profile_is_convex_in_exp_epsilon(bound):
    form = form_of(bound, z=0.3)
    weights = [0.25, 0.5, 0.9]
    for low, high in ((0.0, 0.5), (0.1, 2.0), (1.0, 6.0), (3.0, 9.0)):
        ends = [math.exp(form.log_delta(e).upper) for e in (low, high)]
        for w in weights:
            middle = math.log((1 - w) * math.exp(low) + w * math.exp(high))
            chord = (1 - w) * ends[0] + w * ends[1]
            assert math.exp(form.log_delta(middle).lower) <= chord * (1 + 1e-11)


@over(b for b in GUARANTEES if b.mechanism in (Gaussian, M2))
@settings(max_examples=12, deadline=None)
@given(eps=st.floats(-1.5, 0.9), log10_delta=st.floats(-9, -2))
def test_sigma_meets_its_target_and_inverts_epsilon(bound, eps, log10_delta):
    eps, delta = 10**eps, 10**log10_delta
    if bound.name == "mixture-rdp" and eps < 0.5:
        return
    blank = replace(mechanism_for(bound), noise_multiplier=None)
    try:
        sigma = privproj.sigma(blank, epsilon=eps, delta=delta, bound=bound.name)
    except UnsupportedError:
        assert is_rule(bound) and eps >= 1.0
        return
    again = privproj.epsilon(replace(blank, noise_multiplier=sigma.value), delta=delta, bound=bound.name)
    assert again.value <= eps
    assert again.value == pytest.approx(eps, rel=TOLERANCE.get(bound.name, 1e-9), abs=0)
    assert sigma.lower is None or sigma.lower <= sigma.value


@every_bound
def test_result_names_everything(bound):
    z = 20.0 if is_rule(bound) else 1.0
    result = privproj.epsilon(mechanism_for(bound, z=z), delta=1e-5, bound=bound.name)
    shown = result.as_dict()
    assert result.usable
    for key in ("side", "bound", "status", "source", "mechanism", "run", "outcome", "version", "schema"):
        assert shown[key] not in (None, "", {})
    assert shown["run"]["relation"] == (bound.default_relation or "add-remove")
    assert (shown["status"] == "conditional") == bool(shown["data_assumptions"])
    assert shown["side"] == ("exact" if bound.is_exact(mechanism_for(bound, z=z)) else "upper bound")


def test_convexity_check_rejects_nonconvex_profile():
    dented = PrivacyProfile(lambda eps: Enclosure(*([-1.0 if eps < 2.0 else -9.0] * 2)))
    low, high = 0.0, 2.5
    middle = math.log(0.5 * math.exp(low) + 0.5 * math.exp(high))
    ends = [math.exp(dented.log_delta(e).upper) for e in (low, high)]
    assert not math.exp(dented.log_delta(middle).lower) <= 0.5 * sum(ends) * (1 + 1e-11)
