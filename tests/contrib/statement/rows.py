"""Rows for tables of core tests (:func:`helpers.feature_rows`)."""

import json

from helpers import FORGED

M2_PHASE = {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": 3}
CALL = ("report", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5")


def statement(stated=None, **phase):
    """Return a statement whose parameters contain these words of its author and these keys of its phase."""
    parameters = {
        "privproj": "0.1.0",
        "style": "text",
        "delta": 1e-05,
        **({"said": stated} if stated else {}),
        "run": {"phase": [{**M2_PHASE, **phase}]},
    }
    return f"PRIVACY STATEMENT\n{json.dumps(parameters)}\nEnd of the privacy statement.\n"


USAGE_ERRORS = {" ".join((*CALL, "-o", "statement.pdf")): (2, ".html")}
FILE_COMMANDS = {"report run": None}
OUTPUT_COMMANDS = {" ".join(CALL): None}
QUERIES = {"report": None}
MISTYPED = {"report m22": "m2"}
READERS = {"report": ("report", "run", "FILE", "--delta", "1e-5")}
DOCUMENTS = {"statement": ("report", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5", "-o")}
MALFORMED = dict.fromkeys(
    [
        b"PRIVACY STATEMENT\n",
        b"## Privacy statement\n\xff",
        b'{"privproj": ',
        b'{"privproj": ' + b"[" * 100_000,
        b"PRIVACY STATEMENT\r\nEnd of the privacy statement.\r\n",
        b'{"privproj": "0.1.0", "style": "text", "delta": 1e-05, "run": {"\x1b[2J": 1}}',
    ]
)
WRITERS = {"a statement": (*CALL, "-o", "out")}
FORGED_FILES = {
    "a phase in a statement": (
        ("report", "run", "in.json", "--delta", "1e-5"),
        {"phase": [{**M2_PHASE, "name": FORGED}]},
    ),
    "a bound of a statement": (("verify", "in.json"), statement(bound=FORGED)),
    "a key of a statement": (("verify", "in.json"), statement(**{FORGED: 1})),
    "a word of a statement's author": (("verify", "in.json"), statement(stated={"model": FORGED})),
}
FORGED_ARGUMENTS = {
    "the author of a statement": (*CALL, "--author", FORGED),
    "the file of a statement": (*CALL, "-o", FORGED),
}
