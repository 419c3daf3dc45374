"""The record of a bound, the registry and the requirements."""

from dataclasses import fields

import pytest

from privproj import M2, Gaussian, InvalidParameterError, Sketch, plugins
from privproj.accounting.phase import phase_for
from privproj.assumptions import DataAssumption, Requirement, short_name
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import bounds_of, find_bound, is_renyi, lines_of, registry, renyi_bound


def test_bound_has_at_most_18_fields():
    assert len(fields(Bound)) <= 18


def test_registry_of_core_mechanism_never_asks_plugins(monkeypatch):
    monkeypatch.setattr(plugins, "plugins", lambda: pytest.fail("scanned the optional features"))
    assert find_bound(Gaussian, None).name == "analytic"
    assert bounds_of(M2)[0].name == "rank-free" and lines_of("m2")


def test_unknown_bound_is_reported_with_its_mechanism():
    with pytest.raises(InvalidParameterError, match="unknown bound 'nothing' of m2"):
        find_bound(M2, "nothing")


def test_short_names_of_requirements_are_unique():
    names = [member.short for member in Requirement]
    assert len(set(names)) == len(names) == len({str(member) for member in Requirement})
    assert all(short_name(str(member)) == member.short for member in Requirement)
    assert short_name("a text of nobody") is None


def test_assumption_text_contains_its_values():
    assert DataAssumption.DIFFERENCE_RANK.at(k=3).text.endswith("rank at most 3")
    assert DataAssumption.DIFFERENCE_RANK.short == "difference-rank"


def test_status_is_conditional_exactly_with_assumptions():
    free = phase_for(M2(dim=64, rank=4, columns=8, noise_multiplier=1.0), "beta-tail", {})
    assert (str(free.status), free.data_assumptions) == ("proved", ())
    limited = phase_for(M2(dim=64, rank=4, change_rank=3, noise_multiplier=1.0), "beta-tail", {})
    assert str(limited.status) == "conditional" and limited.data_assumptions


def test_default_relation_is_one_under_which_bound_holds():
    assert all(bound.default_relation in (None, *bound.relations) for bound in registry())
    assert find_bound(Sketch, "exact-rank1").default_relation == "zero-out"


def test_each_mechanism_has_at_most_one_renyi_bound():
    for mechanism in {bound.mechanism for bound in registry()}:
        found = [bound for bound in bounds_of(mechanism) if is_renyi(bound)]
        assert found == [renyi_bound(mechanism)] if found else renyi_bound(mechanism) is None


def test_flawed_bound_is_not_guarantee_unless_unaffected():
    for bound in registry():
        assert (bound.flaw is None) == (str(bound.status) in ("proved", "conditional")), bound.key
