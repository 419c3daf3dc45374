"""Use events of dp-accounting as phases, composed with phases of privproj."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
