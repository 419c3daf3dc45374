"""``privproj delta``."""

from .query import query_group

command = query_group("delta", "Delta of a release or a run, at a given epsilon.")
