"""``privproj rank``."""

from privproj.calibration import rank

from .query import query_group

command = query_group("rank", rank, "Largest rank of the projection that meets a target.", ("m2",))
