"""Rows for tables of core tests (:func:`helpers.feature_rows`)."""

from helpers import FORGED

QUERY = {"mechanism": "gaussian", "noise_multiplier": 3, "delta": 1e-5}
CALL = ("sweep", "in.json", "-o", "out.csv")

FILE_COMMANDS = {"sweep": None}
INCOMPLETE = {"sweep examples/grid.toml": "'-o' / '--output'"}
READERS = {"sweep": ("sweep", "FILE", "-o", "out")}
FORGED_FILES = {
    "a bound of a sweep": (CALL, {**QUERY, "bound": FORGED, "grid": {"steps": [1]}}),
    "an axis of a sweep": (CALL, {**QUERY, "grid": {"bound": ["analytic", FORGED]}}),
    "the name of an axis": (CALL, {**QUERY, "grid": {FORGED: [1]}}),
}
FORGED_ARGUMENTS = {"the table of a sweep": ("sweep", "in.json", "-o", FORGED)}
