"""Account for private selection: the release of the best of several runs.

The number of runs is random.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
