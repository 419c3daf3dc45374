"""Distributions of random squared sensitivities and of privacy losses, and the privacy profiles that they imply.

``squared_sensitivity``, ``beta_gamma_kernels`` and ``mixture_profile`` evaluate one epsilon at a time. ``binned`` and
``binned_profile`` evaluate arrays of epsilons. ``tabulated`` and ``densities`` contain distributions without a closed
form. ``wishart_*`` and ``gamma_hockey_stick`` compute the loss of releasing a vector times a Wishart matrix.
"""
