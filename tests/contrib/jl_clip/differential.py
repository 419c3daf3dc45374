"""Random queries of the mechanism jl-clip and an independent dominating pair."""

import math

import mpmath
import numpy as np

from tests.differential import pairs
from tests.differential.draws import log_uniform_integer, noise_multiplier


def parameters(rng, query):
    return {"probes": log_uniform_integer(rng, 20, 10**4), "noise_multiplier": noise_multiplier(rng, query)}


def probed_pair(probes, mu, density=4):
    """Return the pair with ``S^2 = mu^2 r / chi2_r``, down to where ``chi2_r`` has a probability of 1e-110."""
    k = 0.5 * probes
    width = 1.0 / math.sqrt(k)
    with mpmath.workdps(40):
        front = float(mpmath.mpf(k) * mpmath.log(k) - k - mpmath.loggamma(k))
    low, high = -11.0 * width - 260.0 / k, 8.0 * width + 2.0 / k
    t, w, c = pairs.trapezoid(lambda t: front + k * (t - np.expm1(t)), low, high, min(width, 1.0) / density)
    return pairs.Shifts(mu * np.exp(-0.5 * t), w, c, pairs.rounded(probes))


SHARE = {"jl-clip": 2}
PARAMETERS = {"jl-clip": parameters}
WEIGHTS = {("jl-clip", "exact"): 2}
GROUPED = ("any-records",)
NO_REPLACE = (("jl-clip", "exact"),)
PAIRS = {"jl-clip": lambda parameters, mu: probed_pair(parameters["probes"], mu)}
EXACT = (("jl-clip", "exact"),)
MAJORANTS = (("jl-clip", "any-records"),)
