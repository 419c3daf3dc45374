"""Compose the privacy profiles of single releases to that of a run; start with :mod:`privproj.composition.compose`.

A step is bracketed between two pairs of measures, one that dominates it and one that it dominates
(``dominating_pairs``, C18). Both are composed on a uniform grid of losses (``fourier``, C19) or on adaptive grids
(``repeated_squaring``, C23); ``grid`` chooses. The result never exceeds simple bounds (``tails``, C23).
``good_event`` accounts for runs outside an unlikely event (C16).
"""
