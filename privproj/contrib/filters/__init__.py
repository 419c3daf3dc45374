"""Account for training plans that react to outputs, by privacy filters."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
