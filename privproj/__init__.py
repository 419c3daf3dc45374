"""Compute proved epsilons and deltas of training runs that release noisy gradients or random projections of them.

The names in ``__init__.pyi`` are the public API. Importing the package loads none of them.
"""

from privproj.lazy import lazy_names
from privproj.version import __version__ as __version__

__getattr__, __dir__ = lazy_names(__name__)
