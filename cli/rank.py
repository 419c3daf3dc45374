"""``privproj rank``."""

from privproj.accounting.calibration import rank

from .mechanisms import RANKED
from .query import query_group

command = query_group(
    "rank", rank, "Ranks that meet a target: the largest, the smallest or both, as the mechanism has it.", RANKED
)
