"""Audits: tests that can show a privacy claim false. None of them can show one true.

The names below are the public interface; importing the package loads none of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privproj.audit.symmetry import SymmetryTest, asymmetry, symmetry_test

__all__ = ["SymmetryTest", "asymmetry", "symmetry_test"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from privproj.audit import symmetry

    return getattr(symmetry, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
