"""Provide the public names for runs of several phases.

A phase is a part of a run with its own mechanism, noise multiplier and sampling.
"""

from privproj.accounting.schedule import (
    Composition,
    Phase,
    Remaining,
    calibrate_noise,
    dp_sft,
    more_steps,
    phase_of,
    remaining,
)
from privproj.io.run_file import from_data

__all__ = [
    "Composition",
    "Phase",
    "Remaining",
    "calibrate_noise",
    "dp_sft",
    "from_data",
    "more_steps",
    "phase_of",
    "remaining",
]
