"""``privproj verify``: a certificate checked from its own parameters."""

from dataclasses import asdict

import click

from privproj.certificate import Certificate, Verdict, load, verify

from . import render
from .options import option, with_options

SUMMARY = "Checks a certificate written by --certificate."
HELP = f"""{SUMMARY}

Nothing is taken from the file but the parameters: the enclosure is computed again at a higher precision, and the value
once more by independent code in mpmath. Exit code 1 if any claim fails.

\b
Example:
  privproj verify proof.json
"""


def run(file: str, json: bool) -> int:
    certificate = load(file)
    verdict = verify(certificate)
    click.echo(render.as_json(record(verdict)) if json else text(certificate, verdict))
    return 0 if verdict.holds else 1


def record(verdict: Verdict) -> dict[str, object]:
    """The verdict as plain values."""
    return {"verdict": "holds" if verdict.holds else "fails", **asdict(verdict)}


def text(certificate: Certificate, verdict: Verdict) -> str:
    """The claim, what was found, and each part of it."""
    parts = ", ".join(f"{name} {value}" for name, value in certificate.mechanism.items() if name != "name")
    lines = [f"{'holds' if verdict.holds else 'FAILS'}: {certificate.mechanism['name']} ({parts})"]
    lines += render.wrapped("  bound:    ", f"{certificate.bound} at epsilon {certificate.epsilon:g}")
    lines += render.wrapped("  claimed:  ", f"{certificate.lower} <= delta <= {certificate.upper}")
    lines += render.wrapped("  found:    ", f"{verdict.lower} <= delta <= {verdict.upper}")
    lines += render.wrapped("  mpmath:   ", verdict.second_opinion)
    lines += [f"  {'yes' if found else 'NO '}       {claim}" for claim, found in verdict.claims.items()]
    return "\n".join(lines)


command = with_options(
    [click.Argument(["file"]), option("--json", "One JSON object instead of text.", is_flag=True)],
    run,
    name="verify",
    help=HELP,
    short_help=SUMMARY,
)
