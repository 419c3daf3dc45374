"""The accountant: from a mechanism, a run and a bound to an epsilon or a delta, with all it rests on."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack

from privproj.assumptions import (
    FRESH_PROJECTION_PER_BATCH,
    INDEPENDENT_LAYER_PROJECTIONS,
    PROMISE_OF_EVERY_BATCH,
    REPLACE_SENSITIVITY,
)
from privproj.bound import Bound, Form
from privproj.bounds import bounds_of, find
from privproj.errors import InvalidParameter, PrecisionLimit, PrivprojError, Refused, Unanswered
from privproj.inversion import LEAST_LOG_VALUE, delta_value, log10_value, read_epsilon, read_log_delta
from privproj.mechanisms import Mechanism, NoisyMechanism, privacy_epsilon, truth
from privproj.numerics import Enclosure
from privproj.profile import Curve, PrivacyProfile
from privproj.relations import NeighbouringRelation, Sampling
from privproj.result import Outcome, Result, Side, Status
from privproj.runs import Run, RunOptions
from privproj.target import Target, target_of


@dataclass(frozen=True)
class Question:
    """One mechanism, one run, one bound: everything that fixes the curve to be read."""

    mechanism: Mechanism
    run: Run
    bound: Bound
    allow_refuted: bool = False

    def check(self) -> None:
        """Raise unless the bound answers this question soundly."""
        bound, relation = self.bound, self.run.relation
        if not bound.guarantees(self.mechanism) and not self.allow_refuted:
            raise Refused(f"{bound.name} is {self.status}, not a guarantee: {bound.reason}")
        self.run.check_pair()
        if self.run.sampling == "poisson" and not self.mechanism.poisson:
            raise Refused(
                f"no amplification theorem for {self.mechanism.name} under sampling=poisson; sampling=fixed has one"
            )
        missing = bound.needs(self.mechanism)
        if missing:
            raise InvalidParameter("change_rank", "nothing", f"{missing} for {bound.name}")
        if relation not in bound.relations:
            allowed = ", ".join(bound.relations)
            raise Refused(f"{bound.name} does not hold under relation={relation}; it holds under {allowed}")
        if self.run.group_size > 1 and not bound.groups:
            raise Refused(f"{bound.name} is about one record; group_size={self.run.group_size} changes more than that")
        if self.run.split is not None and not bound.splits:
            raise InvalidParameter("split", self.run.split, f"no split, since {bound.name} does not divide delta")
        reason = bound.refuses(self.mechanism)
        if reason:
            raise Refused(reason)
        partition = self.run.sampling is Sampling.PARTITION
        if self.reuses_projection and (partition or self.run.steps > 1):
            many = "every batch of an epoch" if partition else f"each of the {self.run.steps} releases"
            raise Refused(
                f"{bound.name} needs a fresh projection for {many}: with a fixed one "
                f"later releases can carry the whole sensitivity; {any_projection(self.mechanism)}"
            )

    @property
    def reuses_projection(self) -> bool:
        """True for a projection that is drawn once, where the bound needs a fresh one for each release."""
        return not self.bound.any_projection and mechanism_fixed(self.mechanism)

    def release(self) -> tuple[Form, Run]:
        """The bound of one release in its own representation, and the run it is for."""
        self.check()
        mechanism, run = self.mechanism, self.run
        if run.group_size > 1:
            mechanism = mechanism.for_group(run.group_size)
            run = replace(run, group_size=1, sampling_rate=run.group_rate)
        if run.relation is NeighbouringRelation.REPLACE:
            mechanism = mechanism.for_replacement()
        return self.bound.form(mechanism), run

    def curve(self) -> Curve:
        """The bound of the whole run."""
        form, run = self.release()
        try:
            return composed(form, run) if isinstance(form, PrivacyProfile) else form.over(run)
        except Refused as error:
            raise Refused(f"{self.bound.name}: {error}") from None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any number for this question should know."""
        return (*self.mechanism.notes(), *self.run.notes, *self.bound.notes(self.mechanism))

    @property
    def promises(self) -> tuple[str, ...]:
        """What the data must keep."""
        group = self.run.group_size
        person = (f"one person contributes at most {group} records, each clipped on its own",) if group > 1 else ()
        return (*self.bound.promises_of(self.mechanism), *person)

    @property
    def mechanism_assumes(self) -> tuple[str, ...]:
        """What the bound takes for granted about one release of the mechanism."""
        layers = (INDEPENDENT_LAYER_PROJECTIONS,) if self.bound.independent_layers(self.mechanism) else ()
        return (*self.bound.assumes(type(self.mechanism)), *layers)

    @property
    def run_assumes(self) -> tuple[str, ...]:
        """What the number takes for granted about the run."""
        run, values = self.run, self.bound.promises_values(self.mechanism)
        projects = hasattr(self.mechanism, "fixed_projection") and not self.bound.any_projection
        scaled = isinstance(self.mechanism, NoisyMechanism) and not values
        triggers = (
            (FRESH_PROJECTION_PER_BATCH, projects and run.sampling is Sampling.PARTITION),
            (PROMISE_OF_EVERY_BATCH, values and run.in_batches),
            (REPLACE_SENSITIVITY, scaled and run.relation is NeighbouringRelation.REPLACE),
        )
        return (*run.assumes, *(words for words, present in triggers if present))

    def result(self, quantity: str, value: float | None, lower: float | None, **details: object) -> Result:
        """A result with everything that does not depend on the quantity filled in."""
        mechanism = self.mechanism
        fields: dict = {
            "quantity": quantity,
            "value": value,
            "lower": lower,
            "upper": value,
            "side": Side.UPPER,
            "mechanism": {
                "name": mechanism.name,
                **mechanism.parameters(),
                "assumes": self.mechanism_assumes,
            },
            "run": {**self.run.parameters(), "assumes": self.run_assumes},
            "bound": self.bound.name,
            "bound_version": self.bound.version,
            "status": self.status,
            "promises": self.promises,
            "source": self.bound.source,
            "outcome": Outcome.OK,
            "noise_multiplier": mechanism.noise_multiplier,
            "warnings": self.notes,
        }
        found = {**fields, **details}
        if not self.bound.guarantees(self.mechanism) and value is not None:
            warnings = (*found["warnings"], f"NOT A GUARANTEE: {self.bound.reason}")
            found.update(side=Side.NONE, outcome=Outcome.REFUSED, warnings=warnings, lower=None, upper=None)
        return Result(**found)

    @property
    def status(self) -> Status:
        """The status of the bound for these parameters; what one person contributes is a promise too."""
        status = self.bound.status_for(self.mechanism)
        return Status.CONDITIONAL if self.run.group_size > 1 and self.bound.guarantees(self.mechanism) else status

    def side(self, curve: Curve) -> Side:
        """Exact only where the bound is the truth and nothing but a closed form was involved."""
        exact = self.bound.exact and self.bound.attained(self.mechanism)
        return Side.EXACT if exact and not numerics_of(curve) else Side.UPPER

    def answer(self, quantity: str, read: Callable[[], Result], **target: float | None) -> Result:
        """``read()``; an error that leaves a well-posed question unanswered carries the result without a value."""
        try:
            return read()
        except Unanswered as error:
            outcome = Outcome(error.outcome)
            error.result = self.result(quantity, None, None, outcome=outcome, warnings=(str(error),), **target)
            raise


