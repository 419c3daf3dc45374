"""Define mechanisms, which are frozen dataclasses, and their bounds.

:mod:`privproj.mechanisms.registry` lists the bounds.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
