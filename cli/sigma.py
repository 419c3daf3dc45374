"""``privproj sigma``."""

from .query import query_group

command = query_group("sigma", "Smallest noise multiplier that meets a target.")
