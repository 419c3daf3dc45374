"""Compute the privacy loss distribution of a run, and convert a run to GDP, zCDP, RDP or trade-off functions."""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
