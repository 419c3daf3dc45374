"""A privacy statement in plain words: what was protected, how well, what that rests on, and what is not covered.

A statement is a function of its parameters alone: a question or the phases of a run, a delta, a style, and what its
author says of it. It ends with them as one line of JSON, so that whoever has it can have it written anew and compare.
Names of phases are free words that nothing could check, so phases are numbered instead; the author's words stand under
a heading that says so.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import ROUND_CEILING, Context, Decimal
from importlib.resources import files
from itertools import product, zip_longest
from string import Template
from typing import Any

from privproj.accounting import spec
from privproj.accounting.comparison import compare
from privproj.accounting.question import ask_by_name, solve_epsilon
from privproj.accounting.schedule import Phase, Schedule
from privproj.assumptions import ONE_RECORD_OF_A_PERSON, PUBLIC_RECORD_COUNT, ROUNDING_AS_MEASURED, THIS_LEDGER_ALONE
from privproj.curves.profile import Curve
from privproj.curves.tradeoff import advantage, true_positive_rates
from privproj.errors import InvalidParameter, within
from privproj.extensions.events import event_words
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import find_bound
from privproj.numerics.enclosure import next_up
from privproj.records.files import Verdict, list_of, read_json, read_table
from privproj.records.ledger import CUT_SHORT, INSECURE, MARKS, Account, LedgerVerdict, planned_releases
from privproj.records.run_file import MOST_PHASES, from_data, phase_from
from privproj.result import Outcome, Result, round_outward
from privproj.runs.sampling import IN_EPOCHS, scheme_of
from privproj.runs.targets import delta_target
from privproj.validation import NUMBER, TABLE, TRUTH, WHOLE, Kind
from privproj.version import __version__

WORDS: dict[str, Any] = tomllib.loads(files("privproj.records").joinpath("statement.toml").read_text(encoding="utf-8"))
"""The sections of a statement, and the words of their fields."""

UNITS: dict[str, str] = WORDS["change"]
"""What a statement protects, by neighbouring relation."""

RATES = (0.001, 0.01)
"""The false positive rates at which a statement names an attacker's success."""

FIELDS = {
    "date": "Day of the statement, YYYY-MM-DD; unchecked.",
    "author": "Who makes the statement; unchecked.",
    "model": "What is released, with its version; unchecked.",
    "data": "The data set; unchecked.",
    "versions": "The programs that trained; unchecked.",
}
"""What the author of a statement may say of it, in words of the command line. Contract."""

DIGESTS = ("ledger", "checkpoint")
"""The files whose SHA-256 a statement may name. Contract."""

PLAIN = r"(?i)(?!.*epsilon)(?=.{1,200}\Z)[\w.,:;@+/()'=-]+(?: [\w.,:;@+/()'=-]+)*"
"""A field: a line that looks alike in text, Markdown and HTML, and cannot be taken for the claim."""


def _matching(pattern: str, words: str) -> Kind:
    """Texts of this form, as a message describes them."""
    return Kind(words, lambda text: isinstance(text, str) and bool(re.fullmatch(pattern, text)), {})


def _is_day(text: object) -> bool:
    """True for a day of the calendar, year, month and day."""
    try:
        return isinstance(text, str) and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


FORMS = {
    "date": Kind("a day such as 2026-01-31", _is_day, {}),
    **dict.fromkeys(
        ("author", "model", "data", "versions"),
        _matching(PLAIN, "at most 200 letters, digits, single spaces and .,:;@+/()'=-, without the word epsilon"),
    ),
    **dict.fromkeys(DIGESTS, _matching("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")),
}
"""The form of each field and digest, in the order in which they are said."""


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
    "privproj": _matching("[0-9][0-9A-Za-z.+-]{0,40}", "a version"),
    "style": Kind(f"one of the styles {', '.join(STYLES)}", lambda style: style in STYLES, {}),
    "delta": NUMBER,
}
"""What the parameters of every statement begin with. Contract."""

MADE = Kind("a whole number of releases", lambda steps: type(steps) is int and steps >= 0, {})
"""How many releases a phase made. Contract."""

