"""Provide a ``Trainer`` of transformers for differentially private training.

The class needs the extras ``torch`` and ``peft``, and is loaded at its first use.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="peft")
