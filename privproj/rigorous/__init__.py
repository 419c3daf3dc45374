"""Enclosures that are proofs: the profiles in ball arithmetic (python-flint), each with its own error bound.

Every function here takes and returns balls ``[mid +/- rad]``: the exact value lies inside, whatever was rounded.
Nothing is shared with the floating-point kernels; free parameters of a bound (``tau``, the tangent) come from there,
since any value of them proves a bound.
"""
