"""Evaluate queries: the epsilon or delta of a mechanism in a run, and the parameter that meets a target.

A calibration finds the noise multiplier, rank, number of steps, sampling rate or misalignment. Besides
:class:`privproj.Result`, the types that queries return can be imported from here.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
