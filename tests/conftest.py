"""The laws are tried on the same cases in every run, so that a red run means a changed program.

To look for new counterexamples: ``pytest --hypothesis-profile=explore``.
"""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=300)
settings.load_profile("fixed")
