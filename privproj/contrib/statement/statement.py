"""A privacy statement in plain words: what was protected, how well, what that rests on, and what is not covered.

A statement is a function of its parameters alone: the phases of a run (a question is a run of one), of a training run
how many releases each made, a delta, a style, and what its author says of it. It ends with them as one line of JSON, so
that whoever has it can have it written anew and compare. Names of phases are free words that nothing could check, so
phases are numbered instead; the author's words stand under a heading that says so.

Its words are those of ``statement.toml``, for a reader who is no expert. What it says of attackers is an upper bound of
what the best one reaches, read from the whole curve and rounded up (C30).

It is checked by writing it anew from the parameters that it ends with, and comparing line by line. Whatever else stands
in it has to be what the tool writes for them. A number may differ by what rounding on another machine can do to its
last digit. The statement may stand within a larger file, such as a model card; then only the lines between its marks
are checked. A page in HTML has to be the statement and nothing else, since a style or a script elsewhere on it could
change what is shown.

A statement and the ledger of a run are compared once each is checked on its own. They agree where the ledger is that of
the statement's run, or of its beginning, and what the statement claims is no less than what the releases of the ledger
cost. A statement of a plan counts all of its releases, that of a training run those made when it was written. Where the
statement names the SHA-256 of a file, that file is the one it is about, byte for byte.
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

WORDS: dict[str, Any] = tomllib.loads(
    files("privproj.contrib.statement").joinpath("statement.toml").read_text(encoding="utf-8")
)
"""The sections of a statement, and the words of their fields."""

RATES = (0.001, 0.01)
"""The false positive rates at which a statement names an attacker's success."""

PLAIN = r"(?i)(?!.*epsilon)(?=.{1,200}\Z)[\w.,:;@+/()'=-]+(?: [\w.,:;@+/()'=-]+)*"
"""A field: a line that looks alike in text, Markdown and HTML, and cannot be taken for the claim."""


def _is_day(text: object) -> bool:
    """True for a day of the calendar, year, month and day."""
    try:
        return isinstance(text, str) and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


DIGEST = text_matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")
"""The form of a digest."""

LINE = text_matching(PLAIN, "at most 200 letters, digits, single spaces and .,:;@+/()'=-, without the word epsilon")
"""The form of a field."""

DAY = Kind("a day such as 2026-01-31", _is_day, {})
"""The form of a date."""

AUTHOR_WORDS = {
    "date": Parameter(DAY, "Day of the statement, YYYY-MM-DD; unchecked.", "WORDS", is_rare=True),
    "author": Parameter(LINE, "Who makes the statement; unchecked.", "WORDS"),
    "model": Parameter(LINE, "What is released, with its version; unchecked.", "WORDS"),
    "data": Parameter(LINE, "The data set; unchecked.", "WORDS", is_rare=True),
    "versions": Parameter(LINE, "The programs that trained; unchecked.", "WORDS", is_rare=True),
    "ledger": Parameter(DIGEST, "The ledger, of which the SHA-256 is said.", "FILE", is_rare=True),
    "checkpoint": Parameter(DIGEST, "The checkpoint, of which the SHA-256 is said.", "FILE", is_rare=True),
}
"""What the author of a statement may say of it, in the order in which it is said. Contract."""

DIGESTS = ("ledger", "checkpoint")
"""The files whose SHA-256 a statement may name. Contract."""


@dataclass(frozen=True)
class Section:
    """A heading with lines of text, which are items of a list if ``items``, else sentences."""

    title: str
    lines: tuple[str, ...]
    items: bool = False


STYLES = ("text", "markdown", "html")
"""How a statement can be written."""

FILLED = Kind("a table that is not empty", lambda value: isinstance(value, dict) and bool(value), {})
"""What the parameters of a statement hold beside what follows. Contract."""

HEAD = {
    "style": Kind(f"one of the styles {', '.join(STYLES)}", lambda style: style in STYLES, {}),
    "delta": NUMBER,
}
"""What the parameters of every statement begin with, behind the version that wrote it. Contract."""

STATED = (*MARKS, "alone")
"""What the data of an account say to be true or false. Contract."""

PARAMETERS = '{"privproj": '
"""How the line of a statement begins that has its parameters. Contract."""


