"""``privproj sigma``."""

from privproj.accounting.calibration import sigma

from .mechanisms import NOISY
from .query import query_group

command = query_group("sigma", sigma, "Smallest noise multiplier that meets a target.", NOISY)
