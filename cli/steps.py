"""``privproj steps``."""

from privproj.calibration import steps

from .query import MECHANISMS, query_group

command = query_group("steps", steps, "Largest number of steps that fit a target.", tuple(MECHANISMS))
