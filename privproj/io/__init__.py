"""Read and write run files, ledgers and files of expected bounds.

The names in ``__init__.pyi`` are the public API. Importing the package loads none of them.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
