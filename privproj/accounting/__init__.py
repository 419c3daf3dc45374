"""Questions and their answers: a mechanism and a run are put to a bound.

Queries ask forwards (epsilon, delta), calibrations ask backwards (noise, rank, steps, rate, misalignment). What they
return, besides :class:`privproj.Result`, can be imported from here.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
