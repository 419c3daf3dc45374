"""Compose privacy profiles of single releases to the privacy curve of a run.

``compose`` is the entry point. Each step is enclosed between two discrete pairs of measures: one dominates the step,
and the step dominates the other (``dominating_pairs``, C18). Both pairs are composed on a uniform grid of privacy
losses (``fourier``, C19) or on adaptive grids (``repeated_squaring``, C23); ``grid`` selects the method. ``tails``
composes runs with several truncations of the tails, and limits the result by two simple bounds (C23). ``moments``
bounds extremely small deltas by Renyi moments (C23).

``good_event`` adds the probability of a rare event to the delta of a Gaussian run outside that event (C16). Sampling
schemes and user-level privacy have modules of their own: ``balls_in_bins`` and ``several_batches`` (C25),
``truncated_poisson`` and ``truncated_step`` (C26), and ``group_privacy`` (C37).
"""
