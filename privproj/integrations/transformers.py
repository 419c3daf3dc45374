"""Provide a private ``Trainer`` of transformers (extras ``torch`` and ``peft``).

Importing this module loads neither torch nor transformers; the class is loaded at its first use.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="peft")
