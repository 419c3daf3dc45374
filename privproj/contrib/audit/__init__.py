"""Audit privacy claims by attacks.

An attack can refute a claimed epsilon, but it can never confirm one.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