@dataclass(frozen=True)
class Statement:
    """The numbers of a statement and what they rest on.

    ``others`` are the answers of bounds that are not claimed. ``account`` counts every release that it is about.
    ``line`` holds its parameters as JSON, ``author_words`` those that are its author's words. ``factor`` is 1;
    a statement whose computed numbers are said times a factor shows how far rounding can move its words.
    """

    result: Result
    curve: Curve
    rates: tuple[float, ...]
    advantage: float
    others: tuple[Result, ...]
    account: Account
    style: str
    line: str
    author_words: Mapping[str, str] = field(default_factory=dict)
    factor: float = 1.0

    @property
    def epsilon(self) -> float:
        """The epsilon that is claimed."""
        return self.factor * (self.result.epsilon or 0.0)

    def share(self, computed: float) -> float:
        """A computed probability as it is said."""
        return min(1.0, self.factor * computed)


def run_data(schedule: Composition) -> dict[str, Any]:
    """The phases of a run as the data of a statement, without their names."""
    data: dict[str, Any] = schedule.as_dict()
    return {"run": {**data, "phase": without_names(data["phase"])}}


def question_data(phase: Phase) -> dict[str, Any]:
    """One question as the data of a statement: a run of one phase."""
    return run_data(Composition((phase.with_run(discretization=None),), phase.run.discretization))


def account_data(account: Account) -> dict[str, Any]:
    """What a training run has released as the data of a statement: its phases, and how many releases each made."""
    entries, made = zip(*account.phases, strict=True)
    ledger = {"made": [*made], **{mark: getattr(account, mark) for mark in STATED}, "notes": [*account.notes]}
    target = dict(account.target or {}) if account.is_adaptive else {}
    return {"run": {"phase": without_names(entries)}, "ledger": {**ledger, "filter": target}}


def _account_from(phases: list[dict[str, Any]], data: Any) -> Account:
    """The account of these phases, of which :func:`account_data` has written the rest."""
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
    data: Mapping[str, Any], delta: float, style: str, author_words: Mapping[str, Any] | None = None
) -> Statement:
    """The statement that these parameters give: the data of a run, or of an account, computed.

    ``data`` comes from :func:`question_data`, :func:`run_data` or :func:`account_data`, or is read from a file; it is
    brought into their form first. ``author_words`` are the author's words (:data:`AUTHOR_WORDS`). Nothing else enters.
    Raises :class:`InvalidParameterError` for an unknown key or a value outside its domain, and whatever the query
    raises.
    """
    spec.check_keys(author_words or {}, {name: declared.kind for name, declared in AUTHOR_WORDS.items()})
    words = {name: author_words[name] for name in AUTHOR_WORDS if name in author_words} if author_words else {}
    canonical = run_data(from_data(data["run"], "statement"))
    phases = canonical["run"]["phase"]
    if "ledger" in data:
        account = _account_from(phases, data["ledger"])
        canonical, result, curve, others = account_data(account), account.epsilon(delta), account.curve(), ()
    else:
        account = Account(tuple((entry, planned_releases(entry)) for entry in phases))
        result, curve, others = _computed(canonical["run"], delta)
    about = {"privproj": __version__, "style": style, "delta": delta, **({"said": words} if words else {}), **canonical}
    attacks = (tuple(true_positive_rates(curve, RATES)), advantage(curve)) if result.usable else ((), 1.0)
    return Statement(result, curve, *attacks, others, account, style, json.dumps(about), words)


def _computed(run: Mapping[str, Any], delta: float) -> tuple[Result, Curve, tuple[Result, ...]]:
    """What is computed of a run: epsilon, its curve, and what other bounds answer where it has one mechanism.

    A run of one phase is answered in the words of that phase.
    """
    (entry, *more), shared = run["phase"], {key: value for key, value in run.items() if key != "phase"}
    if more or "event" in entry:
        question, rows = from_data(run, "statement").by_one_accountant(), ()
    else:
        mechanism, bound, options = spec.mechanism_bound_and_run({**entry, **shared})
        question, rows = composition_of(mechanism, bound, options), compare(mechanism, delta=delta, **options)
    result = solve_epsilon(question, delta_target(delta, None))
    answers = [row.result for row in rows if row.result and row.result.value is not None]
    return result, question.curve(), tuple(other for other in answers if other.bound != result.bound)


# --- its words ----------------------------------------------------------------------------------------


def sections(statement: Statement) -> list[Section]:
    """What a statement says, heading by heading: first for any reader, the appendix for experts."""
    result = statement.result
    if result.outcome is not Outcome.OK or result.epsilon is None or result.delta is None:
        return [Section("No guarantee", (f"There is no finite epsilon at delta {result.delta!r}: {result.outcome}.",))]
    fields, noise = _fields(statement), "known" if statement.account.insecure else "secret"
    parts = [part for part in WORDS["section"] if part.get("noise", noise) == noise]
    every = [Section(part["title"], _fill(part["lines"], fields), part.get("items", False)) for part in parts]
    return [section for section in every if section.lines]


