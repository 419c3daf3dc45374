"""The ``Trainer`` of transformers, trained privately (needs the extras ``torch`` and ``peft``).

Importing this loads neither torch nor transformers; the class is loaded when it is asked for.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="peft")