STATED = (*MARKS, "alone")
"""What the data of an account say to be true or false. Contract."""

PARAMETERS = '{"privproj": '
"""How the line of a statement begins that has its parameters. Contract."""


@dataclass(frozen=True)
class Statement:
    """The numbers of a statement and what they rest on.

    ``others`` are the answers of bounds that are not claimed. ``account`` counts every release that it is about.
    ``line`` holds its parameters as JSON, ``said`` those that are its author's words. ``factor`` is 1;
    a statement whose computed numbers are all times a factor shows how far rounding can move its words.
    """

    result: Result
    curve: Curve
    rates: tuple[float, ...]
    advantage: float
    others: tuple[Result, ...]
    account: Account
    style: str
    line: str
    version: str
    said: Mapping[str, str] = field(default_factory=dict)
    factor: float = 1.0

    def shifted(self, factor: float) -> "Statement":
        """The same statement with every computed number times a factor."""
        return replace(
            self,
            result=_times(self.result, factor),
            rates=tuple(min(1.0, rate * factor) for rate in self.rates),
            advantage=min(1.0, self.advantage * factor),
            others=tuple(_times(other, factor) for other in self.others),
            factor=factor,
        )


def _times(result: Result, factor: float) -> Result:
    """A result that gives epsilon, with epsilon times a factor."""
    if result.value is None:
        return result
    return replace(result, value=result.value * factor, epsilon=result.value * factor)


def question_data(mechanism: Mechanism, bound: str | None, run: Mapping[str, Any]) -> dict[str, Any]:
    """One question as the data of a statement: every key that says something, each value of its type."""
    own = {"layer" if name == "layers" else name: value for name, value in mechanism.parameters().items()}
    named = find_bound(type(mechanism), bound).name
    wholes = [name for name, kind in spec.KINDS.items() if kind.words == WHOLE.words]
    plain = {name: int(value) if name in wholes else value for name, value in run.items() if value is not None}
    return {"question": {"mechanism": mechanism.name, **own, "bound": named, **plain}}


def run_data(schedule: Schedule) -> dict[str, Any]:
    """The phases of a run as the data of a statement, numbered."""
    phases = (replace(phase, name=f"phase {i + 1}") for i, phase in enumerate(schedule.phases))
    return {"run": replace(schedule, phases=tuple(phases)).as_dict()}


def account_data(account: Account) -> dict[str, Any]:
    """What a training run has released as the data of a statement: numbered phases, and how many releases each made."""
    entries, made = zip(*account.numbered.phases, strict=True)
    marks = {mark: getattr(account, mark) for mark in STATED}
    kept = {"filter": dict(account.target or {})} if account.filtered else {}
    return {"ledger": {"phase": [*entries], "made": [*made], **marks, "notes": [*account.notes], **kept}}


def _account_from(data: Mapping[str, Any], where: str) -> Account:
    """The account that :func:`account_data` has written."""
    count = len(data["phase"]) if isinstance(data.get("phase"), list) else 0
    kinds = {
        "phase": list_of("phases", TABLE, 1, MOST_PHASES),
        "made": list_of("numbers of releases, one for each phase", MADE, count, count),
        **dict.fromkeys(STATED, TRUTH),
        "notes": Kind("notes that privproj writes", lambda notes: notes in ([], [CUT_SHORT]), {}),
    }
    with within(where):
        given = read_table("ledger", data, kinds | ({"filter": TABLE} if "filter" in data else {}))
    opening = {"target": data["filter"]} if "filter" in data else {}
    account, phases = Account(), []
    for i, (entry, steps) in enumerate(zip(given["phase"], given["made"], strict=True)):
        place = f"{where}: phase {i + 1}"
        account = account.opened({"phase": entry, **({} if phases else opening)}, place)
        phases.append((phase_from(entry, {}, place).as_dict(), steps))
    marks = {mark: given[mark] for mark in STATED}
    return replace(account, phases=tuple(phases), notes=tuple(given["notes"]), **marks)


