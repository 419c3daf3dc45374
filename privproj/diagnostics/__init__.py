"""Numbers that describe a training run and guarantee nothing.

The names below are the public interface; importing the package loads none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privproj.diagnostics.alignment import (
        descent_condition,
        mean_misalignment,
        preprocessed_misalignment,
        preprocessing_gain,
    )
    from privproj.diagnostics.lora_moments import lora_noise

__all__ = [
    "descent_condition",
    "lora_noise",
    "mean_misalignment",
    "preprocessed_misalignment",
    "preprocessing_gain",
]

HOMES = {
    "alignment": ("descent_condition", "mean_misalignment", "preprocessed_misalignment", "preprocessing_gain"),
    "lora_moments": ("lora_noise",),
}
"""Where each public name is, by module. Contract: these names stay importable from here."""


def __getattr__(name: str) -> object:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
