"""Write and check privacy statements of runs.

A privacy statement explains the guarantee of a run, its assumptions and its limits to readers who are not experts. One
line of JSON contains its parameters: a delta, a style (:data:`STYLES`), the author's unchecked entries and the phases
of the run. A check recomputes the statement from these parameters, and compares it line by line. All numbers about
attackers are upper bounds for the best attack (C30: attack risks).

A statement can be checked against a ledger (the list of releases of a run). The ledger must have the run of the
statement, or the first part of that run. The claimed epsilon must be at least the epsilon of the releases in the
ledger. The delta, the assumptions and the digests of files are compared as well.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Context, Decimal
from importlib.resources import files
from itertools import product, zip_longest
from string import Template
from typing import Any

from privproj.accounting import config as spec
from privproj.accounting.comparison import compare
from privproj.accounting.phase import Phase
from privproj.accounting.query import composition_of, solve_epsilon
from privproj.accounting.schedule import Composition
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, within
from privproj.io.files import Verdict, read_json, read_table, text_matching
from privproj.io.ledger import CUT_SHORT, INSECURE, MARKS, Account, LedgerVerdict, planned_releases
from privproj.io.run_file import from_data, listed, releases_text, without_names
from privproj.numerics.interval import next_up
from privproj.parameters import NUMBER, TABLE, TRUTH, Kind, Parameter, quoted
from privproj.profiles.privacy_profile import Curve
from privproj.profiles.tradeoff import advantage, true_positive_rates
from privproj.result import Outcome, Result, round_outward
from privproj.sampling import NeighboringRelation
from privproj.targets import delta_target
from privproj.version import __version__

# the sections of a statement, and the texts of their fields
TEXTS: dict[str, Any] = tomllib.loads(
    files("privproj.contrib.statement").joinpath("statement.toml").read_text(encoding="utf-8")
)

RATES = (0.001, 0.01)  # false positive rates at which a statement bounds an attacker's success

# a line that looks the same in text, Markdown and HTML, and cannot be confused with the claim
PLAIN = r"(?i)(?!.*epsilon)(?=.{1,200}\Z)[\w.,:;@+/()'=-]+(?: [\w.,:;@+/()'=-]+)*"


def _is_day(text: object) -> bool:
    """Return whether a text is a valid date of the form YYYY-MM-DD."""
    try:
        return isinstance(text, str) and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


DIGEST = text_matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")
LINE = text_matching(PLAIN, "at most 200 letters, digits, single spaces and .,:;@+/()'=-, without the word epsilon")
DAY = Kind("a day such as 2026-01-31", _is_day, {})
# the entries that the author of a statement may add, in the order of the text
AUTHOR_ENTRIES = {
    "date": Parameter(DAY, "Date of the statement. privproj does not check it.", "YYYY-MM-DD", is_rare=True),
    "author": Parameter(LINE, "Author of the statement. privproj does not check it.", "TEXT"),
    "model": Parameter(LINE, "Name and version of the released model. privproj does not check them.", "TEXT"),
    "data": Parameter(LINE, "Name of the training dataset. privproj does not check it.", "TEXT", is_rare=True),
    "versions": Parameter(LINE, "Version of the training software. privproj does not check it.", "TEXT", is_rare=True),
    "ledger": Parameter(DIGEST, "Ledger file. The statement contains its SHA-256.", "FILE", is_rare=True),
    "checkpoint": Parameter(DIGEST, "Checkpoint file. The statement contains its SHA-256.", "FILE", is_rare=True),
}

DIGESTS = ("ledger", "checkpoint")  # files whose SHA-256 a statement may state


@dataclass(frozen=True)
class Section:
    """A section of a privacy statement.

    If ``items``, the lines form a bulleted list; otherwise they are sentences.
    """

    title: str
    lines: tuple[str, ...]
    items: bool = False


STYLES = ("text", "markdown", "html")  # styles of a statement

FILLED = Kind("a table that is not empty", lambda value: isinstance(value, dict) and bool(value), {})
# the parameters of every statement, after the version of privproj that wrote it
HEAD = {
    "style": Kind(f"one of the styles {', '.join(STYLES)}", lambda style: style in STYLES, {}),
    "delta": NUMBER,
}

STATED = (*MARKS, "alone")  # Boolean fields of the data of an account

PARAMETERS = '{"privproj": '  # beginning of the line with the parameters


@dataclass(frozen=True)
class Statement:
    """A privacy statement with its computed numbers.

    Attributes:
        result: The result whose epsilon the statement claims.
        rates: Upper bounds on the true positive rate of an attack at the false positive rates :data:`RATES`.
        advantage: An upper bound on the advantage of an attack.
        account: Each phase with the number of releases that the statement counts.
        line: The parameters as one line of JSON.
        author_entries: The author's unchecked entries by name.
        factor: A factor of all computed numbers; in a check, it differs slightly from 1 to allow for rounding.
    """

    result: Result
    curve: Curve
    rates: tuple[float, ...]
    advantage: float
    others: tuple[Result, ...]
    account: Account
    style: str
    line: str
    author_entries: Mapping[str, str] = field(default_factory=dict)
    factor: float = 1.0

    @property
    def epsilon(self) -> float:
        """The claimed epsilon times :attr:`factor`."""
        return self.factor * (self.result.epsilon or 0.0)

    def share(self, computed: float) -> float:
        """Return a probability times :attr:`factor`, at most 1."""
        return min(1.0, self.factor * computed)


def run_data(schedule: Composition) -> dict[str, Any]:
    """Return a run as parameters of a privacy statement, without names of phases."""
    data: dict[str, Any] = schedule.as_dict()
    # Phases are numbered in the text, because their names cannot be checked.
    return {"run": {**data, "phase": without_names(data["phase"])}}


def query_data(phase: Phase) -> dict[str, Any]:
    """Return a run of one phase as parameters of a privacy statement."""
    return run_data(Composition((phase.with_run(discretization=None),), phase.run.discretization))


def account_data(account: Account) -> dict[str, Any]:
    """Return a training run and its numbers of releases as parameters of a statement."""
    entries, made = zip(*account.phases, strict=True)
    ledger = {"made": [*made], **{mark: getattr(account, mark) for mark in STATED}, "notes": [*account.notes]}
    target = dict(account.target or {}) if account.is_adaptive else {}
    return {"run": {"phase": without_names(entries)}, "ledger": {**ledger, "filter": target}}


def _account_from(phases: list[dict[str, Any]], data: Any) -> Account:
    """Return the phases of a privacy statement with their numbers of releases.

    ``data`` is the value of the key ``ledger`` in the result of :func:`account_data`.

    Raises:
        InvalidParameterError: A key or a value is not one that privproj writes.
    """
    counts, types = f"{len(phases)} whole numbers of releases, one for each phase", [int] * len(phases)
    kinds = {
        "made": Kind(
            counts, lambda made: isinstance(made, list) and [*map(type, made)] == types and min(made) >= 0, {}
        ),
        **dict.fromkeys(STATED, TRUTH),
        "notes": Kind("notes that privproj writes", lambda notes: notes in ([], [CUT_SHORT]), {}),
        "filter": TABLE,
    }
    with within("statement"):
        fields = read_table("ledger", data, kinds)
    target, notes = fields.pop("filter") or None, tuple(fields.pop("notes"))
    Account().check_target(target, "statement")
    return Account(tuple(zip(phases, fields.pop("made"), strict=True)), target, notes=notes, **fields)


def statement_from(
    data: Mapping[str, Any], delta: float, style: str, author_entries: Mapping[str, Any] | None = None
) -> Statement:
    """Compute the numbers of a privacy statement, and return the statement.

    ``data`` is the run, as :func:`query_data`, :func:`run_data` or :func:`account_data` returns it. Epsilon is claimed
    at ``delta``.

    Raises:
        InvalidParameterError: A key is unknown, or a value is out of range.
    """
    spec.check_keys(author_entries or {}, {name: declared.kind for name, declared in AUTHOR_ENTRIES.items()})
    author_entries = author_entries or {}
    entries = {name: author_entries[name] for name in AUTHOR_ENTRIES if name in author_entries}
    canonical = run_data(from_data(data["run"], "statement"))
    phases = canonical["run"]["phase"]
    if "ledger" in data:
        account = _account_from(phases, data["ledger"])
        canonical, result, curve, others = account_data(account), account.epsilon(delta), account.curve(), ()
    else:
        account = Account(tuple((entry, planned_releases(entry)) for entry in phases))
        result, curve, others = _computed(canonical["run"], delta)
    about = {
        "privproj": __version__,
        "style": style,
        "delta": delta,
        **({"said": entries} if entries else {}),
        **canonical,
    }
    attacks = (tuple(true_positive_rates(curve, RATES)), advantage(curve)) if result.usable else ((), 1.0)
    return Statement(result, curve, *attacks, others, account, style, json.dumps(about), entries)


def _computed(run: Mapping[str, Any], delta: float) -> tuple[Result, Curve, tuple[Result, ...]]:
    """Return the epsilon of a run, its privacy curve and the results of other bounds."""
    (entry, *more), shared = run["phase"], {key: value for key, value in run.items() if key != "phase"}
    if more or "event" in entry:
        composition, rows = from_data(run, "statement").by_one_accountant(), ()
    else:
        mechanism, bound, options = spec.mechanism_bound_and_run({**entry, **shared})
        composition, rows = composition_of(mechanism, bound, options), compare(mechanism, delta=delta, **options)
    result = solve_epsilon(composition, delta_target(delta, None))
    answers = [row.result for row in rows if row.result and row.result.value is not None]
    return result, composition.curve(), tuple(other for other in answers if other.bound != result.bound)


# --- the text of a statement --------------------------------------------------------------------------


def sections(statement: Statement) -> list[Section]:
    """Return the sections of a privacy statement; the appendix for experts is last."""
    result = statement.result
    if result.outcome is not Outcome.OK or result.epsilon is None or result.delta is None:
        return [Section("No guarantee", (f"There is no finite epsilon at delta {result.delta!r}: {result.outcome}.",))]
    fields, noise = _fields(statement), "known" if statement.account.insecure else "secret"
    parts = [part for part in TEXTS["section"] if part.get("noise", noise) == noise]
    filled_sections = [Section(part["title"], _fill(part["lines"], fields), part.get("items", False)) for part in parts]
    return [section for section in filled_sections if section.lines]


def _fill(lines: list[str], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return template lines with their placeholders substituted.

    If the value of a placeholder is a tuple, the line is repeated for each item.
    """
    filled = []
    for line in map(Template, lines):
        several = [name for name in line.get_identifiers() if isinstance(fields[name], tuple)]
        values = product(*(fields[name] for name in several))
        filled += [line.substitute(fields, **dict(zip(several, chosen, strict=True))) for chosen in values]
    return tuple(filled)


