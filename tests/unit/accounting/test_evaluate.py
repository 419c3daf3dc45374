"""No parameter of ``evaluate`` twice or in vain."""

import pytest

import privproj
from privproj import InvalidParameterError


@pytest.mark.parametrize(
    ("quantity", "parameters"),
    [
        ("gaussian.analytic.epsilon", {"mu": 1, "noise_multiplier": 1, "delta": 1e-5}),
        ("gaussian.analytic.epsilon", {"mu": 1, "delta": 1e-5, "step": 3}),
        ("gaussian.analytic.epsilon", {"mu": 1, "delta": 1e-5, "epsilon": 3}),
        ("gaussian.analytic.sigma", {"mu": 1, "delta": 1e-5, "epsilon": 3}),
        ("gaussian.analytic.steps", {"mu": 1, "delta": 1e-5, "epsilon": 3, "steps": 3}),
        ("gaussian.analytic.rate", {"mu": 1, "delta": 1e-5, "epsilon": 3, "sampling_rate": 0.3}),
        ("wishart.exact.epsilon", {"dim": 9, "rank": 3, "rho": 0.9, "alignment": 0.9, "delta": 1e-5}),
        ("gaussian.analytic.epsilon", {"mu": 1, "delta": 1e-5, "allow_refuted": "no"}),
        ("m2.gaussian.epsilon", {"mu": 1, "dim": 9, "rank": 2, "delta": 1e-5, "fixed_projection": "false"}),
    ],
)
def test_evaluate_takes_no_parameter_twice_or_in_vain(quantity, parameters):
    with pytest.raises(InvalidParameterError):
        privproj.evaluate(quantity, **parameters)
