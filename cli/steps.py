"""``privproj steps``."""

from .query import query_group

command = query_group("steps", "Largest number of steps that fit a target.")
