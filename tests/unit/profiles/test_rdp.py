"""Renyi and concentrated curves: conversion, composition, subsampling."""

import math

import mpmath
import pytest

import privproj
from privproj import Gaussian
from privproj.profiles.rdp import ConcentratedCurve, RenyiCurve


def eps_of(bound, z, delta=1e-5, **run):
    return privproj.epsilon(Gaussian(noise_multiplier=z), delta=delta, bound=bound, **run).value


def test_rdp_conversion_uses_best_order():
    z, delta = 2.0, 1e-6
    by_hand = min(
        a / (2 * z * z) + math.log(1 / (a * delta)) / (a - 1) + math.log1p(-1 / a)
        for a in (1 + math.exp(i / 2000) for i in range(-4000, 12000))
    )
    assert eps_of("rdp", z, delta) == pytest.approx(by_hand, rel=1e-7, abs=0)


def test_concentrated_curve_conversion():
    rho, delta = 0.125, 1e-6
    assert eps_of("zcdp", 2.0, delta) == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1 / delta)), rel=1e-12, abs=0)
    truncated = ConcentratedCurve(rho, omega=3.0)
    assert truncated.epsilon(math.log(delta)).upper == pytest.approx(
        3 * rho + math.log(1 / delta) / 2, rel=1e-12, abs=0
    )
    for eps in (0.3, 1.0, 5.0):
        for curve in (truncated, ConcentratedCurve(rho)):
            assert curve.epsilon(curve.log_delta(eps).upper).upper == pytest.approx(eps, rel=1e-9, abs=0)
    assert truncated.epsilon(-30.0).upper >= ConcentratedCurve(rho).epsilon(-30.0).upper


@pytest.mark.parametrize("rho", [1e-12, 0.125, 5e11, 1e24])
@pytest.mark.parametrize("far", [1e-3, 1.0, 1e3])
def test_concentrated_log_delta_enclosure_is_tight(rho, far):
    eps = rho + far * math.sqrt(rho)
    ends = ConcentratedCurve(rho).log_delta(eps)
    with mpmath.workdps(50):
        missed = eps - mpmath.mpf(rho)
        # An eps - rho that a slope three bits off would give has to be within, and little more.
        truths = [-((missed + k * mpmath.mpf(math.ulp(rho))) ** 2) / (4 * rho) for k in (-3, 0, 3)]
        assert ends.lower <= min(truths)
        assert max(truths) <= ends.upper
        width = 4e-15 * (eps + rho)
        assert ends.upper - ends.lower <= 4e-12 + 1e-13 * far**2 + 4 * width * (far * math.sqrt(rho) + width) / rho


@pytest.mark.parametrize("bound", ["rdp", "zcdp"])
def test_renyi_divergences_add(bound):
    assert eps_of(bound, 30.0, steps=900) == pytest.approx(eps_of(bound, 1.0), rel=1e-9, abs=0)


def test_renyi_curve_with_integer_orders():
    curve = RenyiCurve(lambda a: a / 2, integer_orders=True)
    assert curve.epsilon(-11.5).upper >= RenyiCurve(lambda a: a / 2).epsilon(-11.5).upper
