"""``privproj rank``."""

from .query import query_group

command = query_group("rank", "Ranks that meet a target: the largest, the smallest or both, as the mechanism has it.")
