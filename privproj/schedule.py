"""Several phases with their own mechanisms and runs, composed jointly: the public door to schedules."""

from privproj.accounting.schedule import Composition, Phase, Remaining, dp_sft, phase_of
from privproj.io.run_file import from_data

__all__ = ["Composition", "Phase", "Remaining", "dp_sft", "from_data", "phase_of"]
