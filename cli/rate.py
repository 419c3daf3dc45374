"""``privproj rate``."""

from privproj.calibration import rate

from .query import MECHANISMS, query_group

command = query_group("rate", rate, "Largest sampling rate that fits a target.", tuple(MECHANISMS))
