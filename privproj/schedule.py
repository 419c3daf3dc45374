"""Several phases with their own mechanisms and runs, composed jointly: the public door to schedules."""

from privproj.accounting.schedule import Phase, Remaining, Schedule, dp_sft, phase_of
from privproj.contrib.events.events import event_phase
from privproj.io.run_file import from_data

__all__ = ["Phase", "Remaining", "Schedule", "dp_sft", "event_phase", "from_data", "phase_of"]
