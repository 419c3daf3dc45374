"""Probability laws that several bounds share: of the squared shift of a Gaussian release, and of a privacy loss.

``squared_shift`` and ``profiles`` work on one eps at a time; ``binned`` and ``binned_profiles`` are their array twins.
``panel_law`` and ``shift_densities`` are laws that are integrals themselves. The ``wishart_...``
files are the loss of a vector times a Wishart matrix.
"""
