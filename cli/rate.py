"""``privproj rate``."""

from .query import query_group

command = query_group("rate", "Largest sampling rate that fits a target.")
