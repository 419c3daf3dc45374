"""Implement ``privproj verify``, which checks ledgers and other documents."""

import json as json_decoder
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from privproj.errors import InvalidParameterError, QueryError
from privproj.io.files import LARGEST_FILE, Verdict, read_bounded
from privproj.io.ledger import LARGEST_LEDGER, LedgerVerdict, planned_releases, verify_ledger
from privproj.io.run_file import listed
from privproj.plugins import load, plugin_table
from privproj.result import Result, round_outward
from privproj.sampling import NeighboringRelation

from . import render
from .kinds import LEDGER_BEGINS, remedy_for
from .ledger import ledger_named_file, overview, planned_delta
from .options import command_with, file_argument, json_option, option, requirements_option
from .output import write

NO_KEY = "that the file records this run: its hash chain has no key, so it can be rewritten or cut at its end"
NOT_THE_PROGRAM = "that the program met the requirements"
UNPROVED = [NO_KEY, NOT_THE_PROGRAM]  # what no check of a ledger can establish
MISSING = (
    "{missing} of {planned} planned releases are not in the ledger. The run was stopped, is not finished, or lines "
    "were cut off the end of the file. The file cannot show which."
)

Rendered = tuple[dict[str, Any], Callable[[bool], str]]  # a verdict as plain values and as text (True: details)

File = tuple[bytes, str]  # bytes of a file, and its name for messages


@dataclass(frozen=True)
class DocumentKind:
    """A kind of document, other than a ledger, that ``privproj verify`` checks.

    Attributes:
        noun: The kind in messages, such as "a certificate".
        recognizes: A function that takes the bytes of a file, and returns True for a document of this kind.
        verify: A function that takes a document, and returns the verdict.
        verify_with_ledger: A function that takes a document, the ledger of its run and the names of further files, and
            returns the verdict; None if no ledger can be passed with the document.
    """

    noun: str
    recognizes: Callable[[bytes], bool]
    verify: Callable[[File], Rendered]
    verify_with_ledger: Callable[[File, File, tuple[str, ...]], Rendered] | None = None


@command_with(
    "verify",
    file_argument(nargs=-1, metavar="FILE [LEDGER [CHECKPOINT]]"),
    option("--delta", "Delta at which a ledger is checked.  [default: the delta of the ledger's target]", metavar="D"),
    json_option(),
    requirements_option(),
)
def command(file: tuple[str, ...], delta: float | None, json: bool, verbose: bool) -> int:
    """Check a ledger, a certificate or a privacy statement.

    privproj trusts only the parameters in the file. It recomputes everything else and compares. The exit code is 1 if a
    check fails, and 2 if the file is malformed.

    In a ledger, every line must have the form that privproj writes and match the hash chain, and no planned epsilon may
    exceed its target. The chain has no key: anyone with the file can write another run's ledger, or cut lines off its
    end. If planned releases are missing from a consistent file, the exit code is 0, and the verdict states their
    number.

    After a privacy statement, you may pass the ledger and the checkpoint of its training run. privproj then compares
    the three files.

    \b
    Example:
      privproj verify ledger.jsonl
    """
    try:
        record, text = verdict_on(file, delta)
    except QueryError as error:
        error.result = {"verdict": error.outcome, "claim": None, "claims": {}, "reason": str(error)}
        raise
    write(render.as_json(record) if json else text(verbose))
    return 0 if all(record["claims"].values()) else 1


def verdict_on(files: tuple[str, ...], delta: float | None) -> Rendered:
    """Check one document, or a document and the ledger of its run; return the verdict.

    A third file is the checkpoint of the run.
    """
    if len(files) > 3:
        expected = "one file, or a document, the ledger of its run and a checkpoint"
        raise InvalidParameterError("FILE", f"{len(files)} files", expected)
    documents = {kind: (content, file) for kind, content, file in map(read_document, files[:2])}
    ledger = documents.pop("ledger", None)
    kinds = {name: _kind_named(name) for name in documents}
    verify_both = [kind.verify_with_ledger for kind in kinds.values() if kind.verify_with_ledger and ledger]
    if len(files) > 1 and not verify_both:
        raise InvalidParameterError("FILE", ", ".join(files), "one file, or a document and the ledger of its run")
    if delta is not None and documents:
        raise InvalidParameterError("--delta", delta, "omitted unless FILE is a ledger")
    if not documents:
        assert ledger is not None
        with ledger_named_file():
            verdict = verify_ledger(*ledger)
        return render_ledger(verdict, delta)
    ((name, document),) = documents.items()
    return verify_both[0](document, ledger, files[2:]) if ledger else kinds[name].verify(document)


def _kind_named(name: str) -> DocumentKind:
    return load(plugin_table("DOCUMENTS")[name])


