"""Grids beyond memory are refused."""

import pytest

import privproj
from privproj import Gaussian
from privproj.errors import GridLimit


def test_too_fine_a_grid_is_refused_before_memory_is_taken():
    with pytest.raises(GridLimit, match="larger discretization"):
        privproj.epsilon(Gaussian(noise_multiplier=5.0), delta=1e-5, steps=30, sampling_rate=0.9, discretization=1e-7)
