"""Account for plans that depend on earlier outputs, by privacy filters.

The parameters of later releases in such a training plan are a function of earlier outputs.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
