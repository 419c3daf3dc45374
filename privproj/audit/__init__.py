"""Audits: tests that can show a privacy claim false. None of them can show one true.

The names below are the public interface; importing the package loads none of them and no torch.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names

if TYPE_CHECKING:
    from privproj.audit.epsilon_lower import AuditVerdict
    from privproj.audit.loader import LoaderScene, judge_loader
    from privproj.audit.mechanism import Scene, judge_scene
    from privproj.audit.symmetry import SymmetryTest, asymmetry, symmetry_test

__all__ = [
    "AuditVerdict", "LoaderScene", "Scene", "SymmetryTest", "asymmetry", "judge_loader", "judge_scene", "symmetry_test"
]  # fmt: skip

HOMES = {
    "epsilon_lower": ("AuditVerdict",),
    "loader": ("LoaderScene", "judge_loader"),
    "mechanism": ("Scene", "judge_scene"),
    "symmetry": ("SymmetryTest", "asymmetry", "symmetry_test"),
}
"""Where each public name is, by module. Contract: these names stay importable from here."""

__getattr__, __dir__ = lazy_names(__name__, HOMES, extra="torch")
