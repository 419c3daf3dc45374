"""Compute privacy loss distributions, and convert runs to other definitions.

The other privacy definitions are GDP, zCDP, RDP and trade-off functions.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
