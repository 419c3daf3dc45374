"""Tampered privacy statements: each is rejected or fails, or its statement is still true."""

import json
import re

from unit.io.tampering import DIGITS, Document, edited, tampering_tests

from privproj import Gaussian, Laplace
from privproj.accounting.schedule import phase_of
from privproj.assumptions import Requirement
from privproj.contrib.statement.command import written
from privproj.contrib.statement.statement import account_data, query_data, statement_from
from privproj.io.ledger import Account
from privproj.schedule import from_data

SLACK = 1e-6
"""Relative difference that the rounding of a printed number to four digits is allowed on another machine."""

PHASE = {"name": "dp-sgd", "mechanism": "gaussian", "noise_multiplier": 6.0, "bound": "analytic", "steps": 3}
PHASE |= {"sampling_rate": 1.0, "relation": "add-remove", "public_size": True}


def statement_of(mechanism, style="text", author_entries=None, **run):
    """Return a function that makes the statement about a mechanism at delta 1e-5."""

    def make():
        data = query_data(phase_of(mechanism, **run))
        return written(statement_from(data, 1e-5, style, author_entries=author_entries)) + "\n"

    return make


def statement_of_training():
    """The statement of a training run of one phase."""
    account = Account(((PHASE, 2),))
    return written(statement_from(account_data(account), 1e-5, "markdown")) + "\n"


def assess_statement(text, output):
    """What it says of epsilon, of the unit and of attacks is true for the parameters at its end."""
    found = json.loads(next(line for line in text.split("\n") if line.startswith('{"privproj"')))
    delta = found["delta"]
    phases = found["run"]["phase"]
    if "ledger" in found:
        pairs = list(zip(phases, found["ledger"]["made"], strict=True))
        made = [{**phase, "steps": steps} for phase, steps in pairs if steps]
        result = from_data({"phase": made}).epsilon(delta=delta)
        assert ("given seed" in text) == found["ledger"]["insecure"]
        assert all(sentence in text for sentence in found["ledger"]["notes"])
        assert (Requirement.PUBLIC_SUBSPACE in text) == found["ledger"]["public_subspace"]
        assert ("planned steps" in text) == any(phase["steps"] != steps for phase, steps in pairs if steps)
    else:
        made, result = phases, from_data(found["run"]).epsilon(delta=delta)
    flat = " ".join(text.split())
    stated = re.findall(r"epsilon is at most ([^ ]+) at delta ([^ <]+)\.(?: |<)", flat)
    assert len(stated) == 1 and float(stated[0][1]) == delta
    assert result.value * (1 - SLACK) <= float(stated[0][0]) <= result.value * 1.002
    units = {
        "add-remove": "added to or removed from",
        "replace": "replaced by any other",
        "zero-out": "replaced by zero",
    }
    for relation, sentence in units.items():
        assert (sentence in flat) == (result.run["relation"] == relation)
    for phase in made:
        assert f"{'one' if phase['steps'] == 1 else phase['steps']} release" in flat
        for key in {"noise_multiplier", "dim", "rank"} & {*phase}:
            assert f"{key} {phase[key]}" in flat
    flat = flat.replace("&nbsp;", " ").replace("&#x27;", "'")
    for assumption in (*result.data_assumptions, *result.requirements):
        assert assumption in flat
    attacks = re.findall(r"rate ([\d.]+) % \(one .*? at most ([\d.]+) % of the (?:records|users) inside", flat)
    assert attacks or not result.usable
    for rate, most in attacks:  # no bound may be better than nothing
        assert float(rate) <= float(most) <= 100.0
    output = found.get("said", {})
    assert all(f"{name}: {sentence}" in flat for name, sentence in output.items())
    assert all(re.fullmatch("[0-9a-f]{64}", output.get(name, "0" * 64)) for name in ("ledger", "checkpoint"))


def forge(draw, text):
    """Return the statement with an edit of its parameters."""
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith('{"privproj"'))
    lines[at] = json.dumps(edited(draw, json.loads(lines[at])))
    if draw.random() < 0.3:
        lines[at] = re.sub(r"\d+(\.\d+)?(e-\d+)?", lambda found: draw.choice([found[0], *DIGITS]), lines[at], count=2)
    return "\n".join(lines)


LIES = [(r"epsilon is at most [\d.]+", "epsilon is at most 0.1"), (r"added to or removed from", "added to")]
TEXTS = {"date": "2026-11-25", "model": "net 1", "ledger": 64 * "0"}
MAKERS = {
    "statement of a Gaussian": (statement_of(Gaussian(noise_multiplier=2.0)), 1),
    "statement in Markdown": (statement_of(Laplace(noise_multiplier=2.0), "markdown", TEXTS), 1),
    "statement of a training run": (statement_of_training, 1),
    "statement as a page": (statement_of(Gaussian(noise_multiplier=3.0), "html", steps=2), 2),
}
DOCUMENTS = {name: Document(make, assess_statement, forge, LIES, cost) for name, (make, cost) in MAKERS.items()}

(
    test_accepted_forgeries_are_true,
    test_thousands_of_accepted_forgeries_are_true,
    test_assess_detects_false_statements,
) = tampering_tests(DOCUMENTS)
