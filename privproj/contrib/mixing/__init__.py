"""Account for Gaussian mixing.

Gaussian mixing releases a secret sketch of the records with noise. The variance of the noise depends on a private
estimate of the least eigenvalue of ``X^T X``, where the rows of ``X`` are the records.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
