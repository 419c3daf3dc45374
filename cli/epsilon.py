"""``privproj epsilon``."""

from privproj.accountant import epsilon

from .query import MECHANISMS, query_group

command = query_group("epsilon", epsilon, "Epsilon of a release or a run, at a given delta.", tuple(MECHANISMS))
