"""Provide a ``Trainer`` of transformers for differentially private training.

The class needs the extras ``torch`` and ``peft``. Importing this module loads neither torch nor transformers. The class
is loaded at its first use.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="peft")
