"""``privproj epsilon``."""

from .query import query_group

command = query_group("epsilon", "Epsilon of a release or a run, at a given delta.")
