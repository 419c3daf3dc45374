"""``privproj misalignment``: the largest misalignment that fits."""

from .query import query_group

command = query_group("misalignment", "Largest misalignment that meets a target.")
