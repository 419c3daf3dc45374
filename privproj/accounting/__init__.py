"""Evaluate queries about a mechanism in a run.

A query computes epsilon or delta, or calibrates the noise multiplier, rank, number of steps, sampling rate or
misalignment to a target. The result types of comparisons, rankings and array queries can be imported from here.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
