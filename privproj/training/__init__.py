"""The torch adapter: train with the computed sigma, and be able to prove what was spent (needs the extra ``torch``).

The names below are the public interface. Importing the package loads none of them and no torch, so that the command
line can list the algorithms (:mod:`privproj.training.algorithms`) where torch is not installed.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