def statement_from(
    data: Mapping[str, Any], delta: float, style: str, version: str = __version__, said: Mapping[str, Any] | None = None
) -> Statement:
    """The statement that these parameters give: the data of one question, a run or an account, computed.

    ``data`` comes from :func:`question_data`, :func:`run_data` or :func:`account_data`, or is read from a file; it is
    brought into their form first. ``said`` are the author's :data:`FIELDS` and :data:`DIGESTS`. Nothing else enters.
    Raises :class:`InvalidParameter` for an unknown key or a value outside its domain, and whatever the query raises.
    """
    spec.check_keys(said or {}, FORMS)
    words = {name: said[name] for name in FORMS if name in said} if said else {}
    where, target = "statement", delta_target(delta, None)
    if "run" in data:
        schedule = from_data(data["run"], where)
        own = run_data(schedule)
        schedule = from_data(own["run"], where)
        result, curve, others = schedule.epsilon(delta=delta), schedule.curve(), []
        account = _account_of_plan(schedule.phases)
    elif "ledger" in data:
        account = _account_from(data["ledger"], where)
        own = account_data(account)
        result, curve, others = account.epsilon(delta), account.curve(), []
    else:
        entry = spec.with_unique_keys(data["question"], where)
        with within(where):
            spec.check_keys(entry, spec.keys_of(spec.mechanism_type_of(entry), ("mechanism", "bound")))
            mechanism, bound, run = spec.mechanism_bound_and_run(entry)
        own = question_data(mechanism, bound, run)
        question = ask_by_name(mechanism, bound, run)  # pyright: ignore[reportArgumentType]
        result, curve = solve_epsilon(question, target), question.curve()
        account = _account_of_plan(question.phases)
        answers = (row.result for row in compare(mechanism, delta=delta, **run))
        others = [other for other in answers if other and other.value is not None and other.bound != result.bound]
    about = {"privproj": version, "style": style, "delta": delta, **({"said": words} if words else {}), **own}
    attacks = (tuple(true_positive_rates(curve, RATES)), advantage(curve)) if result.usable else ((), 1.0)
    return Statement(result, curve, *attacks, tuple(others), account, style, json.dumps(about), version, words)


def _account_of_plan(phases: Iterable[Phase]) -> Account:
    """The account of phases that run to their planned end."""
    entries = (phase.as_dict() for phase in phases)
    return Account(tuple((entry, planned_releases(entry)) for entry in entries))


# --- its words ----------------------------------------------------------------------------------------


def sections(statement: Statement) -> list[Section]:
    """What a statement says, heading by heading: first for any reader, the appendix for experts."""
    result = statement.result
    if result.outcome is not Outcome.OK or result.epsilon is None or result.delta is None:
        return [Section("No guarantee", (f"There is no finite epsilon at delta {result.delta!r}: {result.outcome}.",))]
    fields, noise = _fields(statement), "known" if statement.account.insecure else "secret"
    parts = [part for part in WORDS["section"] if part.get("noise", noise) == noise]
    said = [tuple(line for words in part["lines"] for line in _said_once(words, fields)) for part in parts]
    found = zip(parts, said, strict=True)
    return [Section(part["title"], lines, part.get("items", False)) for part, lines in found if lines]


def _said_once(words: str, fields: Mapping[str, Any]) -> list[str]:
    """A line with its fields filled in, or for a field with several values a line for each of them."""
    line = Template(words)
    several = [name for name in line.get_identifiers() if isinstance(fields[name], tuple)]
    values = product(*(fields[name] for name in several))
    return [line.substitute({**fields, **dict(zip(several, chosen, strict=True))}) for chosen in values]


