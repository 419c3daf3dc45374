"""Account for Gaussian mixing.

Gaussian mixing is a secret sketch of records whose noise depends on a private estimate of their least eigenvalue.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