def _fill(lines: list[str], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The lines with their fields filled in; one whose field has several values stands once for each of them."""
    filled = []
    for line in map(Template, lines):
        several = [name for name in line.get_identifiers() if isinstance(fields[name], tuple)]
        values = product(*(fields[name] for name in several))
        filled += [line.substitute(fields, **dict(zip(several, chosen, strict=True))) for chosen in values]
    return tuple(filled)


def _fields(statement: Statement) -> dict[str, Any]:
    """What stands in the place of each field; a tuple for what is said line by line."""
    result, texts, most = statement.result, statement.author_words, statement.share(statement.advantage)
    relation, size = NeighboringRelation(str(result.run["relation"])), result.run["group_size"]
    who = WORDS["record" if size == 1 else "person"]
    filter_parameters: Any = result.mechanism.get("filter")
    done = releases_text(result)
    done = done if len(done) == 1 else (f"phase {i + 1}: {words}" for i, words in enumerate(done))
    fields: dict[str, Any] = {"size": size, "change": relation.difference, "them": who["them"], "insecure": INSECURE}
    fields |= {name: Template(who[name]).substitute(fields) for name in ("protected", "unit")}
    return {
        **fields,
        "whether": who["whether"][str(relation)],
        # (1 + A)/2: the share of right guesses of a test with advantage A, from even odds.
        "right": _percent_rounded_up(min(1.0, next_up(0.5 + 0.5 * most))),
        "claim": claim_of(statement),
        "meaning": _meaning_of_epsilon(statement.epsilon, result.delta or 0.0),
        "attacks": tuple(map(_best_attack, RATES, map(statement.share, statement.rates), [who["them"]] * len(RATES))),
        "advantage": _percent_rounded_up(most),
        "done": (*done, *((f"a filter fixed in advance: {listed(filter_parameters)}",) if filter_parameters else ())),
        **{name: getattr(result, name) for name in ("bound", "source", "assumes", "warnings")},
        "strength": WORDS["strength"].get(str(result.status), str(result.status)),
        "promises": tuple(words for words in result.promises if words != Requirement.MEASURED_ROUNDING),
        "rounding": tuple(words for words in result.promises if words == Requirement.MEASURED_ROUNDING),
        "persons": assumed_of_persons(result),
        "said": tuple(f"{'SHA-256 of the ' * (name in DIGESTS)}{name}: {words}" for name, words in texts.items()),
        "missing": (", ".join(name for name in AUTHOR_WORDS if name not in texts),) * (len(texts) < len(AUTHOR_WORDS)),
        "others": tuple(_other_bound(other, statement.factor) for other in statement.others),
    }


def _meaning_of_epsilon(epsilon: float, delta: float) -> str:
    """What an epsilon of this size means as a factor, rounded up, without calling it good or bad."""
    # Pr[S] <= e^eps Pr'[S] + delta (C1)
    factor = next_up(math.exp(min(epsilon, 700.0)))
    if factor > 1e9:  # it limits next to nothing
        return WORDS["meaning"]["nothing"]
    rounded = round_outward(factor) if factor < 1000.0 else f"{float(round_outward(factor)):,.0f}"
    # A smaller delta is not said as a chance of one in so many.
    chance = f" (1 in {int(1 / Decimal(repr(delta))):,})" if 1e-12 <= delta <= 0.1 else ""
    return Template(WORDS["meaning"]["factor"]).substitute(factor=rounded, delta=repr(delta), chance=chance)


def _best_attack(rate: float, most: float, them: str) -> str:
    """What no attack exceeds at a rate of false alarms: the rate of true ones and the odds, each rounded up."""
    # From even odds a record with an alarm is inside at odds of b/a, by the rates b of true and a of false alarms.
    odds = _rounded_up(most, 1 / Decimal(str(rate)))
    numbers = {"one": f"{1 / rate:.0f}", "rate": f"{100.0 * rate:g}", "most": _percent_rounded_up(most), "odds": odds}
    return Template(WORDS["attack"]["rate"]).substitute(numbers, them=them)


def _other_bound(other: Result, factor: float) -> str:
    """What another bound says, for experts."""
    rests = "; ".join((str(other.status), *other.promises))
    return f"{round_outward(factor * float(other.value or 0.0))} by the bound {other.bound} ({rests})"


def _rounded_up(share: float, times: Decimal) -> str:
    """A multiple of a share with three significant digits, rounded up."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).multiply(Decimal(share), times)):.10g}"


def _percent_rounded_up(share: float) -> str:
    """A share in per cent with three significant digits, rounded up."""
    return f"{_rounded_up(share, Decimal(100))} %"


def claim_of(statement: Statement) -> str:
    """What a statement claims: its epsilon, rounded up, at its delta."""
    result = statement.result
    claim = f"epsilon is at most {round_outward(statement.epsilon)}" if result.usable else "no finite epsilon"
    return f"{claim} at delta {result.delta!r}"


def assumed_of_persons(result: Result) -> tuple[str, ...]:
    """What a reader assumes of persons who takes a number about records for one about them; a group is a promise."""
    return (Requirement.ONE_RECORD_PER_USER,) if result.run["group_size"] == 1 else ()


# --- a statement checked ------------------------------------------------------------------------------

BEGIN = {"text": "PRIVACY STATEMENT", "markdown": "## Privacy statement"}
"""The line that begins a statement, by style. Contract."""

END = "End of the privacy statement."
"""The line that ends a statement in text and Markdown. Contract."""

ROUNDING_RTOL = 1e-6
"""Relative difference of a computed number, between two machines, that a statement may show by a unit of a last digit.

A number is honest if it is written so for some value that lies at most this far from the recomputed one. Soundness:
what is accepted is at least the recomputed bound less this share of it.
"""

AS_WRITTEN = "every word and number is what privproj writes for these parameters, but for rounding"
"""The claim about all lines."""

CLAIM = re.compile(
    r"epsilon is at most [\d.e+-]+ at delta [\d.e+-]*\d|no finite epsilon at delta [\d.e+-]*\d", re.ASCII
)
"""How the claim of a statement stands in its words, apart from spaces."""


@dataclass(frozen=True)
class StatementVerdict(Verdict):
    """What checking a statement found: the statement written anew, where it stands in the file, and what differs.

    ``claimed`` are the epsilons that the words of the file name, each with its delta and once; of each line that
    differs ``differences`` have its ``number``, what it ``said`` and what was ``expected``.
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
    """Check the statement in the bytes of a file; ``write`` renders one in its style, ``path`` is for messages.

    Raises :class:`InvalidParameterError` where they are no text in UTF-8 that has one statement with its parameters,
    and whatever computing it raises.
    """
    try:
        lines = content.decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError:
        raise InvalidParameterError("FILE", path, "text in UTF-8") from None
    lines = lines[:-1] if not lines[-1] else lines
    places = [i for i, line in enumerate(lines) if line.startswith(PARAMETERS)]
    if len(places) != 1:
        expected = "one privacy statement that ends with its parameters"
        raise InvalidParameterError("FILE", path, expected, f"it has {len(places)} lines of parameters")
    parameters = _parameters(lines[places[0]], path)
    style = parameters.pop("style")
    first, last = (0, len(lines) - 1) if style == "html" else _marked(lines, places[0], style, path)
    statement = statement_from(parameters, parameters.pop("delta"), style, parameters.pop("said", None))
    # The statement with every computed number a little larger and smaller: what rounding can make of its last digits.
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
    """The line of parameters as data: every key known, none missing, and what is not computed from checked.

    It is about a run, or about a ledger. Numbers, words and keys of another version may differ, so that is refused.
    """
    fields = read_json(line, "FILE", path, "parameters as `privproj report` writes them")
    if (version := fields.pop("privproj")) != __version__:
        remedy = f"that is of {quoted(version)}: verify it with that version, or write it again"
        raise InvalidParameterError("FILE", path, f"a privacy statement of privproj {__version__}", remedy)
    with within(path):
        return read_table("parameters", fields, HEAD | dict.fromkeys(["run", *{"said", "ledger"} & {*fields}], FILLED))


def _marked(lines: list[str], place: int, style: str, path: str) -> tuple[int, int]:
    """The first and the last line of the statement around its parameters, by its marks, of which there is one each."""
    begins = [i for i, line in enumerate(lines) if line == BEGIN[style]]
    ends = [i for i, line in enumerate(lines) if line == END]
    if len(begins) != 1 or len(ends) != 1 or not begins[0] < place < ends[0]:
        expected = f"one line {BEGIN[style]!r} before the parameters and one line {END!r} after them"
        raise InvalidParameterError("FILE", path, expected)
    return begins[0], ends[0]


# --- a statement and the ledger of its run ------------------------------------------------------------

STATEMENT_HOLDS = "the statement alone holds"
"""The claim that checking the statement by itself found nothing wrong."""

LEDGER_HOLDS = "the ledger alone is as privproj writes it"
"""The claim that checking the ledger by itself found nothing wrong."""

SAME_RUN = "each phase of the ledger is that phase of the statement: mechanism, bound, noise, plan, sampling, relation"
"""The claim that the ledger is of the statement's run, in the order of its phases; names of phases are free."""

COUNTED = "the statement counts every release of the ledger"
"""The claim that no phase released more than the statement says."""

COVERED = "the statement's epsilon is no less than that of the ledger's releases, at the statement's delta"
"""The claim that the number covers what was released, by the ledger's own accounting."""

SAME_DELTA = "the statement's delta is no larger than that of the ledger's target"
"""The claim that the statement is about the target that the run set out to keep."""

SAME_FOUNDATION = "the statement names what the ledger's number rests on: promises, assumptions"
"""The claim that the statement leaves out nothing that the number rests on.

It need not name :data:`OF_THE_LEDGER`.
"""

SAME_FILE = "the {name} is the file whose SHA-256 the statement names"
"""The claim about each file that was given and has to be the one that the statement means."""

OF_THE_LEDGER = (Requirement.PUBLIC_DATASET_SIZE, Requirement.ONLY_THIS_LEDGER)
"""Assumptions of a ledger that a statement may leave out.

A statement of a plan gives rate and steps as constants, which is the other half of the first sentence, and it is about
one plan, as the second one says of one ledger.
"""

NOT_COMPARED = ("name", "public_size", "planned")
"""Keys of a phase that are no part of what was released: a label, an assumption, and what is still to come."""


@dataclass(frozen=True)
class AgreementVerdict(Verdict):
    """What comparing found: every claim about the two files, the verdicts on both, and how their phases differ."""

    statement: StatementVerdict
    ledger: LedgerVerdict
    differences: tuple[str, ...]

    @property
    def planned(self) -> int:
        """The number of releases that the ledger would have at the end of its plan and of the statement's."""
        return max(self.ledger.account.planned.spent, self.statement.statement.account.spent)

    @property
    def missing(self) -> int:
        """The number of releases that were planned and are not in the ledger."""
        return self.planned - self.ledger.account.spent


def compare_with_ledger(
    statement: StatementVerdict, ledger: LedgerVerdict, digests: Mapping[str, str] | None = None
) -> AgreementVerdict:
    """Compare a statement and a ledger that were checked; raises whatever computing the ledger's epsilon raises.

    ``digests`` are the SHA-256 of the ledger and of a checkpoint, where there is one. A statement may leave out the
    ledger's, as that of a plan does, but not that of a checkpoint which it is compared with.
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
        # epsilon of the ledger <= that of the statement, but for the rounding of numbers that are computed twice.
        of_ledger = account.epsilon(float(claimed.delta or 0.0))
        most = float(claimed.value or 0.0) * (1 + ROUNDING_RTOL)
        claims[COVERED] = of_ledger.usable and float(of_ledger.value or 0.0) <= most
        rests_on = {*claimed.promises, *claimed.assumes, *OF_THE_LEDGER}
        claims[SAME_FOUNDATION] = {*of_ledger.promises, *of_ledger.assumes} <= rests_on
    if "delta" in target:
        claims[SAME_DELTA] = float(claimed.delta or 0.0) <= float(target["delta"])
    named = statement.statement.author_words
    for name, digest in (digests or {}).items():
        if name in named or name != "ledger":
            claims[SAME_FILE.format(name=name)] = named.get(name) == digest
    return AgreementVerdict(claims, statement, ledger, differences)


def _made(account: Account) -> list[tuple[dict[str, Any], int]]:
    """The phases with a release as a file has them, and how many."""
    return [(json.loads(json.dumps(entry)), made) for entry, made in account.phases if made]


def _differences(account: Account, stated: Account) -> Iterator[str]:
    """Where the ledger is not that of the statement's run, in words."""
    filters = [dict(one.target or {}) if one.is_adaptive else None for one in (account, stated)]
    if filters[0] != filters[1]:
        yield f"filter: {filters[0]} in the ledger, {filters[1]} in the statement"
    counted = _made(stated)
    for i, (entry, _) in enumerate(_made(account)):
        other = counted[i][0] if i < len(counted) else {}
        for key in dict.fromkeys((*entry, *other)):
            ours, theirs = (one.get(key, "nothing") for one in (entry, other))
            # How many records there are may be left out, but for capped batches, which all that is read has it with.
            is_left_out = key == "dataset_size" and "nothing" in (ours, theirs)
            if ours != theirs and key not in NOT_COMPARED and not is_left_out:
                yield f"phase {i + 1}: {key} {ours} in the ledger, {theirs} in the statement"
