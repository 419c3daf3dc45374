"""Mechanisms, a folder for each: the frozen record of what was run, and its bounds, one theorem per file.

Files with an underscore hold what several theorems of a folder share; :mod:`privproj.mechanisms.registry` lists them.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
