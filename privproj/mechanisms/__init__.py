"""Define mechanisms and their privacy bounds.

A mechanism is a frozen dataclass with the parameters of one release. :mod:`privproj.mechanisms.registry` lists the
bounds.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