def _fields(statement: Statement) -> dict[str, Any]:
    """What stands in the place of each field; a tuple for what is said line by line."""
    result, said = statement.result, statement.said
    relation, size = str(result.run["relation"]), result.run["group_size"]
    who = WORDS["record" if size == 1 else "person"]
    found: dict[str, Any] = {"size": size, "change": UNITS[relation], "them": who["them"], "insecure": INSECURE}
    found |= {name: Template(who[name]).substitute(found) for name in ("protected", "unit")}
    return {
        **found,
        "whether": who["whether"][relation],
        # (1 + A)/2: the share of right guesses of a test with advantage A, from even odds.
        "right": _percent_rounded_up(min(1.0, next_up(0.5 + 0.5 * statement.advantage))),
        "claim": claim_of(result),
        "meaning": _meaning_of_epsilon(result.epsilon or 0.0, result.delta or 0.0),
        "attacks": tuple(map(_best_attack, RATES, statement.rates, [who["them"]] * len(RATES))),
        "advantage": _percent_rounded_up(statement.advantage),
        "done": _what_was_done(result),
        "bound": result.bound,
        "source": result.source,
        "strength": WORDS["strength"].get(str(result.status), str(result.status)),
        "promises": tuple(words for words in result.promises if words != ROUNDING_AS_MEASURED),
        "rounding": tuple(words for words in result.promises if words == ROUNDING_AS_MEASURED),
        "persons": assumed_of_persons(result),
        "assumes": result.assumes,
        "notes": result.warnings,
        "author": tuple(f"{name}: {said[name]}" for name in FIELDS if name in said),
        "digests": tuple(f"{name}: {said[name]}" for name in DIGESTS if name in said),
        "missing": (", ".join(name for name in FORMS if name not in said),) * (len(said) < len(FORMS)),
        "others": tuple(map(_other_bound, statement.others)),
    }


def _meaning_of_epsilon(epsilon: float, delta: float) -> str:
    """What an epsilon of this size means as a factor, rounded up, without calling it good or bad."""
    # Pr[S] <= e^eps Pr'[S] + delta (C1)
    factor = next_up(math.exp(min(epsilon, 700.0)))
    if factor > 1e9:  # it limits next to nothing
        return WORDS["meaning"]["nothing"]
    shown = round_outward(factor) if factor < 1000.0 else f"{float(round_outward(factor)):,.0f}"
    # A smaller delta is not said as a chance of one in so many.
    chance = f" (1 in {int(1 / Decimal(repr(delta))):,})" if 1e-12 <= delta <= 0.1 else ""
    return Template(WORDS["meaning"]["factor"]).substitute(factor=shown, delta=repr(delta), chance=chance)


def _best_attack(rate: float, most: float, them: str) -> str:
    """What no attack exceeds at a rate of false alarms: the rate of true ones and the odds, each rounded up."""
    # From even odds a record with an alarm is inside at odds of b/a, by the rates b of true and a of false alarms.
    odds = _rounded_up(most, 1 / Decimal(str(rate)))
    numbers = {"one": f"{1 / rate:.0f}", "rate": f"{100.0 * rate:g}", "most": _percent_rounded_up(most), "odds": odds}
    return Template(WORDS["attack"]["rate"]).substitute(numbers, them=them)


def _other_bound(other: Result) -> str:
    """What another bound says, for experts."""
    rests = "; ".join((str(other.status), *other.promises))
    return f"{round_outward(float(other.value or 0.0))} by the bound {other.bound} ({rests})"


def _rounded_up(share: float, times: Decimal) -> str:
    """A multiple of a share with three significant digits, rounded up."""
    return f"{float(Context(prec=3, rounding=ROUND_CEILING).multiply(Decimal(share), times)):.10g}"


def _percent_rounded_up(share: float) -> str:
    """A share in per cent with three significant digits, rounded up."""
    return f"{_rounded_up(share, Decimal(100))} %"


def claim_of(result: Result) -> str:
    """What a statement claims: its epsilon, rounded up, at its delta."""
    found = f"epsilon is at most {round_outward(result.epsilon or 0.0)}" if result.usable else "no finite epsilon"
    return f"{found} at delta {result.delta!r}"


def assumed_of_persons(result: Result) -> tuple[str, ...]:
    """What a reader assumes of persons who takes a number about records for one about them; a group is a promise."""
    return (ONE_RECORD_OF_A_PERSON,) if result.run["group_size"] == 1 else ()


