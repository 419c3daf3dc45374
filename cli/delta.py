"""``privproj delta``."""

from privproj.accounting.queries import delta

from .mechanisms import MECHANISMS
from .query import query_group

command = query_group("delta", delta, "Delta of a release or a run, at a given epsilon.", tuple(MECHANISMS))
