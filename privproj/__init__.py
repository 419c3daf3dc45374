"""Privacy accounting for random projections: exact and near-exact profiles, each with its status and promises.

The names in ``__init__.pyi`` are the public interface; importing the package loads none of them.
"""

from privproj.lazy import lazy_names
from privproj.version import __version__ as __version__

__getattr__, __dir__ = lazy_names(__name__)
