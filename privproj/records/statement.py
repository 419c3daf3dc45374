"""A privacy statement in plain words: what was protected, how well, what that rests on, and what is not covered.

A statement is a function of its parameters alone: a question or the phases of a run, a delta and a style. It ends with
them as one line of JSON, so that whoever has it can have it written anew and compare
(:mod:`privproj.records.statement_check`). Names of phases are free words that nothing could check, so phases are
numbered instead.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from privproj.accounting.attack_risk import gaussian_mu
from privproj.accounting.queries import Comparison, compare, solve_epsilon
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
from privproj.errors import InvalidParameter, PrivprojError, raise_within
from privproj.extensions.events import event_words
from privproj.extensions.gaussian_fit import fit_gaussian
from privproj.mechanisms import Mechanism
from privproj.mechanisms.registry import find_bound
from privproj.records.ledger import CUT_SHORT, MARKS, Account, planned_releases
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

MU_SLACK = 1e-9
"""The slack of the one mu that a statement names (C30). Contract."""

MU_ROOM = 3e-4
"""Relative room above the mu that was found: another machine may read a curve elsewhere, and find one that is larger by
a relative 1e-4. Soundness."""

RATES = (0.001, 0.01, 0.1)
"""The false positive rates at which a statement names an attacker's success."""


@dataclass(frozen=True)
class Section:
    """A heading with lines of text, which are items of a list if ``items``, else sentences."""

    title: str
    lines: tuple[str, ...]
    items: bool = False


def _meaning_of_epsilon(epsilon: float) -> str:
    """What an epsilon of this size means, without calling it good or bad."""
    return (
        "Whatever anyone concludes from the release: the probability of concluding it changes by a factor of at most "
        f"e^{round_outward(epsilon)} through one unit of privacy, and by at most delta more."
    )


STYLES = ("text", "markdown", "html")
"""How a statement can be written."""

STATED = (*MARKS, "alone")
"""What the data of an account say to be true or false. Contract."""

PARAMETERS = '{"privproj": '
"""How the line of a statement begins that has its parameters. Contract."""


@dataclass(frozen=True)
class Statement:
    """The numbers of a statement and what they rest on.

    ``account`` counts every release that it is about. ``line`` holds its parameters as JSON. ``mu`` is 0 or infinite
    where it says nothing. ``factor`` is 1; a statement whose computed numbers are all times a factor shows how far
    rounding can move its words.
    """

    result: Result
    curve: Curve
    rates: tuple[float, ...]
    advantage: float
    mu: float
    rows: tuple[Comparison, ...]
    account: Account
    style: str
    line: str
    version: str
    factor: float = 1.0

    def shifted(self, factor: float) -> "Statement":
        """The same statement with every computed number times a factor."""
        rows = (replace(row, result=_times(row.result, factor)) for row in self.rows)
        return replace(
            self,
            result=_times(self.result, factor),
            rates=tuple(min(1.0, rate * factor) for rate in self.rates),
            advantage=min(1.0, self.advantage * factor),
            mu=self.mu * (1.0 + math.copysign(MU_ROOM, factor - 1.0) if factor != 1.0 else 1.0),
            rows=tuple(rows),
            factor=factor,
        )


def _times(result: Result | None, factor: float) -> Any:
    """A result that gives epsilon, with epsilon times a factor."""
    if result is None or result.value is None:
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


def statement_from(data: Mapping[str, Any], delta: float, style: str, version: str = __version__) -> Statement:
    """The statement that these parameters give: the data of one question, a run or an account, computed.

    ``data`` comes from :func:`question_data`, :func:`run_data` or :func:`account_data`, or is read from a file; it is
    brought into their form first, and nothing else enters. Raises :class:`InvalidParameter` for an unknown key or a
    value outside its domain, and whatever the query raises.
    """
    where, target = "statement", delta_target(delta, None)
    if "run" in data:
        schedule = from_data(data["run"], where)
        own = run_data(schedule)
        schedule = from_data(own["run"], where)
        result, curve, rows = schedule.epsilon(delta=delta), schedule.curve(), []
        account = _account_of_plan(schedule.phases)
    elif "ledger" in data:
        account = _account_from(data["ledger"], where)
        own = account_data(account)
        result, curve, rows = account.epsilon(delta), account.curve(), []
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
        rows = compare(mechanism, delta=delta, **run)
    line = json.dumps({"privproj": version, "style": style, "delta": delta, **own})
    attacks = (tuple(true_positive_rates(curve, RATES)), advantage(curve)) if result.usable else ((), 1.0)
    mu = _mu_of(curve) if result.usable else math.inf
    return Statement(result, curve, *attacks, mu, tuple(rows), account, style, line, version)


def _account_of_plan(phases: Iterable[Phase]) -> Account:
    """The account of phases that run to their planned end."""
    entries = (phase.as_dict() for phase in phases)
    return Account(tuple((entry, planned_releases(entry)) for entry in entries))


def _mu_of(curve: Curve) -> float:
    """A ``mu`` of the curve at the slack, with room for other machines; ``inf`` where none is known (C30)."""
    known = gaussian_mu(curve)
    try:
        found = fit_gaussian(curve, delta_target(MU_SLACK, None)).mu.upper if known is None else known
    except PrivprojError:
        return math.inf
    return found * (1.0 + MU_ROOM)


def sections(statement: Statement) -> list[Section]:
    """What a statement says, heading by heading."""
    result = statement.result
    if result.outcome is not Outcome.OK or result.epsilon is None or result.delta is None:
        return [Section("No guarantee", (f"There is no finite epsilon at delta {result.delta!r}: {result.outcome}.",))]
    attacks = [
        f"A membership attack with a false positive rate of {100.0 * rate:g} % has a true positive rate of at most "
        f"{_percent_rounded_up(found)}."
        for rate, found in zip(RATES, statement.rates, strict=True)
    ]
    most = _percent_rounded_up(statement.advantage)
    whole = f"True minus false positive rate of any membership attack is at most {most}."
    one = _mu_words(statement.mu)
    return [
        Section(
            "Guarantee",
            (f"This release is differentially private: {claim_of(result)}.", _meaning_of_epsilon(result.epsilon)),
        ),
        Section("Unit of privacy", (f"Neighbouring data sets differ by {_unit_words(result)}.",)),
        Section("What was done", _what_was_done(result), items=True),
        Section("What it rests on", _what_it_rests_on(result), items=True),
        Section("What it means for attacks", (*attacks, whole, *one), items=True),
        Section("What is not covered", NOT_COVERED, items=True),
    ]


def _percent_rounded_up(share: float) -> str:
    """A share in per cent with three significant digits, rounded up."""
    percent = Context(prec=3, rounding=ROUND_CEILING).multiply(Decimal(share), 100)
    return f"{float(percent):.3g} %"


def _mu_words(mu: float) -> tuple[str, ...]:
    """What one mu says, rounded up; nothing where it says nothing."""
    if not 0.0 < mu < math.inf:
        return ()
    shown = Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(mu))
    return (
        f"No attack tells the two data sets apart better than two normal variables of deviation 1 at distance "
        f"{float(shown):.3g}, but for a share of {MU_SLACK:g} (mu of Gaussian differential privacy).",
    )


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
