"""Distributions that several bounds share: of the squared sensitivity of a Gaussian release, and of a privacy loss.

``squared_sensitivity``, ``beta_gamma_kernels`` and ``mixture_profile`` evaluate one epsilon at a time. ``binned`` and
``binned_profile`` evaluate arrays of epsilons. ``tabulated`` and ``densities`` contain distributions that are integrals
themselves. ``wishart_*`` and ``gamma_hockey_stick`` contain the loss of a vector times a Wishart matrix.
"""
