"""Return the privacy loss distribution of a run, and convert a run to other kinds of privacy."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
