"""Compose several phases with different mechanisms and runs: the public module for compositions of phases."""

from privproj.accounting.schedule import Composition, Phase, Remaining, dp_sft, phase_of
from privproj.io.run_file import from_data

__all__ = ["Composition", "Phase", "Remaining", "dp_sft", "from_data", "phase_of"]
