"""``privproj verify``: a certificate checked from its own parameters."""

from dataclasses import asdict

import click

from privproj.records.certificate import Certificate, CertificateVerdict, load_certificate, verify
from privproj.records.statement import UNITS
from privproj.runs import Run

from . import render
from .options import option, with_options

SUMMARY = "Checks a certificate written by --certificate."
HELP = f"""{SUMMARY}

Nothing in the file is taken on trust: the enclosure is computed again at a higher precision, the value once more by
independent code in mpmath, and every other word is compared with what the tool says of these parameters; a word that
could not be checked makes the file malformed. Exit code 1 if any claim fails, 2 if the file is malformed.

\b
Example:
  privproj verify proof.json
"""


def verify_file(file: str, json: bool) -> int:
    certificate = load_certificate(file)
    verdict = verify(certificate)
    click.echo(render.as_json(record(certificate, verdict)) if json else text(certificate, verdict))
    return 0 if verdict.holds else 1


def record(certificate: Certificate, verdict: CertificateVerdict) -> dict[str, object]:
    """Return the verdict, and what it is about, as plain values."""
    return {"verdict": word(verdict), "claim": sentence(certificate), **asdict(verdict), **certificate.record}


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
    [click.Argument(["file"]), option("--json", "One JSON object instead of text.", is_flag=True)],
    verify_file,
    name="verify",
    help=HELP,
    short_help=SUMMARY,
)
