"""Distributions of random squared sensitivities, and the privacy profiles that result.

``squared_sensitivity``, ``beta_gamma_kernels`` and ``mixture_profile`` evaluate one epsilon at a time. ``binned`` and
``binned_profile`` evaluate arrays of epsilons. ``tabulated`` and ``densities`` handle distributions without a closed
form. ``wishart_*`` and ``gamma_hockey_stick`` compute the privacy loss of releasing a vector times a Wishart matrix.
"""
