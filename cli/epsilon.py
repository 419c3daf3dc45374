"""``privproj epsilon``."""

from privproj.accounting.queries import epsilon

from .mechanisms import MECHANISMS
from .query import query_group

command = query_group("epsilon", epsilon, "Epsilon of a release or a run, at a given delta.", tuple(MECHANISMS))
