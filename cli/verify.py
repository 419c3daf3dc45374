"""``privproj verify``: a certificate, a ledger or a statement checked from its own words; a statement by its files."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from privproj.contrib.certify.certificate import Certificate, CertificateVerdict, read_certificate, verify
from privproj.contrib.statement import statement as statements
from privproj.contrib.statement.statement import DIGESTS, AgreementVerdict, StatementVerdict
from privproj.errors import InvalidParameter, Unanswered
from privproj.io.files import LARGEST_FILE, Verdict, digest_of, read_bounded
from privproj.io.ledger import LARGEST_LEDGER, LedgerVerdict, planned_releases, verify_ledger
from privproj.io.run_file import listed, what_was_run
from privproj.result import Result, round_outward

from . import render
from .ledger import overview, planned_delta
from .options import command_with, file_argument, json_option, option
from .output import write
from .report import written

NO_KEY = (
    "that the run was this one: the hashes of a ledger have no key, so whoever has the file can write another run's "
    "ledger, or cut whole lines off its end"
)
NOT_THE_PROGRAM = "that a program did what the assumptions say"
NOT_THE_CHECKPOINT = "that the checkpoint came from this run: a digest says which file is meant, not how it was made"
NOT_GIVEN = "that the {name} is the one whose SHA-256 the statement names, since it was not given"
UNPROVED = [NO_KEY, NOT_THE_PROGRAM]
"""What no check of a ledger can show."""
MISSING = (
    "{missing} of {planned} planned releases are not in the ledger: the run was stopped, still goes on, or whole lines "
    "were cut off the end of the file, and nothing in it can show which"
)
"""What is said first of a ledger that ends before its plan does."""

Rendered = tuple[dict[str, Any], str]
"""A verdict as plain values, and as text."""


@command_with(
    "verify",
    file_argument(nargs=-1, metavar="FILE [LEDGER [CHECKPOINT]]"),
    option("--delta", "Of a ledger: failure probability delta.  [default: the ledger's]", metavar="D"),
    json_option(),
)
def command(file: tuple[str, ...], delta: float | None, json: bool) -> int:
    """Checks a certificate, a ledger or a privacy statement, or a statement against its ledger and checkpoint.

    What the file is, is seen from what it says. Nothing in it is taken on trust but the parameters: the rest is
    computed anew and compared, and a word that could not be checked is refused or fails. Exit code 1 if any claim
    fails, 2 if the file is malformed.

    A certificate (--certificate): the enclosure is proved anew, that of one release at a higher precision. Where it
    could not be, the verdict is "not proved", which does not say that it is false. Bound, status and promises are
    printed as the tool says them of the question in the file.

    A ledger (of `privproj train`): every line as privproj writes it and chained to those before it, the targets it
    names. The chain has no key: whoever has the file can write another run's ledger, or cut lines off its end. Where
    planned releases are missing, the file is consistent as far as it goes (exit code 0), and the verdict says how far
    that is.

    A statement (`privproj report`), also within a larger file: written anew from the parameters at its end. What
    stands outside of its first and last line is not covered.

    A statement and a ledger, in either order: both checked, and whether the statement is about the ledger's run,
    counts its releases, claims no less epsilon than they cost, and names all that this rests on. Where it names the
    SHA-256 of the ledger, the ledger has to be that file. A third file is the checkpoint, whose SHA-256 the statement
    has to name.

    \b
    Examples:
      privproj verify proof.json
      privproj verify statement.md ledger.jsonl
      privproj verify statement.md ledger.jsonl checkpoint.pt
    """
    try:
        record, words = verdict_on(file, delta)
    except Unanswered as error:
        error.result = {"verdict": error.outcome, "claim": None, "claims": {}, "reason": str(error)}
        raise
    write(render.as_json(record) if json else words)
    return 0 if all(record["claims"].values()) else 1


def verdict_on(files: tuple[str, ...], delta: float | None) -> Rendered:
    """Check a document, or a statement and its ledger, whichever comes first, also by the file of a checkpoint."""
    if len(files) > 3:
        raise InvalidParameter("FILE", f"{len(files)} files", "one file, or a statement, its ledger and a checkpoint")
    documents = {kind: (content, file) for kind, content, file in map(read_document, files[:2])}
    if len(files) > 1 and {*documents} != {"ledger", "statement"}:
        raise InvalidParameter("FILE", ", ".join(files), "one file, or a privacy statement and the ledger of its run")
    if delta is not None and {*documents} != {"ledger"}:
        raise InvalidParameter("--delta", delta, "no --delta, which is for a ledger alone")
    if "certificate" in documents:
        certificate = read_certificate(*documents["certificate"])
        return render_certificate(certificate, verify(certificate))
    if "statement" not in documents:
        return render_ledger(verify_ledger(*documents["ledger"]), delta)
    statement = statements.verify_statement(*documents["statement"], written)
    if "ledger" not in documents:
        return render_statement(statement)
    hashes = (sha256(documents["ledger"][0]).hexdigest(), *map(digest_of, files[2:]))
    digests: dict[str, str] = dict(zip(DIGESTS, hashes, strict=False))
    ledger = verify_ledger(*documents["ledger"])
    return render_agreement(statements.compare_with_ledger(statement, ledger, digests), digests)


def read_document(file: str) -> tuple[str, bytes, str]:
    """See what kind of document a file is by how it begins or ends; with it come its bytes and its name.

    It is of bounded size, or standard input for ``-``; only a ledger may be long.
    """
    content = read_bounded(file, most=LARGEST_LEDGER)
    if content.startswith(b'{"ledger"'):
        return "ledger", content, file
    if len(content) > LARGEST_FILE:
        raise InvalidParameter("FILE", file, f"a file of at most {LARGEST_FILE} bytes, unless it is a ledger")
    begins = tuple(line.encode() for line in (*statements.BEGIN.values(), statements.PARAMETERS))
    if any(line.startswith(begins) for line in content.split(b"\n")):
        return "statement", content, file
    if content.lstrip().startswith(b"{"):
        return "certificate", content, file
    expected = "a certificate, a ledger, or a privacy statement with its parameters, as privproj writes them"
    raise InvalidParameter("FILE", file, expected)


def render_verdict(
    verdict: Verdict, kind: str, what: str, record: dict[str, Any], parts: dict[str, Any], *more: str
) -> Rendered:
    """Return a verdict: as text a headline, sentences under their labels, more, and all claims.

    Where a part says nothing, the record has its words, under the name of the label.
    """
    sentences = {label: record[label] if words is None else words for label, words in parts.items()}
    lines = render.wrap_line("FAILS: " if verdict.word == "fails" else f"{verdict.word}: ", what)
    lines += [*render.labelled(sentences), *more]
    for sentence, holds in verdict.claims.items():
        lines += render.wrap_line(f"  {'yes' if holds else 'NO':<10}", sentence)
    return {"verdict": verdict.word, "kind": kind, "claims": verdict.claims, **record}, "\n".join(lines)


def unproved_of_files(verdict: StatementVerdict, names: Iterable[str]) -> list[str]:
    """Say what digests cannot show: that a checkpoint came from the run, and anything of files that are not there."""
    author_words = verdict.statement.author_words
    absent = [NOT_GIVEN.format(name=name) for name in DIGESTS if name in author_words and name not in names]
    return [*absent, *([NOT_THE_CHECKPOINT] if "checkpoint" in author_words else [])]


def missing_words(verdict: Verdict, planned: int) -> list[str]:
    """Say what no check of a ledger can show of the releases that are missing, if any are."""
    return [MISSING.format(missing=verdict.missing, planned=planned)] if verdict.missing else []


def render_ledger(verdict: LedgerVerdict, delta: float | None) -> Rendered:
    """Return what was found of a ledger."""
    account = verdict.account.renumbered
    summary, target = overview(account, planned_delta(account, delta)), dict(account.target or {})
    gap = missing_words(verdict, account.planned.spent)
    record = {
        "missing_releases": verdict.missing,
        "unproved": [*gap, *UNPROVED],
        "claim": ledger_claim(summary, verdict.missing),
        "target": target or None,
        **summary,
    }
    phases = {
        f"phase {i + 1}": f"{steps} of {planned_releases(entry)} releases; planned: {listed(entry, 'name')}"
        for i, (entry, steps) in enumerate(account.phases)
    }
    parts = {"missing": gap, "unproved": UNPROVED, "claim": None, **phases, "target": listed(target), "quote": None}
    parts |= {"promise": summary["planned"].promises, "assumes": None, "warning": summary["warnings"]}
    what = f"a ledger, {summary['steps']} of {summary['steps_planned']} planned releases"
    return render_verdict(verdict, "ledger", what, record, parts)


def ledger_claim(summary: dict[str, Any], missing: int) -> str:
    """Say the epsilon of the plan first and, where releases are missing, that of those that are there."""
    planned, steps = summary["planned"], summary["steps"]
    extent = f"after {steps} releases"
    if missing:
        here = f"; {round_outward(summary['epsilon'])} after the {steps} that are here" if steps else ""
        extent = f"after the whole plan{here}"
    number = f"epsilon is at most {round_outward(planned.value)} at delta {summary['delta']!r}"
    return f"{number} {extent}; {planned.bound}; relation {unit_words(planned)}"


def unit_words(result: Result, more: str = "") -> str:
    """Say the relation of a number, and what that protects."""
    relation = str(result.run["relation"])
    return f"{relation} ({statements.UNITS[relation]}{more})"


def render_statement(verdict: StatementVerdict) -> Rendered:
    """Return what was found of a statement: what it claims, and what was computed anew."""
    result = verdict.statement.result
    phases, name = result.mechanism.get("phases"), result.mechanism["name"]
    what = f"a run of {len(phases)} phases" if isinstance(phases, list) else f"{render.run_words(result.run)} by {name}"
    about = f"{what}, relation {unit_words(result)}"
    claimed = "; ".join(verdict.claimed[:3]) or "no epsilon that can be read"
    record = {
        "claim": f"{about}: {claimed}",
        "claimed": list(verdict.claimed),
        "found": statements.claim_of(verdict.statement),
        "unproved": [NOT_THE_PROGRAM, *unproved_of_files(verdict, ())],
        "first_line": verdict.first,
        "last_line": verdict.last,
        "lines_outside": verdict.outside,
        "differences": [*verdict.differences],
        "assumes": [*result.assumes, *statements.assumed_of_persons(result)],
        "result": result,
    }
    parts = {"about": about, "claimed": f"{claimed}, in the words of the file"}
    parts |= {"found": f"{record['found']}, computed anew from its parameters", "promise": result.promises}
    parts |= {"assumes": None, "warning": result.warnings, "unproved": None}
    what = f"a privacy statement in {verdict.statement.style}"
    return render_verdict(verdict, "statement", what, record, parts, *checked_lines(verdict))


def checked_lines(verdict: StatementVerdict) -> list[str]:
    """Say which lines of a file were checked, and the first that differ."""
    outside = ", which is the whole file"
    if verdict.outside:
        outside = f"; what the other {verdict.outside} lines of the file say is not covered"
    lines = [f"  checked:  lines {verdict.first} to {verdict.last}{outside}"]
    for one in verdict.differences[:3]:
        lines.append(f"  line {one['number']} says   {ascii(one['said'])[:300]}")
        lines.append(f"  expected{'':<{len(str(one['number'])) + 4}}{ascii(one['expected'])[:300]}")
    if len(verdict.differences) > 3:
        lines.append(f"  and {len(verdict.differences) - 3} lines more")
    return lines


def render_agreement(verdict: AgreementVerdict, names: Iterable[str]) -> Rendered:
    """Return what was found of a statement and a ledger together, with each alone."""
    spent, stated = verdict.ledger.account.spent, verdict.statement.statement.result
    statement, ledger = render_statement(verdict.statement)[0], render_ledger(verdict.ledger, stated.delta)[0]
    gap = missing_words(verdict, verdict.planned)
    unproved = [*UNPROVED, *unproved_of_files(verdict.statement, names)]
    here = "nothing" if ledger["so_far"] is None else f"epsilon is at most {round_outward(ledger['epsilon'])}"
    record = {
        "missing_releases": verdict.missing,
        "steps": spent,
        "steps_planned": verdict.planned,
        "unproved": [*gap, *unproved],
        "claim": statement["claim"],
        "found": f"{here} at delta {stated.delta!r} for the {spent} releases of the ledger",
        "differences": list(verdict.differences),
        "assumes": list(dict.fromkeys((*statement["assumes"], *ledger["assumes"]))),
        "statement": statement,
        "ledger": ledger,
    }
    alone = " (named by the ledger alone)"
    assumed = [words + alone * (words not in statement["assumes"]) for words in record["assumes"]]
    parts = {"missing": gap, "unproved": unproved, "claimed": record["claim"], "found": None}
    parts |= {"differs": verdict.differences[:9], "promise": stated.promises}
    parts |= {"assumes": assumed, "warning": ledger["warnings"]}
    what = f"a statement and its ledger, {spent} of {verdict.planned} planned releases"
    return render_verdict(verdict, "statement and ledger", what, record, parts)


def render_certificate(claim: Certificate, verdict: CertificateVerdict) -> Rendered:
    """Return what was found of a certificate: the claim, and what it rests on."""
    of = verdict.result
    releases = what_was_run(of)
    what = f"{len(releases)} phases: {'; '.join(releases)}" if len(releases) > 1 else releases[0]
    relation = unit_words(of, f"; group size {of.run['group_size']}")
    record = {
        "claim": f"{what}, relation {relation}: delta at epsilon {claim.epsilon!r} is at most {claim.upper}",
        "lower": verdict.lower,
        "upper": verdict.upper,
        "result": of,
        **claim.record,
    }
    parts = {
        "bound": f"{of.bound} at epsilon {claim.epsilon!r} ({of.side}, {of.status})",
        "source": of.source,
        "relation": relation,
        "promise": of.promises,
        **render.closing(of),
        "target": listed(claim.target),
        "claimed": f"{claim.lower} <= delta <= {claim.upper}",
        "found": f"{verdict.lower} <= delta <= {verdict.upper}",
    }
    return render_verdict(verdict, "certificate", what, record, parts)


COMMANDS = {"verify": command}
