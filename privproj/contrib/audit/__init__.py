"""Audit privacy claims: tests that can refute a claim and never confirm one.

The names below are the public interface; importing the package loads neither them nor torch.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
