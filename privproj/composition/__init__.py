"""From the curve of one release to that of a run; :mod:`privproj.composition.compose` is the only entry.

A step is bracketed by dominating pairs (``dominating_pairs``). These are composed on a lattice (``fourier``) or on
grids that follow the losses (``doubling``); ``grid`` chooses. The result is never above simple bounds (``capped``).
``by_dp_accounting`` is the other composer.
"""
