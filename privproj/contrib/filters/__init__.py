"""Enforce privacy budgets for plans whose parameters depend on earlier outputs."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
