"""``privproj steps``."""

from privproj.accounting.calibration import steps

from .mechanisms import MECHANISMS
from .query import query_group

command = query_group("steps", steps, "Largest number of steps that fit a target.", tuple(MECHANISMS))
