"""The Gaussian profile as a table."""

import math

import numpy as np

from privproj import Gaussian
from privproj.mechanisms.registry import find_bound


def test_gaussian_table_is_an_upper_bound():
    form = find_bound(Gaussian, "analytic").representation(Gaussian(noise_multiplier=0.5))
    eps = np.linspace(0, 20, 50)
    for e, below, above in zip(eps, *form.table(eps), strict=True):
        low, high = form.log_delta(float(e))
        assert math.exp(low) <= above <= math.exp(high) * (1 + 1e-8)
        assert math.exp(low) * (1 - 1e-8) <= below <= math.exp(high)
