"""Compose the privacy profiles of single releases to the privacy curve of a run; ``compose`` is the entry point.

A step is bracketed between two pairs of measures, one that dominates it and one that it dominates
(``dominating_pairs``, C18). Both are composed on a uniform grid of losses (``fourier``, C19) or on adaptive grids
(``repeated_squaring``, C23); ``grid`` chooses. The result never exceeds simple bounds (``tails``, C23).
``good_event`` splits delta between an unlikely event and a Gaussian run outside it (C16). ``balls_in_bins`` (C25),
``truncated_poisson`` and ``truncated_step`` (C26) and ``group_privacy`` (C37) treat the sampling schemes and user-level
privacy.
"""
