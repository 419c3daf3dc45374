"""``privproj rate``."""

from privproj.accounting.calibration import rate

from .mechanisms import SAMPLED
from .query import query_group

command = query_group("rate", rate, "Largest sampling rate that fits a target.", SAMPLED)
