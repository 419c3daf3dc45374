"""Compute epsilon, delta or a calibrated parameter for a mechanism in a training run.

A calibrated parameter is the noise multiplier, the rank, the number of steps, the sampling rate or the misalignment
(one minus the cosine of the angle between the vectors of neighboring datasets). The package also exports result types.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
