"""Audits: tests that can show a privacy claim false. None of them can show one true."""

from privproj.audit.symmetry import SymmetryTest, asymmetry, symmetry_test

__all__ = ["SymmetryTest", "asymmetry", "symmetry_test"]
