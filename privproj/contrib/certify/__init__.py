"""Enclosures that are proofs: the profiles in ball arithmetic (python-flint), each with its own error bound (C21).

One formula stands in three arithmetics on purpose: *numerics* and the rooms on top of it (floats with an outward
margin) give the answers, *rigorous* (balls) proves them, ``tests/reference`` (mpmath at any precision) tests them. The
three share no formula's code.

Every function here takes and returns balls ``[mid +/- rad]``: the exact value lies inside, whatever was rounded. Only
two things come from the floats, and neither is trusted: how a sum is laid out (its step, its ends, the grid of a run),
which decides how narrow a ball is, and free parameters of a bound (``tau``, the tangent), of which every admissible
value proves a bound.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
