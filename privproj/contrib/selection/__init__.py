"""Account for private selection: the release of the best of a random number of runs."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
