"""Audits: tests that can show a privacy claim false. None of them can show one true.

The names below are the public interface; importing the package loads none of them and no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privproj.audit.epsilon_lower import AuditVerdict
    from privproj.audit.mechanism import Scene, judge_scene
    from privproj.audit.symmetry import SymmetryTest, asymmetry, symmetry_test

__all__ = ["AuditVerdict", "Scene", "SymmetryTest", "asymmetry", "judge_scene", "symmetry_test"]

HOMES = {
    "epsilon_lower": ("AuditVerdict",),
    "mechanism": ("Scene", "judge_scene"),
    "symmetry": ("SymmetryTest", "asymmetry", "symmetry_test"),
}
"""Where each public name is, by module. Contract: these names stay importable from here."""


def __getattr__(name: str) -> object:
    for home, names in HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
