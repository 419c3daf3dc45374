"""Grids beyond memory are refused, and the upper side of a composition needs nothing of the lower one."""

from dataclasses import replace

import pytest
from helpers import gaussian

import privproj
from privproj import Gaussian
from privproj.composition.compose import compose_phases
from privproj.curves import gaussian_arrays
from privproj.curves.profile import SplitTable, epsilon_above, log_delta_above
from privproj.errors import GridLimit
from privproj.runs import Run


def test_too_fine_a_grid_is_refused_before_memory_is_taken():
    with pytest.raises(GridLimit, match="larger discretization"):
        privproj.epsilon(Gaussian(noise_multiplier=5.0), delta=1e-5, steps=30, sampling_rate=0.9, discretization=1e-7)


def test_upper_ends_alone_are_those_of_the_enclosures_and_need_nothing_from_below():
    def above(eps):
        return gaussian_arrays.gaussian_deltas(eps, 1.0)

    def refuse(eps):
        raise AssertionError("a lower end was asked for")

    def curve(below):
        profile = replace(gaussian(1.0), table=SplitTable(below, above), closed_form=None)
        return compose_phases([(profile, Run(steps=500, sampling_rate=0.02)), (profile, Run(steps=3))])

    whole, alone = curve(lambda eps: gaussian_arrays.gaussian_ends(eps, 1.0)[0]), curve(refuse)
    for eps in (0.0, 1.0, 8.0):
        lower, upper = whole.log_delta(eps)
        assert log_delta_above(alone, eps) == upper > lower > upper - 1e-2
    for log_delta in (-3.0, -20.0):
        lower, upper = whole.epsilon(log_delta)
        assert epsilon_above(alone, log_delta) == upper > lower > 0.99 * upper
    with pytest.raises(AssertionError, match="lower end"):
        alone.log_delta(1.0)
