"""From the curve of one release to that of a run; :mod:`privproj.composition.compose` is the only entry.

A step is bracketed between two pairs of measures, one that dominates it and one that it dominates
(``dominating_pairs``, C18). Both are composed on a lattice (``fourier``, C19) or on grids that follow the losses
(``adaptive_grid``, C23); ``grid`` chooses. The result is never above simple bounds (``depths``, C23). ``good_event``
accounts for runs outside an unlikely event (C16).
"""
