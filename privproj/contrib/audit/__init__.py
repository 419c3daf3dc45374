"""Audit privacy claims by attacks, which can refute a claimed epsilon but never confirm it.

The names in ``__init__.pyi`` are the public API. Importing the package loads neither them nor torch.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
