"""``privproj sigma``."""

from privproj.calibration import sigma

from .query import NOISY, query_group

command = query_group("sigma", sigma, "Smallest noise multiplier that meets a target.", NOISY)
