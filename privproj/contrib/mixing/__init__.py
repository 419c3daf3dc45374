"""Account for Gaussian mixing, a secret sketch whose noise depends on a private estimate of the least eigenvalue."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
