"""Account for plans that depend on earlier outputs, by privacy filters.

In such a training plan, the noise, sampling rate or rank of a release may depend on earlier outputs.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