def _fields(statement: Statement) -> dict[str, Any]:
    """Return the values of the placeholders in the text of a privacy statement."""
    result, texts, advantage_bound = statement.result, statement.author_entries, statement.share(statement.advantage)
    relation, size = NeighboringRelation(str(result.run["relation"])), result.run["group_size"]
    wording = TEXTS["record" if size == 1 else "person"]
    filter_parameters: Any = result.mechanism.get("filter")
    done = releases_text(result)
    done = done if len(done) == 1 else (f"phase {i + 1}: {text}" for i, text in enumerate(done))
    fields: dict[str, Any] = {
        "size": size,
        "change": relation.difference,
        "them": wording["them"],
        "insecure": INSECURE,
    }
    fields |= {name: Template(wording[name]).substitute(fields) for name in ("protected", "unit")}
    return {
        **fields,
        "whether": wording["whether"][str(relation)],
        # (1 + A)/2, the share of right guesses of a test with advantage A at even prior odds
        "right": _percent_rounded_up(min(1.0, next_up(0.5 + 0.5 * advantage_bound))),
        "claim": claim_of(statement),
        "meaning": _meaning_of_epsilon(statement.epsilon, result.delta or 0.0),
        "attacks": tuple(
            map(_best_attack, RATES, map(statement.share, statement.rates), [wording["them"]] * len(RATES))
        ),
        "advantage": _percent_rounded_up(advantage_bound),
        "done": (*done, *((f"a filter fixed in advance: {listed(filter_parameters)}",) if filter_parameters else ())),
        **{name: getattr(result, name) for name in ("bound", "source", "requirements", "warnings")},
        "strength": TEXTS["strength"].get(str(result.status), str(result.status)),
        "data_assumptions": tuple(text for text in result.data_assumptions if text != Requirement.MEASURED_ROUNDING),
        "rounding": tuple(text for text in result.data_assumptions if text == Requirement.MEASURED_ROUNDING),
        "persons": assumed_of_persons(result),
        "said": tuple(f"{'SHA-256 of the ' * (name in DIGESTS)}{name}: {text}" for name, text in texts.items()),
        "missing": (", ".join(name for name in AUTHOR_ENTRIES if name not in texts),)
        * (len(texts) < len(AUTHOR_ENTRIES)),
        "others": tuple(_other_bound(other, statement.factor) for other in statement.others),
    }