def composed(profile: PrivacyProfile, run: Run) -> Curve:
    """The curve of a run of releases with this profile: as it is, in closed form, or on a grid."""
    if run.single:
        return profile
    if run.sampling_rate == 1.0 and profile.composed is not None:
        return profile.composed(run.steps)
    if run.sampling_rate < 1.0 and not profile.amplifies:
        raise Refused("this bound has no amplification by subsampling in its own terms; expected sampling_rate=1")
    if run.steps == 1 and run.discretization is None and run.composer == "privproj":
        return profile.sampled(run.sampling_rate)
    from privproj import pld

    return pld.composed(profile, run)


def ask(mechanism: Mechanism, bound: str | None, run: RunOptions) -> Question:
    """The question put by keyword arguments."""
    return question_of(mechanism, find(type(mechanism), bound), run)


def question_of(mechanism: Mechanism, bound: Bound, run: RunOptions) -> Question:
    """The question, under the bound's or the mechanism's own relation where none is given."""
    options: Any = dict(run)
    allowed = truth("allow_refuted", options.pop("allow_refuted", False))
    if options.get("relation") is None:
        options["relation"] = bound.default_relation or mechanism.default_relation
    return Question(mechanism, Run(**options), bound, allowed)


def epsilon(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """The smallest epsilon that ``bound`` proves at ``delta`` (or ``10^log10_delta``), rounded up.

    ``value`` is ``inf`` (outcome vacuous) if the bound proves no finite epsilon there. Raises
    :class:`InvalidParameter` for a value outside its domain and :class:`Refused` where the bound proves nothing.
    """
    question, target = ask(mechanism, bound, run), target_of(delta, log10_delta)
    return question.answer("epsilon", lambda: epsilon_of(question, target), **target.fields())


def epsilon_of(question: Question, target: Target) -> Result:
    """:func:`epsilon` of a question already put."""
    curve = question.curve()
    found = read_epsilon(curve, target)
    lower = found.lower if math.isfinite(found.lower) and found.lower >= 0.0 else None
    result_details: dict = {**target.fields(), "epsilon": found.upper}
    result_details.update(numerics=numerics_of(curve), side=question.side(curve))
    if found.upper == math.inf:
        remedy = question.mechanism.remedy
        note = f"this bound proves no finite epsilon at this delta; expected a larger delta or {remedy}"
        result_details.update(outcome=Outcome.VACUOUS, warnings=(*question.notes, note))
    if found.upper == 0.0:
        note = "delta alone already covers the total variation distance of neighbours, so epsilon 0 is met"
        result_details["warnings"] = (*question.notes, note)
    return question.result("epsilon", found.upper, lower, **result_details)


def delta(mechanism: Mechanism, *, epsilon: float, bound: str | None = None, **run: Unpack[RunOptions]) -> Result:
    """The smallest delta that ``bound`` proves at ``epsilon >= 0``, rounded up.

    A delta of 1 says nothing (outcome vacuous). Below 1e-300 ``value`` stays there, an upper bound, and
    ``log10_delta`` carries the size. Raises like :func:`epsilon`.
    """
    question, target = ask(mechanism, bound, run), privacy_epsilon(epsilon, zero=True)
    return question.answer("delta", lambda: delta_of(question, target), epsilon=target)


def delta_of(question: Question, epsilon: float) -> Result:
    """:func:`delta` of a question already put."""
    curve = question.curve()
    floor = getattr(curve, "floor", 0.0)
    if floor and curve.log_delta(epsilon).upper <= math.log(floor):
        raise PrecisionLimit(
            f"the composed delta at epsilon {epsilon:g} is below {floor:.1e}, what the composition can tell from its "
            "rounding; use a Renyi bound (mixture-rdp, rdp)"
        )
    found = read_log_delta(curve, epsilon)
    value, lower = probability_ends(found)
    return question.result(
        "delta",
        value,
        lower,
        side=question.side(curve) if found.upper > LEAST_LOG_VALUE else Side.UPPER,
        epsilon=epsilon,
        delta=value,
        numerics=numerics_of(curve),
        log10_delta=log10_value(found.upper),
        outcome=Outcome.VACUOUS if value >= 1.0 else Outcome.OK,
    )


def numerics_of(curve: Curve) -> dict[str, object]:
    """How the curve was computed, where it says so."""
    return dict(getattr(curve, "numerics", {}))


def any_projection(mechanism: Mechanism) -> str:
    """What holds for a reused projection."""
    names = [bound.name for bound in bounds_of(type(mechanism)) if bound.any_projection]
    return " or ".join(f"--bound {name} holds for any projection" for name in names) or "no bound here allows that"


def mechanism_fixed(mechanism: Mechanism) -> bool:
    """True for a projection that is drawn once and reused."""
    return bool(getattr(mechanism, "fixed_projection", False))


def probability_ends(log_value: Enclosure) -> tuple[float, float | None]:
    """``(upper, lower)`` as numbers: never 0, the lower end None where it is unknown or below 1e-300."""
    lower = math.exp(log_value.lower) if log_value.lower > LEAST_LOG_VALUE else None
    return delta_value(log_value.upper), lower


@dataclass(frozen=True)
class Comparison:
    """One row of :func:`compare`: a bound with its result, or the reason why it gives none."""

    bound: Bound
    result: Result | None
    reason: str = ""


def compare(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    **run: Unpack[RunOptions],
) -> list[Comparison]:
    """Every bound of the mechanism on one question (give ``delta`` or ``epsilon``).

    Promise-free bounds first, then conditional ones, each tightest first; last those that do not apply, with reasons.
    """
    if (delta is None) == (epsilon is None):
        raise InvalidParameter("delta", delta, "exactly one of delta and epsilon")
    if delta is not None:
        target = target_of(delta, None)
        quantity, read, given = "epsilon", lambda question: epsilon_of(question, target), target.fields()
    else:
        at = privacy_epsilon(epsilon, zero=True)
        quantity, read, given = "delta", lambda question: delta_of(question, at), {"epsilon": at}
    rows = []
    for bound in bounds_of(type(mechanism)):
        question = question_of(mechanism, bound, run)
        fitting = question.run if bound.splits else replace(question.run, split=None)
        rows.append(compared(replace(question, run=fitting), quantity, read, given))
    return sorted(rows, key=comparison_key)


def compared(
    question: Question, quantity: str, read: Callable[[Question], Result], target: dict[str, Any]
) -> Comparison:
    """One row: the answer, or the reason why there is none."""
    try:
        return Comparison(question.bound, question.answer(quantity, lambda: read(question), **target))
    except Unanswered as error:
        return Comparison(question.bound, error.result, str(error))
    except PrivprojError as error:
        return Comparison(question.bound, None, str(error))


def comparison_key(row: Comparison) -> tuple[int, float]:
    """Rows in the order of :func:`compare`."""
    if row.result is None or row.result.value is None:
        return 2, 0.0
    status = {Status.PROVED: 0, Status.CONDITIONAL: 1}.get(row.result.status, 3)
    return status, float(row.result.log10_delta or 0.0) if (row.result.quantity == "delta") else float(row.result.value)
