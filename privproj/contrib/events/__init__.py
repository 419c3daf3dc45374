"""Use events of dp-accounting as phases of a training run."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