def read_document(file: str) -> tuple[str, bytes, str]:
    """Return the kind, the bytes and the name of a document such as a ledger.

    The name ``-`` means standard input. Raises :class:`InvalidParameterError` if the kind is unknown or the file is too
    large.
    """
    content = read_bounded(file, most=LARGEST_LEDGER)
    if content.startswith(LEDGER_BEGINS):
        return "ledger", content, file
    if len(content) > LARGEST_FILE:
        raise InvalidParameterError("FILE", file, f"a file of at most {LARGEST_FILE} bytes, unless it is a ledger")
    kinds = {name: _kind_named(name) for name in plugin_table("DOCUMENTS")}
    for name, kind in kinds.items():
        if kind.recognizes(content):
            return name, content, file
    *nouns, last = ["a ledger", *(kind.noun for kind in kinds.values())]
    remedy = remedy_for(content) or _why_unknown(content)
    raise InvalidParameterError("FILE", file, f"{', '.join(nouns)} or {last}", remedy)


def _why_unknown(content: bytes) -> str:
    """Return the remedy in the error for a file that is not a known document, as text."""
    remedy = "for a training run, verify its ledger.jsonl or statement.md"
    if content.lstrip()[:1] not in (b"{", b"["):
        return remedy
    try:
        json_decoder.loads(content)
    except ValueError as error:
        # Several lines of JSON, as in a ledger, are valid.
        return remedy if str(error).startswith("Extra data") else f"it is not valid JSON: {error}"
    except RecursionError:
        return remedy
    return remedy


def render_verdict(
    verdict: Verdict,
    kind: str,
    what: str,
    record: dict[str, Any],
    parts: dict[str, Any],
    details: dict[str, Any] | None = None,
    more: Iterable[str] = (),
) -> Rendered:
    """Return a verdict as data for JSON, and a function that returns its text.

    Args:
        verdict: The verdict.
        kind: The kind of the document, for JSON.
        what: The name of the document in the first line of the text.
        record: Further data for JSON.
        parts: Lines of the text by label. For None, the line is the entry of ``record`` under the label.
        details: Further lines by label, for ``--verbose``.
        more: Lines after the failed checks.
    """
    failed = [sentence for sentence, holds in verdict.claims.items() if not holds]
    passed = [sentence for sentence, holds in verdict.claims.items() if holds]

    def text(verbose: bool) -> str:
        labels = {**parts, **(details or {})} if verbose else parts
        texts = {label: record[label] if wording is None else wording for label, wording in labels.items()}
        warnings = texts.pop("warnings", ())
        texts["requires"] = render.requirement_lines(texts.get("requires", ()), verbose)
        count = f"{len(passed)} of {len(verdict.claims)} checks passed"
        word = "FAILS" if verdict.word == "fails" else verdict.word
        lines = render.wrap_line(f"{word}: ", f"{what} ({count})")
        lines += render.label_lines({"failed": failed, "passed": passed if verbose else ()})
        return "\n".join([*lines, *more, *render.label_lines(texts), *render.warning_lines(warnings)])

    return {"verdict": verdict.word, "kind": kind, "claims": verdict.claims, **record}, text


def missing_lines(verdict: Verdict, planned: int) -> list[str]:
    """Return a sentence about planned releases that a ledger lacks, if there are any."""
    return [MISSING.format(missing=verdict.missing, planned=planned)] if verdict.missing else []


def render_ledger(verdict: LedgerVerdict, delta: float | None) -> Rendered:
    """Return a ledger verdict as data for JSON, and a function that returns its text."""
    account = verdict.account.renumbered
    summary, target = overview(account, planned_delta(account, delta)), dict(account.target or {})
    gap = missing_lines(verdict, account.planned.spent)
    record = {
        "missing_releases": verdict.missing,
        "unproved": [*gap, *UNPROVED],
        "claim": ledger_claim(summary, verdict.missing),
        "target": target or None,
        **summary,
    }
    details = {
        f"phase {i + 1}": f"{steps} of {planned_releases(entry)} releases; "
        f"planned: {listed(entry, 'name', 'public_size')}"
        for i, (entry, steps) in enumerate(account.phases)
    }
    details["target"] = listed(target)
    parts = {"missing": gap, "assumes": summary["planned"].data_assumptions, "claim": None, "report": None}
    parts |= {"unproved": UNPROVED, "requires": summary["requirements"], "warnings": summary["warnings"]}
    what = f"a ledger, {summary['steps']} of {summary['steps_planned']} planned releases"
    return render_verdict(verdict, "ledger", what, record, parts, details)


def ledger_claim(summary: dict[str, Any], missing: int) -> str:
    """Return the claim of a ledger (epsilon, delta, bound, neighbors) as text.

    If planned releases are missing, the text also states the epsilon of the releases in the ledger.
    """
    planned, steps = summary["planned"], summary["steps"]
    extent = f"after {steps} releases"
    if missing:
        here = f" ({round_outward(summary['epsilon'])} after the {steps} in the ledger)" if steps else ""
        extent = f"after the whole plan{here}"
    number = f"epsilon <= {round_outward(planned.value)} at delta {summary['delta']!r}"
    return f"{number} {extent}, bound {planned.bound}, {render.neighbors_text(planned)}"


def unit_text(result: Result, more: str = "") -> str:
    """Return a neighboring relation as text, with its meaning in parentheses.

    ``more`` is added before the closing parenthesis.
    """
    relation = NeighboringRelation(str(result.run["relation"]))
    return f"{relation} ({relation.difference}{more})"


COMMANDS = {"verify": command}