def _meaning_of_epsilon(epsilon: float, delta: float) -> str:
    """Explain epsilon and delta in a sentence for readers who are not experts."""
    # Pr[S] <= e^eps Pr'[S] + delta (C1)
    factor = next_up(math.exp(min(epsilon, 700.0)))
    if factor > 1e9:  # the guarantee is nearly trivial
        return TEXTS["meaning"]["nothing"]
    rounded = round_outward(factor) if factor < 1000.0 else f"{float(round_outward(factor)):,.0f}"
    # A smaller delta is not written as a chance of 1 in N.
    chance = f" (1 in {int(1 / Decimal(repr(delta))):,})" if 1e-12 <= delta <= 0.1 else ""
    return Template(TEXTS["meaning"]["factor"]).substitute(factor=rounded, delta=repr(delta), chance=chance)


def _best_attack(rate: float, most: float, them: str) -> str:
    """Return a sentence that bounds the true positive rate of any attack by ``most``.

    ``rate`` is the false positive rate. ``them`` is a noun for the protected records or users.
    """
    # At even prior odds, a record that the attack flags is in the data with odds b/a, where b is the true positive rate
    # and a the false positive rate.
    odds = _rounded_up(most, 1 / Decimal(str(rate)))
    numbers = {"one": f"{1 / rate:.0f}", "rate": f"{100.0 * rate:g}", "most": _percent_rounded_up(most), "odds": odds}
    return Template(TEXTS["attack"]["rate"]).substitute(numbers, them=them)


