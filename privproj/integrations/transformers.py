"""The ``Trainer`` of transformers, trained privately (needs the extras ``torch`` and ``peft``).

Importing this loads neither torch nor transformers; the class is loaded when it is asked for.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names

if TYPE_CHECKING:
    from privproj.training.trainer import PrivateTrainer

__all__ = ["PrivateTrainer"]

__getattr__, __dir__ = lazy_names("privproj.training", {"trainer": ("PrivateTrainer",)}, extra="peft")
