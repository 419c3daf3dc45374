"""Account for training plans whose parameters depend on earlier outputs, by privacy filters."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
