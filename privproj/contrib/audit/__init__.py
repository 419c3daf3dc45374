"""Audits: tests that can show a privacy claim false. None of them can show one true.

The names below are the public interface; importing the package loads none of them and no torch.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
