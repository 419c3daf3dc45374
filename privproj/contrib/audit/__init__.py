"""Audit privacy claims by attacks.

An attack can refute a claimed epsilon, but it can never confirm one. The names in ``__init__.pyi`` are the public API.
Importing the package loads neither these names nor torch.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
