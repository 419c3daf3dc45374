"""``privproj verify``: a certificate, a ledger or a privacy statement checked from its own parameters."""

import stat
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from privproj.errors import InvalidParameter, Unanswered
from privproj.records.certificate import LARGEST_FILE, Certificate, CertificateVerdict, load_certificate, verify
from privproj.records.ledger_check import LedgerVerdict, verify_ledger
from privproj.records.statement import PARAMETERS, UNITS
from privproj.records.statement_check import BEGIN, StatementVerdict, verify_statement
from privproj.result import round_outward
from privproj.runs import Run

from . import render
from .ledger import overview, planned_delta
from .options import option, with_options
from .report import written

SUMMARY = "Checks a certificate, a ledger or a privacy statement from its own words."
HELP = f"""{SUMMARY}

What the file is, is seen from what it says. Nothing in it is taken on trust but the parameters: the rest is computed
anew and compared, and a word that could not be checked is refused or fails. Exit code 1 if any claim fails, 2 if the
file is malformed.

A certificate (--certificate): the enclosure anew, and every other word as the tool says it. Of one release at a higher
precision, and once more by independent code in mpmath; a run is composed again on the grid that the file names.

A ledger (of `privproj train`): every line as privproj writes it and chained to those before it, the targets it names.
The chain has no key: whoever holds the file can write another run's ledger, or cut lines off its end.

A statement (`privproj report`), also within a larger file: written anew from the parameters at its end. What stands
outside of its first and last line is not covered.

\b
Example:
  privproj verify proof.json
"""

LARGEST = 1 << 28
"""Bytes of a file that are read at most: a ledger of some four million releases."""

NO_KEY = (
    "that the run was this one: the hashes of a ledger have no key, so whoever holds the file can write another run's "
    "ledger, or cut whole lines off its end"
)
NOT_THE_PROGRAM = "that a program did what the assumptions say"


def verify_file(file: str, delta: float | None, json: bool) -> int:
    """Check a file and print the verdict; where a claim cannot be computed, JSON says so too."""
    try:
        shown, words = verdict_on(file, read_content(file), delta)
    except Unanswered as error:
        if json:
            click.echo(render.as_json({"verdict": error.outcome, "claim": None, "claims": {}, "reason": str(error)}))
        raise
    click.echo(render.as_json(shown) if json else words)
    return 0 if shown["verdict"] == "holds" else 1


def verdict_on(file: str, content: bytes, delta: float | None) -> tuple[dict[str, Any], str]:
    """See what the file is by its content, and check it; returns the verdict as plain values, and as text."""
    if content.startswith(b'{"ledger"'):
        return ledger_shown(verify_ledger(content, file), delta)
    if delta is not None:
        raise InvalidParameter("--delta", delta, "no --delta, which is for ledgers")
    if has_statement(content):
        try:
            found = verify_statement(content.decode(), file, written)
        except UnicodeDecodeError:
            raise InvalidParameter("FILE", file, "text in UTF-8") from None
        return statement_record(found), statement_text(found)
    if content.lstrip()[:1] != b"{":
        expected = "a certificate, a ledger, or a privacy statement with its parameters, as privproj writes them"
        raise InvalidParameter("FILE", file, expected)
    if len(content) > LARGEST_FILE:
        raise InvalidParameter("FILE", file, f"a certificate of at most {LARGEST_FILE} bytes")
    certificate = load_certificate(file)
    verdict = verify(certificate)
    return record(certificate, verdict), text(certificate, verdict)


def read_content(file: str) -> bytes:
    """Read a file of bounded size, and nothing that is no file."""
    try:
        status = Path(file).stat()
        if not stat.S_ISREG(status.st_mode):
            raise InvalidParameter("FILE", file, "a file, not a folder or a device")
        if status.st_size > LARGEST:
            raise InvalidParameter("FILE", file, f"a file of at most {LARGEST} bytes", f"it has {status.st_size}")
        with Path(file).open("rb") as opened:
            return opened.read(LARGEST)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidParameter):
            raise
        reason = error.strerror if isinstance(error, OSError) else "its name cannot be read"
        raise InvalidParameter("FILE", file, "a readable file", str(reason)) from None


