"""Rows for tables of core tests (:func:`helpers.feature_rows`)."""

from helpers import FORGED

USAGE_ERRORS = {
    "certify --json": (2, "Name epsilon, delta, sigma or run before the options"),
    "certify epsilon --json": (2, "Name a mechanism before the options"),
}
FILE_COMMANDS = {"certify run": None}
SAME_FILES = {"certify run run.toml --delta 1e-5 -o ./run.toml": None}
MISTYPED = {"certify epsilo": "epsilon", "certify epsilon m22": "m2"}
READERS = {"certify": ("certify", "run", "FILE", "--delta", "1e-5")}
WRITERS = {
    "a certificate": ("certify", "epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5", "-o", "out")
}
DOCUMENTS = {"certificate": ("certify", "epsilon", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5", "-o")}
MALFORMED = {b'{"certificate": {}}': None, b'{"certificate"': None, b'{"certificate": ' + b"[" * 100_000: None}
EXTRAS = {"a certificate": ("flint",), "certificate": ("flint",)}
FORGED_FILES = {"a certificate": (("verify", "in.json"), {"certificate": {"bound": FORGED}})}
