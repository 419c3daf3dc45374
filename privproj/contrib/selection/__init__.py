"""Account for private selection of the best of several runs."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