def has_statement(content: bytes) -> bool:
    """Tell whether a line has the parameters or the first words of a statement."""
    begins = tuple(line.encode() for line in BEGIN.values())
    lines = [line.rstrip(b"\r") for line in content.split(b"\n")]
    return any(line.startswith(PARAMETERS.encode()) or line in begins for line in lines)


def claim_lines(claims: dict[str, bool]) -> list[str]:
    """Say of each claim whether it holds."""
    return [f"  {'yes' if found else 'NO '}       {claim}" for claim, found in claims.items()]


def ledger_shown(verdict: LedgerVerdict, delta: float | None) -> tuple[dict[str, Any], str]:
    """Return what was found of a ledger as plain values, and as text."""
    account = verdict.account.numbered
    shown = overview(account, planned_delta(account, delta))
    so_far, planned = shown["so_far"], shown["planned"]
    claim = (
        f"epsilon is at most {round_outward(shown['epsilon'])} at delta {shown['delta']!r} after {shown['steps']} "
        f"releases, {round_outward(planned.value)} after the whole plan; {planned.bound}; relation "
        f"{planned.run['relation']} ({UNITS[planned.run['relation']]})"
    )
    name = "holds" if verdict.holds else "fails"
    lines = [f"{name if verdict.holds else 'FAILS'}: a ledger, {shown['steps']} releases"]
    lines += render.wrap_line("  claim:    ", claim)
    for i, (entry, steps) in enumerate(account.phases):
        parts = (f"{key} {value}" for key, value in entry.items() if key != "name")
        lines += render.wrap_line(f"  {f'phase {i + 1}:':<10}", f"{steps} releases; planned: {', '.join(parts)}")
    target = account.target or {}
    lines += render.wrap_line("  target:   ", ", ".join(f"{key} {value!r}" for key, value in target.items()))
    lines += render.wrap_line("  quote:    ", shown["quote"])
    lines += render.wrap_line("  promise:  ", "; ".join(planned.promises))
    lines += render.wrap_line("  assumes:  ", "; ".join(planned.assumes))
    notes = dict.fromkeys((*(() if so_far is None else so_far.warnings), *planned.warnings))
    lines += [line for words in notes for line in render.wrap_line("  warning:  ", words)]
    lines += claim_lines(verdict.claims) + render.wrap_line("  unproved: ", f"{NO_KEY}; {NOT_THE_PROGRAM}")
    plain = {key: value.as_dict() if hasattr(value, "as_dict") else value for key, value in shown.items()}
    head = {
        "verdict": name,
        "kind": "ledger",
        "claim": claim,
        "claims": verdict.claims,
        "unproved": [NO_KEY, NOT_THE_PROGRAM],
    }
    return {**head, "target": dict(target) or None, **plain, "notes": list(notes)}, "\n".join(lines)


def statement_claim(verdict: StatementVerdict) -> str:
    """Say what a statement claims, in the words and the numbers that were computed anew."""
    result = verdict.statement.result
    run, name = result.run, result.mechanism["name"]
    relation, phases = str(run["relation"]), result.mechanism.get("phases")
    what = f"a run of {len(phases)} phases" if isinstance(phases, list) else f"{render.run_words(run)} by {name}"
    found = f"epsilon is at most {round_outward(result.epsilon or 0.0)}"
    if not result.usable:
        found = f"no guarantee ({result.outcome})"
    return f"{what}, relation {relation} ({UNITS[relation]}): {found} at delta {result.delta!r}"


def statement_record(verdict: StatementVerdict) -> dict[str, Any]:
    """Return what was found of a statement as plain values."""
    return {
        "verdict": "holds" if verdict.holds else "fails",
        "kind": "statement",
        "claim": statement_claim(verdict),
        "claims": verdict.claims,
        "unproved": [NOT_THE_PROGRAM],
        "first_line": verdict.first,
        "last_line": verdict.last,
        "lines_outside": verdict.outside,
        "differences": [asdict(one) for one in verdict.differences],
        "result": verdict.statement.result.as_dict(),
    }


