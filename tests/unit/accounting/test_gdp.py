"""The GDP mu of a mechanism and a run, as a result."""

import json
import math

import pytest
from helpers import ROOT, RUN

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Laplace, Outcome, Side, UnsupportedError
from privproj.accounting.gdp import solve_gdp_mu
from privproj.io.run_file import from_data
from privproj.targets import slack_target


@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-9, 0.5])
@pytest.mark.parametrize(("z", "steps"), [(1.0, 1), (0.7, 3), (12.5, 1000)])
def test_of_gaussian_releases_it_is_closed_form(z, steps, delta):
    found = privproj.gdp_mu(Gaussian(noise_multiplier=z), delta=delta, steps=steps)
    exact = math.sqrt(steps) / z
    assert exact <= found.value <= exact * (1 + 2e-15)
    assert found.side is Side.EXACT and found.numerics["regret"] == 0.0
    group = privproj.gdp_mu(Gaussian(noise_multiplier=z), delta=delta, steps=steps, group_size=3)
    assert group.value == pytest.approx(3 * exact, rel=1e-14, abs=0)


def test_sampled_run_mu_is_between_its_limits():
    found = privproj.gdp_mu(Gaussian(noise_multiplier=1.0), **RUN)
    # The central limit, which is no bound: mu = q sqrt(T (e^(1/z^2) - 1))
    limit = 0.01 * math.sqrt(2000 * math.expm1(1.0))
    assert limit < found.value < 1.3 * limit
    assert found.value < privproj.gdp_mu(Gaussian(noise_multiplier=1.0), steps=2000).value
    assert found.delta == 1e-9 and 0.0 < found.numerics["regret"] < 0.05 and found.numerics["exact_from"] < 1e-9


def test_result_fits_its_schema():
    schema = json.loads((ROOT / "privproj" / "schema.json").read_text())
    for found in (privproj.gdp_mu(M2(dim=64, rank=4, noise_multiplier=1.0)), privproj.sigma(Gaussian(), advantage=0.1)):
        shown = found.as_dict()
        assert set(schema["required"]) <= set(shown) <= set(schema["properties"])
        assert shown["quantity"] in schema["properties"]["quantity"]["enum"]
        assert str(found)


def test_slack_of_zero_needs_curve_that_ends():
    assert privproj.gdp_mu(Laplace(noise_multiplier=2.0), delta=0.0).numerics["exact_from"] == 0.0
    with pytest.raises(UnsupportedError, match="slack above 0") as caught:
        privproj.gdp_mu(M2(dim=64, rank=4, noise_multiplier=1.0), delta=0.0)
    assert caught.value.result.outcome is Outcome.UNSUPPORTED
    for wrong in (1.0, -1e-9, math.nan):
        with pytest.raises(InvalidParameterError):
            privproj.gdp_mu(Gaussian(noise_multiplier=1.0), delta=wrong)


def test_run_that_leaks_all_has_no_finite_mu():
    found = privproj.gdp_mu(M2(dim=64, rank=60, noise_multiplier=0.01))
    assert found.outcome is Outcome.VACUOUS and found.as_dict()["value"] is None


def test_phases_have_one_mu():
    phase = {"mechanism": "gaussian", "noise_multiplier": 2, "steps": 8}
    one = solve_gdp_mu(from_data({"phase": [phase]}), slack_target(1e-9))
    assert one.value == pytest.approx(math.sqrt(2), rel=1e-12, abs=0)


def test_schedule_mu_equals_mu_of_plain_query():
    schedule = from_data({"phase": [{"mechanism": "gaussian", "noise_multiplier": 2, "steps": 16}]})
    assert privproj.gdp_mu(schedule).value == privproj.gdp_mu(Gaussian(noise_multiplier=2.0), steps=16).value
    for given in ({"steps": 2}, {"bound": "analytic"}):
        with pytest.raises(InvalidParameterError, match=r"must be omitted, got .* A schedule already states"):
            privproj.gdp_mu(schedule, **given)
