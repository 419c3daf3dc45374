"""A privacy statement in plain words: what was protected, how well, what that rests on, and what is not covered.

A statement is a function of its parameters alone: a question or the phases of a run, a delta, a style, and what its
author says of it. It ends with them as one line of JSON, so that whoever has it can have it written anew and compare
(:mod:`privproj.records.statement_check`). Names of phases are free words that nothing could check, so phases are
numbered instead; the author's words stand under a heading that says so.

Its words are those of ``statement.toml``, for a reader who is no expert. What it says of attackers is an upper bound of
what the best one reaches, read from the whole curve and rounded up (C30).
"""

import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from importlib.resources import files
from itertools import product
from string import Template
from typing import Any

from privproj.accounting import spec
from privproj.accounting.queries import compare, solve_epsilon
from privproj.accounting.question import ask_by_name
from privproj.accounting.schedule import Phase, Schedule
from privproj.assumptions import ONE_RECORD_OF_A_PERSON, ROUNDING_AS_MEASURED
from privproj.curves.profile import Curve
from privproj.curves.tradeoff import advantage, true_positive_rates
from privproj.errors import InvalidParameter, within
from privproj.extensions.events import event_words
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import find_bound
from privproj.numerics.enclosure import next_up
from privproj.records.data_file import list_of, read_table
from privproj.records.ledger import CUT_SHORT, INSECURE, MARKS, Account, planned_releases
from privproj.records.run_file import MOST_PHASES, from_data, phase_from
from privproj.result import Outcome, Result, round_outward
from privproj.runs.sampling import IN_EPOCHS, scheme_of
from privproj.runs.targets import delta_target
from privproj.validation import TABLE, TRUTH, WHOLE, Kind, quoted
from privproj.version import __version__

WORDS: dict[str, Any] = tomllib.loads(files("privproj.records").joinpath("statement.toml").read_text(encoding="utf-8"))
"""The sections of a statement, and the words of their fields."""

UNITS: dict[str, str] = WORDS["change"]
"""What a statement protects, by neighbouring relation."""

RATES = (0.001, 0.01)
"""The false positive rates at which a statement names an attacker's success."""

LARGEST_FACTOR = 1e9
"""A factor above this is not written out: it limits next to nothing."""

LEAST_CHANCE = 1e-12
"""A delta below this is not said as a chance of one in so many."""
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

FORMS = {
    "date": (r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", "a day such as 2026-01-31"),
    **dict.fromkeys(DIGESTS, ("[0-9a-f]{64}", "a SHA-256 of 64 hexadecimal digits")),
    **dict.fromkeys(
        [name for name in FIELDS if name != "date"],
        (PLAIN, "at most 200 letters, digits, single spaces and .,:;@+/()'=-, without the word epsilon"),
    ),
}
"""The pattern of each field and digest, and its words."""


@dataclass(frozen=True)
class Section:
    """A heading with lines of text, which are items of a list if ``items``, else sentences."""

    title: str
    lines: tuple[str, ...]
    items: bool = False


STYLES = ("text", "markdown", "html")
"""How a statement can be written."""

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


def _said_from(given: Mapping[str, Any]) -> dict[str, str]:
    """The author's words and digests in the order of the fields, each checked for its form."""
    for name, words in given.items():
        if name not in FORMS:
            raise InvalidParameter("said", quoted(name), f"one of {', '.join(FORMS)}")
        pattern, expected = FORMS[name]
        if not isinstance(words, str) or not re.fullmatch(pattern, words):
            raise InvalidParameter(name, quoted(words), expected)
    return {name: given[name] for name in (*FIELDS, *DIGESTS) if name in given}


def statement_from(
    data: Mapping[str, Any], delta: float, style: str, version: str = __version__, said: Mapping[str, Any] | None = None
) -> Statement:
    """The statement that these parameters give: the data of one question, a run or an account, computed.

    ``data`` comes from :func:`question_data`, :func:`run_data` or :func:`account_data`, or is read from a file; it is
    brought into their form first. ``said`` are the author's :data:`FIELDS` and :data:`DIGESTS`. Nothing else enters.
    Raises :class:`InvalidParameter` for an unknown key or a value outside its domain, and whatever the query raises.
    """
    words = _said_from(said or {})
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
        "missing": (", ".join(name for name in (*FIELDS, *DIGESTS) if name not in said),) * (len(said) < len(FORMS)),
        "others": tuple(map(_other_bound, statement.others)),
    }


def _meaning_of_epsilon(epsilon: float, delta: float) -> str:
    """What an epsilon of this size means as a factor, rounded up, without calling it good or bad."""
    # Pr[S] <= e^eps Pr'[S] + delta (C1)
    factor = next_up(math.exp(min(epsilon, 700.0)))
    if factor > LARGEST_FACTOR:
        return WORDS["meaning"]["nothing"]
    shown = round_outward(factor) if factor < 1000.0 else f"{float(round_outward(factor)):,.0f}"
    chance = f" (1 in {int(1 / Decimal(repr(delta))):,})" if LEAST_CHANCE <= delta <= 0.1 else ""
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