def listed(table: Mapping[str, Any], *hidden: str) -> str:
    """The keys of a table with their values, but for some of them."""
    shown = {key: event_words(value) if key == "event" else value for key, value in table.items() if key not in hidden}
    return ", ".join(f"{key} {value}" for key, value in shown.items())


def _what_was_done(result: Result) -> tuple[str, ...]:
    """Mechanism, parameters and run in words, or the phases of a run."""
    phases, run = result.mechanism.get("phases"), result.run
    if isinstance(phases, list):
        kept: Any = result.mechanism.get("filter")
        return tuple(map(listed, phases if kept is None else [*phases, {"filter": "fixed in advance", **kept}]))
    mechanism = f"mechanism {result.mechanism['name']}: {listed(result.mechanism, 'assumes', 'name')}"
    if run["sampling"] in IN_EPOCHS:
        return mechanism, f"epochs: {run['steps']}, {scheme_of(run['sampling']).words(run)}"
    sampling = "each on the whole data set"
    if run["sampling"] is not None:
        rate: Any = run["sampling_rate"]
        sampling = f"each on a {run['sampling']} sample at rate {rate!r} ({100.0 * rate:.3g} % of the records)"
    if "max_batch_size" in run:
        sampling += f", cut at {run['max_batch_size']} of {run['dataset_size']} records, the surplus dropped at random"
    return mechanism, f"releases: {run['steps']}, {sampling}"


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

VERSION = "it was written by this version of privproj"
"""The claim that no other version wrote it, whose numbers or words may differ."""

CLAIM = re.compile(
    r"epsilon is at most [\d.e+-]+ at delta [\d.e+-]*\d|no finite epsilon at delta [\d.e+-]*\d", re.ASCII
)
"""How the claim of a statement stands in its words, apart from spaces."""


@dataclass(frozen=True)
class _Difference:
    """A line of the file that is not what is written anew: its number, what it says, and what would be said."""

    number: int
    said: str
    expected: str


@dataclass(frozen=True)
class StatementVerdict(Verdict):
    """What checking a statement found: the statement written anew, where it stands in the file, and what differs.

    ``claimed`` are the epsilons that the words of the file name, each with its delta and once.
    """

    statement: Statement
    first: int
    last: int
    lines: int
    claimed: tuple[str, ...]
    differences: tuple[_Difference, ...]

    @property
    def outside(self) -> int:
        """The number of lines of the file that are not part of the statement."""
        return self.lines - (self.last - self.first + 1)


def verify_statement(content: str, path: str, write: Callable[[Statement], str]) -> StatementVerdict:
    """Check the statement in a text; ``write`` renders a statement in its style, ``path`` is for messages.

    Raises :class:`InvalidParameter` where the text does not have one statement with its parameters, and whatever
    computing it raises.
    """
    lines = content.replace("\r\n", "\n").split("\n")
    lines = lines[:-1] if not lines[-1] else lines
    places = [i for i, line in enumerate(lines) if line.startswith(PARAMETERS)]
    if len(places) != 1:
        expected = "one privacy statement that ends with its parameters"
        raise InvalidParameter("FILE", path, expected, f"it has {len(places)} lines of parameters")
    given = _parameters(lines[places[0]], path)
    style, version = given.pop("style"), given.pop("privproj")
    first, last = (0, len(lines) - 1) if style == "html" else _marked(lines, places[0], style, path)
    statement = statement_from(given, given.pop("delta"), style, version, given.pop("said", None))
    # The statement with every computed number a little larger and smaller: what rounding can make of its last digits.
    ways = [write(statement.shifted(by)).split("\n") for by in (1.0, 1.0 - ROUNDING_RTOL, 1.0 + ROUNDING_RTOL)]
    found = tuple(
        _Difference(number, said or "", options[0] or "")
        for number, (said, *options) in enumerate(zip_longest(lines[first : last + 1], *ways), first + 1)
        if said is None or None in options or not _is_one_of(said, options)
    )
    claims = {AS_WRITTEN: not found, VERSION: version == __version__}
    claimed = tuple(dict.fromkeys(CLAIM.findall(" ".join(" ".join(lines[first : last + 1]).split()))))
    return StatementVerdict(claims, statement, first + 1, last + 1, len(lines), claimed, found)


