"""Compose privacy profiles of single releases to the privacy curve of a run.

``compose`` is the entry point. It encloses each step between two discrete pairs of measures: one dominates the step,
and the step dominates the other (``dominating_pairs``, C18). It composes both pairs on a uniform grid of privacy losses
(``fourier``, C19) or on adaptive grids (``repeated_squaring``, C23). ``grid`` selects the method, ``tails`` truncates
the tails of the losses for a range of deltas, and ``moments`` bounds extremely small deltas (C23).

Other modules are for special runs: ``good_event`` (C16), ``balls_in_bins`` and ``several_batches`` (C25),
``truncated_poisson`` and ``truncated_step`` (C26), and ``group_privacy`` for user-level privacy (C37).
"""
