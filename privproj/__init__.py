"""Compute proved epsilons and deltas of differentially private training runs.

The runs release noisy gradients, or random projections of noisy gradients. Each public name is imported on first use.

In docstrings and comments, C1, C2 and so on are the claims of docs/proofs.md.
"""

from privproj.lazy import lazy_names
from privproj.version import __version__ as __version__

__getattr__, __dir__ = lazy_names(__name__)
