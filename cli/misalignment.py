"""``privproj misalignment``: the largest misalignment that fits."""

from privproj.accounting.calibration import misalignment

from .query import query_group

command = query_group("misalignment", misalignment, "Largest misalignment that meets a target.", ("wishart",))
