"""Read and write run files, ledgers and files of expected bounds."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