def statement_text(verdict: StatementVerdict) -> str:
    """Say what a statement claims, which lines were checked, what differs, and each part of the verdict."""
    lines = [f"{'holds' if verdict.holds else 'FAILS'}: a privacy statement in {verdict.statement.style}"]
    lines += render.wrap_line("  claim:    ", statement_claim(verdict))
    for label, sentences in (
        ("promise", verdict.statement.result.promises),
        ("warning", verdict.statement.result.warnings),
    ):
        lines += [line for words in sentences for line in render.wrap_line(f"  {label}:  ", words)]
    outside = ", which is the whole file"
    if verdict.outside:
        outside = f"; what the other {verdict.outside} lines of the file say is not covered"
    lines.append(f"  checked:  lines {verdict.first} to {verdict.last}{outside}")
    for one in verdict.differences[:3]:
        lines.append(f"  line {one.number} says   {ascii(one.said)[:300]}")
        lines.append(f"  expected{'':<{len(str(one.number)) + 4}}{ascii(one.expected)[:300]}")
    if len(verdict.differences) > 3:
        lines.append(f"  and {len(verdict.differences) - 3} lines more")
    return "\n".join([*lines, *claim_lines(verdict.claims), f"  unproved: {NOT_THE_PROGRAM}"])


def record(certificate: Certificate, verdict: CertificateVerdict) -> dict[str, object]:
    """Return the verdict, and what it is about, as plain values."""
    return {
        "verdict": word(verdict),
        "kind": "certificate",
        "claim": sentence(certificate),
        **asdict(verdict),
        **certificate.record,
    }


def word(verdict: CertificateVerdict) -> str:
    """Say the verdict in a word."""
    return "holds" if verdict.holds else "fails"


def sentence(certificate: Certificate) -> str:
    """Say what is claimed: of which releases, and about which neighbours."""
    run = certificate.run
    person = "one person has one record" if run["group_size"] == 1 else f"one person has {run['group_size']} records"
    return (
        f"{what_was_run(certificate)}, relation {run['relation']} "
        f"({UNITS[run['relation']]}; {person}): delta at epsilon {certificate.epsilon!r} is at most {certificate.upper}"
    )


def what_was_run(certificate: Certificate) -> str:
    """Say which releases a certificate is about: those of one mechanism, or of each phase."""
    phases = certificate.mechanism.get("phases")
    if phases is None:
        parts = ", ".join(f"{name} {value}" for name, value in certificate.mechanism.items() if name != "name")
        return f"{render.run_words(certificate.run)} by {certificate.mechanism['name']} ({parts})"
    found = []
    for phase in phases:
        own = {name: value for name, value in phase.items() if name not in (*Run().parameters(), "mechanism")}
        parts = ", ".join(f"{name} {value}" for name, value in own.items())
        found.append(f"{render.run_words({**Run().parameters(), **phase})} by {phase['mechanism']} ({parts})")
    return f"{len(phases)} phases: " + "; ".join(found)


def text(certificate: Certificate, verdict: CertificateVerdict) -> str:
    """Say the claim, what was found, and each part of the verdict."""
    run, of = certificate.run, certificate
    lines = render.wrap_line(f"{'holds' if verdict.holds else 'FAILS'}: ", what_was_run(of))
    lines += render.wrap_line(
        "  bound:    ", f"{of.bound} at epsilon {of.epsilon!r} ({of.side}, {of.status}; {of.source})"
    )
    lines += render.wrap_line(
        "  relation: ", f"{run['relation']}: {UNITS[run['relation']]}; group size {run['group_size']}"
    )
    lines += render.wrap_line("  promise:  ", "; ".join(of.promises)) + render.wrap_line(
        "  assumes:  ", "; ".join(of.assumes)
    )
    lines += render.wrap_line("  target:   ", ", ".join(f"{name} {value!r}" for name, value in of.target.items()))
    lines += render.wrap_line("  claimed:  ", f"{of.lower} <= delta <= {of.upper}")
    lines += render.wrap_line("  found:    ", f"{verdict.lower} <= delta <= {verdict.upper}")
    lines += render.wrap_line("  mpmath:   ", verdict.second_opinion)
    lines += [f"  {'yes' if found else 'NO '}       {claim}" for claim, found in verdict.claims.items()]
    return "\n".join(lines)


command = with_options(
    [
        click.Argument(["file"]),
        option("--delta", "Of a ledger: failure probability delta.  [default: the ledger's]", metavar="D"),
        option("--json", "One JSON object instead of text.", is_flag=True),
    ],
    verify_file,
    name="verify",
    help=HELP,
    short_help=SUMMARY,
)