def _parameters(line: str, path: str) -> dict[str, Any]:
    """The line of parameters as data: every key known, none missing, and what is not computed from checked.

    It is about a question, a run or a ledger, and only one of them.
    """
    given = read_json(line, "FILE", path, "parameters as `privproj report` writes them")
    about = next((key for key in ("run", "ledger") if key in given), "question")
    with within(path):
        return read_table("parameters", given, HEAD | dict.fromkeys([about, *{"said"} & {*given}], FILLED))


def _marked(lines: list[str], place: int, style: str, path: str) -> tuple[int, int]:
    """The first and the last line of the statement around its parameters, by its marks, of which there is one each."""
    begins = [i for i, line in enumerate(lines) if line == BEGIN[style]]
    ends = [i for i, line in enumerate(lines) if line == END]
    if len(begins) != 1 or len(ends) != 1 or not begins[0] < place < ends[0]:
        raise InvalidParameter(
            "FILE", path, f"one line {BEGIN[style]!r} before the parameters and one line {END!r} after them"
        )
    return begins[0], ends[0]


def _is_one_of(said: str, options: list[str]) -> bool:
    """True if every word of a line is the word that stands there in one of the lines."""
    columns = [option.split(" ") for option in (said, *options)]
    alike = len({len(words) for words in columns}) == 1
    return said in options or (alike and all(word in among for word, *among in zip(*columns, strict=True)))


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

OF_THE_LEDGER = (PUBLIC_RECORD_COUNT, THIS_LEDGER_ALONE)
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
    made, said = _made(account), _made(stated)
    fewer = all(ours <= theirs for (_, ours), (_, theirs) in zip(made, said, strict=False))
    claims = {
        STATEMENT_HOLDS: statement.holds,
        LEDGER_HOLDS: ledger.holds,
        SAME_RUN: not differences,
        COUNTED: len(made) <= len(said) and fewer,
    }
    if account.spent and claimed.usable:
        # epsilon of the ledger <= that of the statement, but for the rounding of numbers that are computed twice.
        found = account.epsilon(float(claimed.delta or 0.0))
        most = float(claimed.value or 0.0) * (1 + ROUNDING_RTOL)
        claims[COVERED] = found.usable and float(found.value or 0.0) <= most
        rests_on = {*claimed.promises, *claimed.assumes, *OF_THE_LEDGER}
        claims[SAME_FOUNDATION] = {*found.promises, *found.assumes} <= rests_on
    if "delta" in target:
        claims[SAME_DELTA] = float(claimed.delta or 0.0) <= float(target["delta"])
    named = statement.statement.said
    for name, digest in (digests or {}).items():
        if name in named or name != "ledger":
            claims[SAME_FILE.format(name=name)] = named.get(name) == digest
    return AgreementVerdict(claims, statement, ledger, differences)


def _made(account: Account) -> list[tuple[dict[str, Any], int]]:
    """The phases with a release as a file has them, and how many."""
    return [(json.loads(json.dumps(entry)), made) for entry, made in account.phases if made]


def _differences(account: Account, stated: Account) -> Iterator[str]:
    """Where the ledger is not that of the statement's run, in words."""
    filters = [dict(one.target or {}) if one.filtered else None for one in (account, stated)]
    if filters[0] != filters[1]:
        yield f"filter: {filters[0]} in the ledger, {filters[1]} in the statement"
    said = _made(stated)
    for i, (entry, _) in enumerate(_made(account)):
        other = said[i][0] if i < len(said) else {}
        for key in (key for key in dict.fromkeys((*entry, *other)) if entry.get(key) != other.get(key)):
            if key not in NOT_COMPARED:
                found = [one.get(key, "nothing") for one in (entry, other)]
                yield f"phase {i + 1}: {key} {found[0]} in the ledger, {found[1]} in the statement"
