"""Read and write run files, ledgers and files of expected bounds.

The public names are in ``__init__.pyi``. A public name is loaded on first use.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
