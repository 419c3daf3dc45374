"""Rows for tables of core tests (:func:`helpers.feature_rows`)."""

USAGE_ERRORS = {"audit --trials 9": (2, "Name a command before the options")}
MISTYPED = {"audit mechanim": "mechanism", "audit mechanism m3 --noise-multiplier 1": "m2"}