def _other_bound(other: Result, factor: float) -> str:
    """Return the epsilon by another bound, with its status and assumptions, as text."""
    status_and_assumptions = "; ".join((str(other.status), *other.data_assumptions))
    return f"{round_outward(factor * float(other.value or 0.0))} by the bound {other.bound} ({status_and_assumptions})"


def _rounded_up(share: float, times: Decimal) -> str:
    """Return ``share * times``, rounded up to three significant digits."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).multiply(Decimal(share), times)):.10g}"


def _percent_rounded_up(share: float) -> str:
    """Return a share in percent, rounded up to three significant digits."""
    return f"{_rounded_up(share, Decimal(100))} %"


def claim_of(statement: Statement) -> str:
    """Return the claimed epsilon, rounded up, and delta as text."""
    result = statement.result
    claim = f"epsilon is at most {round_outward(statement.epsilon)}" if result.usable else "no finite epsilon"
    return f"{claim} at delta {result.delta!r}"


def assumed_of_persons(result: Result) -> tuple[str, ...]:
    """Return the requirement of one record per user; empty for a larger group size."""
    return (Requirement.ONE_RECORD_PER_USER,) if result.run["group_size"] == 1 else ()


# --- the check of a statement -------------------------------------------------------------------------

# first line of a statement, by style
BEGIN = {"text": "PRIVACY STATEMENT", "markdown": "## Privacy statement"}

END = "End of the privacy statement."  # last line of a statement in text and Markdown

# soundness: relative difference of a computed number between two machines. A written number is accepted if some value
# within this distance of the recomputed number rounds to it. So it is at least the recomputed bound minus this share.
ROUNDING_RTOL = 1e-6

# the claim that every line is correct
AS_WRITTEN = "every word and number is what privproj writes for these parameters, up to rounding"

# the claim in the text of a statement, ignoring spaces
CLAIM = re.compile(
    r"epsilon is at most [\d.e+-]+ at delta [\d.e+-]*\d|no finite epsilon at delta [\d.e+-]*\d", re.ASCII
)


@dataclass(frozen=True)
class StatementVerdict(Verdict):
    """The verdict on a privacy statement in a file.

    Attributes:
        statement: The recomputed statement.
        first: The line number, from 1, at which the statement begins; ``last`` is where it ends.
        lines: The number of lines of the file.
        claimed: The distinct texts of the file that claim an epsilon and a delta.
        differences: The lines that differ from the recomputed statement. Each has its ``number``, the text in the file
            (``said``) and the ``expected`` text.
    """

    statement: Statement
    first: int
    last: int
    lines: int
    claimed: tuple[str, ...]
    differences: tuple[dict[str, Any], ...]

    @property
    def outside(self) -> int:
        """The number of lines of the file that are not part of the statement."""
        return self.lines - (self.last - self.first + 1)


def verify_statement(content: bytes, path: str, write: Callable[[Statement], str]) -> StatementVerdict:
    """Check the privacy statement in a file, and return the verdict.

    ``write`` renders a statement as text, and ``path`` names the file in messages.

    Raises:
        InvalidParameterError: The content is not UTF-8 text with exactly one statement and its parameters.
    """
    try:
        lines = content.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        raise InvalidParameterError("FILE", path, "a UTF-8 text file") from None
    lines = lines[:-1] if not lines[-1] else lines
    places = [i for i, line in enumerate(lines) if line.startswith(PARAMETERS)]
    if len(places) != 1:
        expected = "one privacy statement that ends with its parameters"
        raise InvalidParameterError("FILE", path, expected, f"the file has {len(places)} lines of parameters")
    parameters = _parameters(lines[places[0]], path)
    style = parameters.pop("style")
    # In a larger text, only the statement is checked. An HTML page must contain nothing else, because a style or a
    # script elsewhere could change its appearance.
    first, last = (0, len(lines) - 1) if style == "html" else _marked(lines, places[0], style, path)
    statement = statement_from(parameters, parameters.pop("delta"), style, parameters.pop("said", None))
    # Render the statement with every computed number slightly smaller and larger, because rounding on another machine
    # may change last digits.
    ways = [write(replace(statement, factor=by)).split("\n") for by in (1.0, 1.0 - ROUNDING_RTOL, 1.0 + ROUNDING_RTOL)]
    differences = tuple(
        {"number": number, "said": actual or "", "expected": options[0] or ""}
        for number, (actual, *options) in enumerate(zip_longest(lines[first : last + 1], *ways), first + 1)
        if None in options or actual not in options
    )
    claimed = tuple(dict.fromkeys(CLAIM.findall(" ".join(" ".join(lines[first : last + 1]).split()))))
    return StatementVerdict(
        {AS_WRITTEN: not differences}, statement, first + 1, last + 1, len(lines), claimed, differences
    )


def _parameters(line: str, path: str) -> dict[str, Any]:
    """Return the parameters of a privacy statement from their line of JSON.

    Raises:
        InvalidParameterError: The line is not valid, or another version of privproj wrote it.
    """
    fields = read_json(line, "FILE", path, "parameters as `privproj report` writes them")
    # Another version may write other numbers, texts and keys.
    if (version := fields.pop("privproj")) != __version__:
        remedy = f"version {quoted(version)} wrote this statement: verify it with that version, or write it again"
        raise InvalidParameterError("FILE", path, f"a privacy statement written by privproj {__version__}", remedy)
    with within(path):
        return read_table("parameters", fields, HEAD | dict.fromkeys(["run", *{"said", "ledger"} & {*fields}], FILLED))


def _marked(lines: list[str], place: int, style: str, path: str) -> tuple[int, int]:
    """Return the indices of the first and the last line of a statement in a file.

    ``place`` is the index of the line with the parameters.
    """
    begins = [i for i, line in enumerate(lines) if line == BEGIN[style]]
    ends = [i for i, line in enumerate(lines) if line == END]
    if len(begins) != 1 or len(ends) != 1 or not begins[0] < place < ends[0]:
        expected = f"a statement with one line {BEGIN[style]!r} before the parameters and one line {END!r} after them"
        raise InvalidParameterError("FILE", path, expected)
    return begins[0], ends[0]


# --- a statement and the ledger of its run ------------------------------------------------------------

STATEMENT_HOLDS = "the statement alone holds"  # claim: the check of the statement alone holds

LEDGER_HOLDS = "the ledger alone is as privproj writes it"  # claim: the check of the ledger alone holds

# claim: the ledger is about the run of the statement, with the phases in the same order; names of phases may differ
SAME_RUN = "each phase of the ledger agrees with the statement: mechanism, bound, noise, plan, sampling, relation"

COUNTED = "the statement counts every release of the ledger"  # claim: no phase released more than the statement counts

# claim: the epsilon of the statement covers the releases, by the accounting of the ledger
COVERED = "the claimed epsilon is at least the epsilon of the ledger's releases, at the claimed delta"

# claim: the statement is about the target of the run
SAME_DELTA = "the statement's delta is at most that of the ledger's target"

# claim: the statement omits no assumption of the number, except :data:`OF_THE_LEDGER`
SAME_FOUNDATION = "the statement names the assumptions and requirements of the number of the ledger"

# claim about each file that is given and that the statement identifies
SAME_FILE = "the {name} is the file whose SHA-256 the statement names"

# Requirements of a ledger that a statement may omit. A statement about a plan has the rate and the steps as constants,
# so it does not need a public dataset size. It is about one plan only, so it does not need to exclude other ledgers.
OF_THE_LEDGER = (Requirement.PUBLIC_DATASET_SIZE, Requirement.ONLY_THIS_LEDGER)

# keys of a phase that do not describe its releases: its name, an assumption, and whether it is planned
NOT_COMPARED = ("name", "public_size", "planned")


@dataclass(frozen=True)
class AgreementVerdict(Verdict):
    """The verdict on whether a privacy statement agrees with a ledger.

    ``differences`` are texts about differences between the run in the ledger and the run in the statement.
    """

    statement: StatementVerdict
    ledger: LedgerVerdict
    differences: tuple[str, ...]

    @property
    def planned(self) -> int:
        """The planned number of releases: the maximum over the ledger and the statement."""
        return max(self.ledger.account.planned.spent, self.statement.statement.account.spent)

    @property
    def missing(self) -> int:
        """The number of planned releases that are not in the ledger."""
        return self.planned - self.ledger.account.spent


def compare_with_ledger(
    statement: StatementVerdict, ledger: LedgerVerdict, digests: Mapping[str, str] | None = None
) -> AgreementVerdict:
    """Compare a checked privacy statement with a checked ledger; return the verdict.

    ``digests`` are SHA-256 digests of files that the user passed, by the names "ledger" and "checkpoint".
    """
    stated, account = statement.statement.account, ledger.account
    differences = tuple(_differences(account, stated))
    claimed = statement.statement.result
    target = account.target or {}
    made, counted = _made(account), _made(stated)
    fewer = all(ours <= theirs for (_, ours), (_, theirs) in zip(made, counted, strict=False))
    claims = {
        STATEMENT_HOLDS: statement.holds,
        LEDGER_HOLDS: ledger.holds,
        SAME_RUN: not differences,
        COUNTED: len(made) <= len(counted) and fewer,
    }
    if account.spent and claimed.usable:
        # epsilon of the ledger <= epsilon of the statement, up to the rounding of numbers that are computed twice.
        of_ledger = account.epsilon(float(claimed.delta or 0.0))
        most = float(claimed.value or 0.0) * (1 + ROUNDING_RTOL)
        claims[COVERED] = of_ledger.usable and float(of_ledger.value or 0.0) <= most
        stated_assumptions = {*claimed.data_assumptions, *claimed.requirements, *OF_THE_LEDGER}
        claims[SAME_FOUNDATION] = {*of_ledger.data_assumptions, *of_ledger.requirements} <= stated_assumptions
    if "delta" in target:
        claims[SAME_DELTA] = float(claimed.delta or 0.0) <= float(target["delta"])
    named = statement.statement.author_entries
    for name, digest in (digests or {}).items():
        # A statement about a plan does not state the digest of a ledger.
        if name in named or name != "ledger":
            claims[SAME_FILE.format(name=name)] = named.get(name) == digest
    return AgreementVerdict(claims, statement, ledger, differences)


def _made(account: Account) -> list[tuple[dict[str, Any], int]]:
    """Return each phase with at least one release, and its number of releases."""
    return [(json.loads(json.dumps(entry)), made) for entry, made in account.phases if made]


def _differences(account: Account, stated: Account) -> Iterator[str]:
    """Yield texts about differences between the runs of a ledger and of a statement."""
    filters = [dict(one.target or {}) if one.is_adaptive else None for one in (account, stated)]
    if filters[0] != filters[1]:
        yield f"filter: {filters[0]} in the ledger, {filters[1]} in the statement"
    counted = _made(stated)
    for i, (entry, _) in enumerate(_made(account)):
        other = counted[i][0] if i < len(counted) else {}
        for key in dict.fromkeys((*entry, *other)):
            ours, theirs = (one.get(key, "nothing") for one in (entry, other))
            # The dataset size may be omitted, except for truncated batches, whose parameters always include it.
            is_left_out = key == "dataset_size" and "nothing" in (ours, theirs)
            if ours != theirs and key not in NOT_COMPARED and not is_left_out:
                yield f"phase {i + 1}: {key} {ours} in the ledger, {theirs} in the statement"
