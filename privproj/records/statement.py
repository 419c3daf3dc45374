"""A privacy statement in plain words: what was protected, how well, what that rests on, and what is not covered.

A statement is a function of its parameters alone: a question or the phases of a run, a delta, a style, and what its
author says of it. It ends with them as one line of JSON, so that whoever has it can have it written anew and compare
(:mod:`privproj.records.statement_check`). Names of phases are free words that nothing could check, so phases are
numbered instead; the author's words stand under a heading that says so.

It is written for a reader who is no expert. What it says of attackers is an upper bound of what the best one reaches,
read from the whole curve and rounded up (C30).
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from privproj.accounting.queries import compare, solve_epsilon
from privproj.accounting.question import ask_by_name
from privproj.accounting.schedule import Phase, Schedule
from privproj.accounting.spec import (
    KINDS,
    check_keys,
    keys_of,
    mechanism_bound_and_run,
    mechanism_type_of,
    with_unique_keys,
)  # fmt: skip
from privproj.assumptions import ONE_RECORD_OF_A_PERSON, ROUNDING_AS_MEASURED
from privproj.curves.profile import Curve
from privproj.curves.tradeoff import advantage, true_positive_rates
from privproj.errors import InvalidParameter, raise_within
from privproj.extensions.events import event_words
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import find_bound
from privproj.numerics.enclosure import next_up
from privproj.records.ledger import CUT_SHORT, INSECURE, MARKS, Account, planned_releases
from privproj.records.run_file import from_data, phase_from
from privproj.result import Outcome, Result, Status, round_outward
from privproj.runs.sampling import IN_EPOCHS, scheme_of
from privproj.runs.targets import delta_target
from privproj.validation import WHOLE, quoted
from privproj.version import __version__

UNITS = {
    "add-remove": "one record added to or removed from the data",
    "replace": "one record replaced by any other",
    "zero-out": "one record whose contribution is replaced by zero",
}
"""What a statement protects, by neighbouring relation."""

WHETHER = {
    "add-remove": "{it} belonged to the data or not",
    "replace": "{it} belonged to the data or {another} did instead",
    "zero-out": "{it} had a part in the result or counted for nothing",
}
"""What somebody may want to know of a record, or of those of a person, by neighbouring relation."""

NOT_COVERED = (
    "more records of one person than is assumed or promised above",
    "choices made by looking at the data: tuning, early stopping, preprocessing, published test scores",
    "anything else that is released: other models, statistics, logs, checkpoints trained without this accounting",
    "a program that differs from its description, a poor random number generator, timing, rounding of the noise",
)
"""What no statement covers, whatever the numbers are."""

STRENGTH = {
    Status.PROVED: "proved, and asks nothing of the data beyond the clipping",
    Status.CONDITIONAL: "proved as long as the promises below are kept, which the mechanism does not enforce",
}
"""What the status of a bound means, in words."""

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
    wholes = [name for name, kind in KINDS.items() if kind.words == WHOLE.words]
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
    keys = ("phase", "made", *STATED, "notes")
    if set(data) - {"filter"} != set(keys):
        raise InvalidParameter(where, quoted([*data]), f"the keys {', '.join(keys)}")
    if data["notes"] not in ([], [CUT_SHORT]):
        raise InvalidParameter(f"{where}: notes", quoted(data["notes"]), "notes that privproj writes")
    entries, made = data["phase"], data["made"]
    if not isinstance(entries, list) or not isinstance(made, list) or not len(entries) == len(made) > 0:
        raise InvalidParameter(f"{where}: made", quoted(made), "a number of releases for each phase")
    for mark in STATED:
        if type(data[mark]) is not bool:
            raise InvalidParameter(f"{where}: {mark}", quoted(data[mark]), "true or false")
    account = Account()
    for i, (entry, steps) in enumerate(zip(entries, made, strict=True)):
        place = f"{where}: phase {i + 1}"
        if type(steps) is not int or steps < 0:
            raise InvalidParameter(f"{place}: made", quoted(steps), "a whole number of releases")
        opening = {"target": data["filter"]} if "filter" in data and i == 0 else {}
        account = account.opened({"phase": entry, **opening}, place)
        own = phase_from(entry, {}, place).as_dict()
        account = replace(account, phases=(*account.phases[:-1], (own, steps)))
    return replace(account, notes=tuple(data["notes"]), **{mark: data[mark] for mark in STATED})


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
    data: Mapping[str, Any],
    delta: float,
    style: str,
    version: str = __version__,
    said: Mapping[str, Any] | None = None,
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
        entry = with_unique_keys(data["question"], where)
        try:
            check_keys(entry, keys_of(mechanism_type_of(entry), ("mechanism", "bound")))
            mechanism, bound, run = mechanism_bound_and_run(entry)
        except InvalidParameter as error:
            raise_within(error, where)
        own = question_data(mechanism, bound, run)
        question = ask_by_name(mechanism, bound, run)  # pyright: ignore[reportArgumentType]
        result, curve, account = (
            solve_epsilon(question, target),
            question.curve(),
            _account_of_plan(question.phases),
        )
        answers = (row.result for row in compare(mechanism, delta=delta, **run))
        others = [other for other in answers if other and other.value is not None and other.bound != result.bound]
    line = json.dumps(
        {"privproj": version, "style": style, "delta": delta, **({"said": words} if words else {}), **own}
    )
    attacks = (tuple(true_positive_rates(curve, RATES)), advantage(curve)) if result.usable else ((), 1.0)
    return Statement(result, curve, *attacks, tuple(others), account, style, line, version, words)


def _account_of_plan(phases: Iterable[Phase]) -> Account:
    """The account of phases that run to their planned end."""
    entries = (phase.as_dict() for phase in phases)
    return Account(tuple((entry, planned_releases(entry)) for entry in entries))


def sections(statement: Statement) -> list[Section]:
    """What a statement says, heading by heading: first for any reader, the appendix for experts."""
    result = statement.result
    if result.outcome is not Outcome.OK or result.epsilon is None or result.delta is None:
        return [Section("No guarantee", (f"There is no finite epsilon at delta {result.delta!r}: {result.outcome}.",))]
    claim = f"This release is differentially private: {claim_of(result)}."
    unit = f"This is about any two data sets that differ by {_unit_words(result)}."
    return [
        Section("What is protected, and against whom", _what_is_protected(statement)),
        Section("Guarantee", (claim, unit, _meaning_of_epsilon(result.epsilon, result.delta))),
        Section("What the best attack could reach", _best_attack(statement), items=True),
        Section("What was done", _what_was_done(result), items=True),
        Section("What it rests on", _what_it_rests_on(result), items=True),
        Section("What is not covered", NOT_COVERED, items=True),
        Section("In the words of its author, which nobody has checked", tuple(_author_words(statement)), items=True),
        *_appendix(statement),
    ]


def _what_is_protected(statement: Statement) -> tuple[str, ...]:
    """Three sentences: what is protected and how well, against whom, and what is not; or that nothing is."""
    if statement.account.insecure:
        return (f"Nothing is protected here: {INSECURE}.", "What follows would be true of noise that nobody knows.")
    size, whether = statement.result.run["group_size"], WHETHER[str(statement.result.run["relation"])]
    what, it, another = "every single record", "it", "another one"
    if size != 1:
        what, it, another = f"every person with at most {size} records", "these", "others"
    # (1 + A)/2: the share of right guesses of a test with advantage A, from even odds.
    right = _percent_rounded_up(min(1.0, next_up(0.5 + 0.5 * statement.advantage)))
    return (
        f"Protected is {what}: whoever wants to know whether {whether.format(it=it, another=another)}, and holds "
        f"both for equally likely, finds the right answer in at most {right} of cases, and by tossing a coin in 50 %.",
        "That holds against anyone who sees everything that was released, now or later, whatever they compute and "
        "whatever else they know, be it all other records, but for the random numbers that were kept secret.",
        "Not protected is what the release would show just as well without that record, such as a habit that many "
        'share; and all of this holds only as long as every line under "What it rests on" is true.',
    )


def _meaning_of_epsilon(epsilon: float, delta: float) -> str:
    """What an epsilon of this size means as a factor, rounded up, without calling it good or bad."""
    # Pr[S] <= e^eps Pr'[S] + delta (C1)
    factor = next_up(math.exp(min(epsilon, 700.0)))
    if factor > LARGEST_FACTOR:
        return "By itself this epsilon limits next to nothing: it allows a factor of more than a billion."
    shown = round_outward(factor) if factor < 1000.0 else f"{float(round_outward(factor)):,.0f}"
    chance = f" (1 in {int(1 / Decimal(repr(delta))):,})" if LEAST_CHANCE <= delta <= 0.1 else ""
    return (
        f"Whatever anyone concludes or does because of the release: with either of the two it is at most {shown} times "
        f"as likely as with the other, plus {delta!r}{chance}."
    )


def _best_attack(statement: Statement) -> tuple[str, ...]:
    """What no attack exceeds: rates and odds at rare false alarms, and the advantage, each rounded up."""
    them = "records" if statement.result.run["group_size"] == 1 else "persons"
    # From even odds a record with an alarm is inside at odds of b/a, by the rates b of true and a of false alarms.
    rates = (
        f"With one false alarm in {1 / rate:.0f} {them} outside of the data it finds at most "
        f"{_percent_rounded_up(most)} of those inside (true positive rate at false positive rate {100.0 * rate:g} %): "
        f"odds of 1 to 1 before an alarm are at most {_rounded_up(most, 1 / Decimal(str(rate)))} to 1 after it."
        for rate, most in zip(RATES, statement.rates, strict=True)
    )
    return (
        *rates,
        "True minus false positive rate of any attack, its advantage, is at most "
        f"{_percent_rounded_up(statement.advantage)}.",
        "Each number is an upper bound, rounded up: no attack reaches more as long as this statement holds.",
    )


def _author_words(statement: Statement) -> Iterable[str]:
    """The fields and digests that were given, and the names of those that were not."""
    yield from (f"{name}: {statement.said[name]}" for name in FIELDS if name in statement.said)
    yield from (f"SHA-256 of the {name}: {statement.said[name]}" for name in DIGESTS if name in statement.said)
    missing = [name for name in (*FIELDS, *DIGESTS) if name not in statement.said]
    if missing:
        yield f"not given: {', '.join(missing)}"


def _appendix(statement: Statement) -> list[Section]:
    """What other bounds say, for experts; nothing where none of them answers."""
    lines = (
        f"epsilon {round_outward(float(other.value or 0.0))} by the bound {other.bound} ({other.status}"
        f"{''.join(f'; {promise}' for promise in other.promises)})"
        for other in statement.others
    )
    title = "Appendix: other bounds on the same question, not claimed"
    return [Section(title, tuple(lines), items=True)] if statement.others else []


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


def _unit_words(result: Result) -> str:
    """By what neighbouring data sets differ: one record, or as many as a person is promised to have at most."""
    size, unit = result.run["group_size"], UNITS[str(result.run["relation"])]
    return unit if size == 1 else f"at most {size} changes of this kind: {unit}"


def assumed_of_persons(result: Result) -> tuple[str, ...]:
    """What a reader assumes of persons who takes a number about records for one about them; a group is a promise."""
    return (ONE_RECORD_OF_A_PERSON,) if result.run["group_size"] == 1 else ()


def _what_was_done(result: Result) -> tuple[str, ...]:
    """Mechanism, parameters and run in words, or the phases of a run."""
    phases = result.mechanism.get("phases")
    if isinstance(phases, list):
        kept: Any = result.mechanism.get("filter")
        items = phases if kept is None else [*phases, {"filter": "fixed in advance", **kept}]
        return tuple(
            ", ".join(f"{key} {event_words(value) if key == 'event' else value}" for key, value in item.items())
            for item in items
        )
    run = result.run
    hidden = ("assumes", "name")
    given = ", ".join(f"{key} {value}" for key, value in result.mechanism.items() if key not in hidden)
    sampling = "each on the whole data set"
    if run["sampling"] in IN_EPOCHS:
        return (
            f"mechanism {result.mechanism['name']}: {given}",
            f"epochs: {run['steps']}, {scheme_of(run['sampling']).words(run)}",
        )
    if run["sampling"] is not None:
        rate: Any = run["sampling_rate"]
        sampling = f"each on a {run['sampling']} sample at rate {rate!r} ({100.0 * rate:.3g} % of the records)"
        if "max_batch_size" in run:
            sampling += (
                f", cut at {run['max_batch_size']} of {run['dataset_size']} records, the surplus dropped at random"
            )
    return (f"mechanism {result.mechanism['name']}: {given}", f"releases: {run['steps']}, {sampling}")


def _asked_of(promise: str) -> str:
    """What a promise is about: the data, but for that on the rounding of an accountant."""
    return "promise on the accountant" if promise == ROUNDING_AS_MEASURED else "promise on the data"


def _what_it_rests_on(result: Result) -> tuple[str, ...]:
    """Bound, strength, promises, assumptions and notes in words."""
    strength = STRENGTH.get(result.status, str(result.status))
    return (
        f"bound {result.bound} ({result.source}): {strength}",
        *(f"{_asked_of(promise)}: {promise}" for promise in result.promises),
        *(f"assumed of the data: {words}" for words in assumed_of_persons(result)),
        *(f"assumed of the program: {words}" for words in result.assumes),
        *(f"note: {warning}" for warning in result.warnings),
    )
