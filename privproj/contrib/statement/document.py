"""Let ``privproj verify`` check privacy statements, alone or against a ledger.

The ledger of a training run is the list of its releases.
"""

from collections.abc import Iterable
from hashlib import sha256

from privproj_cli.ledger import ledger_named_file
from privproj_cli.render import neighbors_text, run_line_of
from privproj_cli.verify import (
    NOT_THE_PROGRAM,
    UNPROVED,
    DocumentKind,
    File,
    Rendered,
    missing_lines,
    render_ledger,
    render_verdict,
)

from privproj.contrib.statement import statement as statements
from privproj.contrib.statement.command import written
from privproj.contrib.statement.statement import DIGESTS, AgreementVerdict, StatementVerdict
from privproj.io.files import sha256_of
from privproj.io.ledger import verify_ledger
from privproj.result import round_outward

NOT_THE_CHECKPOINT = "that this run made the checkpoint: a digest identifies the file, not its origin"
NOT_GIVEN = "that the SHA-256 in the statement is that of the {name}: you did not pass the file"
BEGINNINGS = tuple(line.encode() for line in (*statements.BEGIN.values(), statements.PARAMETERS))


def is_statement(content: bytes) -> bool:
    """Return whether a file appears to contain a privacy statement."""
    return any(line.startswith(BEGINNINGS) for line in content.split(b"\n"))


def verify_document(document: File) -> Rendered:
    """Check a privacy statement alone; return the verdict as JSON data and text."""
    return render_statement(statements.verify_statement(*document, written))


def verify_with_ledger(document: File, ledger: File, others: tuple[str, ...]) -> Rendered:
    """Check a privacy statement against the ledger of its run, and return the verdict.

    ``others`` is empty, or its only item is the path of the checkpoint.
    """
    hashes = (sha256(ledger[0]).hexdigest(), *map(sha256_of, others))
    digests: dict[str, str] = dict(zip(DIGESTS, hashes, strict=False))
    statement = statements.verify_statement(*document, written)
    with ledger_named_file():
        account = verify_ledger(*ledger)
    verdict = statements.compare_with_ledger(statement, account, digests)
    return render_agreement(verdict, digests)


def unproved_of_files(verdict: StatementVerdict, names: Iterable[str]) -> list[str]:
    """Return sentences on what the SHA-256 digests in a statement do not prove.

    ``names`` are the files that the user passed, such as "ledger".
    """
    author_entries = verdict.statement.author_entries
    absent = [NOT_GIVEN.format(name=name) for name in DIGESTS if name in author_entries and name not in names]
    return [*absent, *([NOT_THE_CHECKPOINT] if "checkpoint" in author_entries else [])]


def render_statement(verdict: StatementVerdict) -> Rendered:
    """Return the verdict on a privacy statement as JSON data and text."""
    result = verdict.statement.result
    phases, name = result.mechanism.get("phases"), result.mechanism["name"]
    description = (
        f"a run of {len(phases)} phases" if isinstance(phases, list) else f"{run_line_of(result.run, ())}, by {name}"
    )
    about = f"{description}; {neighbors_text(result)}"
    claimed = "; ".join(verdict.claimed[:3]) or "no readable epsilon"
    record = {
        "claim": f"{about}: {claimed}",
        "claimed": list(verdict.claimed),
        "computed": statements.claim_of(verdict.statement),
        "unproved": [NOT_THE_PROGRAM, *unproved_of_files(verdict, ())],
        "first_line": verdict.first,
        "last_line": verdict.last,
        "lines_outside": verdict.outside,
        "differences": [*verdict.differences],
        "requirements": [*result.requirements, *statements.assumed_of_persons(result)],
        "result": result,
    }
    parts = {
        "assumes": result.data_assumptions,
        "about": about,
        "claimed": f"{claimed} (text of the file)",
        "computed": f"{record['computed']} (from its parameters)",
        "unproved": None,
        "requires": record["requirements"],
        "warnings": result.warnings,
    }
    extent = f"lines {verdict.first} to {verdict.last}, the whole file"
    if verdict.outside:
        extent = f"lines {verdict.first} to {verdict.last}, without the other {verdict.outside} lines of the file"
    description = f"a privacy statement in {verdict.statement.style}, {extent}"
    return render_verdict(verdict, "statement", description, record, parts, more=different_lines(verdict))


def different_lines(verdict: StatementVerdict) -> list[str]:
    """Return up to three differences from the expected statement, as lines of text."""
    lines = []
    for one in verdict.differences[:3]:
        lines.append(f"  line {one['number']}: {ascii(one['said'])[:300]}")
        lines.append(f"  expected: {ascii(one['expected'])[:300]}")
    if len(verdict.differences) > 3:
        lines.append(f"  and {len(verdict.differences) - 3} more lines")
    return lines


def render_agreement(verdict: AgreementVerdict, names: Iterable[str]) -> Rendered:
    """Return the verdict on a privacy statement and a ledger as JSON data and text.

    ``names`` are the files that the user passed, "ledger" and "checkpoint".
    """
    spent, stated = verdict.ledger.account.spent, verdict.statement.statement.result
    statement, ledger = render_statement(verdict.statement)[0], render_ledger(verdict.ledger, stated.delta)[0]
    gap = missing_lines(verdict, verdict.planned)
    unproved = [*UNPROVED, *unproved_of_files(verdict.statement, names)]
    spent_text = "nothing" if ledger["so_far"] is None else f"epsilon is at most {round_outward(ledger['epsilon'])}"
    record = {
        "missing_releases": verdict.missing,
        "steps": spent,
        "steps_planned": verdict.planned,
        "unproved": [*gap, *unproved],
        "claim": statement["claim"],
        "computed": f"{spent_text} at delta {stated.delta!r} for the {spent} releases of the ledger",
        "differences": list(verdict.differences),
        "requirements": list(dict.fromkeys((*statement["requirements"], *ledger["requirements"]))),
        "statement": statement,
        "ledger": ledger,
    }
    parts = {
        "missing": gap,
        "assumes": stated.data_assumptions,
        "claimed": record["claim"],
        "computed": None,
        "differs": verdict.differences[:9],
        "unproved": unproved,
        "requires": record["requirements"],
        "warnings": ledger["warnings"],
    }
    description = f"a statement and its ledger, {spent} of {verdict.planned} planned releases"
    return render_verdict(verdict, "statement and ledger", description, record, parts)


KIND = DocumentKind(
    "a privacy statement that contains its parameters", is_statement, verify_document, verify_with_ledger
)
