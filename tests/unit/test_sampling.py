"""The record of a sampling scheme says all that the accounting asks: with which neighbors, options and words."""

import itertools

import pytest

import privproj
from privproj import Gaussian, InvalidParameterError, UnsupportedError
from privproj.run import BATCH_OPTIONS, NeighboringRelation, Run, Sampling
from privproj.sampling import SCHEMES, WHOLE_DATA, scheme_of

GIVEN = {"batches": 10, "batches_per_record": 1, "max_batch_size": 900, "dataset_size": 1000}


def options_of(scheme):
    """A run under a scheme, with what it needs."""
    rate = {} if SCHEMES[scheme].counts_epochs else {"sampling_rate": 0.1}
    return {"sampling": scheme, "steps": 3, **rate, **{name: GIVEN[name] for name in SCHEMES[scheme].needs}}


def test_every_scheme_supports_its_default_relation():
    assert set(SCHEMES) == set(Sampling) and scheme_of(None) is WHOLE_DATA
    for scheme in SCHEMES.values():
        assert scheme.default_relation in scheme.relations and not set(scheme.why_unsupported) & set(scheme.relations)
        assert bool(scheme.why_default) == (scheme.default_relation is not NeighboringRelation.ADD_REMOVE)


@pytest.mark.parametrize(("scheme", "relation"), list(itertools.product(Sampling, NeighboringRelation)))
def test_relation_is_supported_only_by_its_schemes(scheme, relation):
    ask = {"delta": 1e-5, "relation": str(relation), **options_of(scheme)}
    mechanism = Gaussian(noise_multiplier=2.0)
    if relation in SCHEMES[scheme].relations:
        assert 0.0 < privproj.epsilon(mechanism, **ask).value < 20.0
    else:
        with pytest.raises(UnsupportedError, match="not supported under"):
            privproj.epsilon(mechanism, **ask)


@pytest.mark.parametrize(("scheme", "name"), list(itertools.product(Sampling, BATCH_OPTIONS)))
def test_batch_options_are_accepted_only_by_their_schemes(scheme, name):
    run = {**options_of(scheme), name: 2 if name == "batches_per_record" else GIVEN[name]}
    run |= {"dataset_size": GIVEN["dataset_size"]} if name == "max_batch_size" else {}
    if name in SCHEMES[scheme].options:
        assert getattr(Run(**run), name) == run[name]
    else:
        with pytest.raises(InvalidParameterError, match=f"{name} must be omitted"):
            Run(**run)


@pytest.mark.parametrize("scheme", Sampling)
def test_scheme_requirements_appear_once_in_every_result(scheme):
    output = privproj.epsilon(Gaussian(noise_multiplier=2.0), delta=1e-5, **options_of(scheme)).requirements
    assert output.count(SCHEMES[scheme].requirements) == 1
    others = {record.requirements for record in SCHEMES.values()} - {SCHEMES[scheme].requirements}
    assert not others & set(output)
