"""A question: the phases of a run with all that their answer rests on; and its answers forwards, epsilon and delta."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar, Unpack

from privproj.accounting.lower_bound import (
    known_size,
    remark_on_batches,
    warnings_of_delta,
    with_alternatives,
    with_lower_bound,
)
from privproj.accounting.phase import Phase, cut_batches, numerics_of, phase_for
from privproj.assumptions import FIXED_SCHEDULES, Requirement, fixed_schedule
from privproj.composition.compose import compose_phases
from privproj.errors import PrecisionLimit, Unanswered, within
from privproj.mechanisms import Mechanism
from privproj.profiles.conversion import LEAST_LOG_VALUE, delta_value, log10_value, read_epsilon, read_log_delta
from privproj.profiles.privacy_profile import Curve
from privproj.result import Outcome, Result, Side, Status
from privproj.run import Run, RunOptions
from privproj.targets import AnyTarget, EpsilonTarget, Target, delta_target, epsilon_target

Aim = TypeVar("Aim", bound=AnyTarget)

SOLVED_FOR = {
    "sigma": ("noise_multiplier",),
    "rank": ("rank",),
    "misalignment": ("misalignment", "alignment"),
    "steps": ("steps", "epochs"),
    "rate": ("sampling_rate", "batch_size", "dataset_size", "epochs", "max_batch_size"),
}
"""For every calibration: the names of the parameter that it finds, which must therefore not be given."""

ZERO_EPSILON_NOTE = "delta alone already covers the total variation distance of neighbours, so epsilon 0 is met"
"""Said beside an epsilon of 0. Contract."""


@dataclass(frozen=True)
class Question:
    """Phases of one run, one or several, accounted jointly: everything that fixes the curve to be read.

    That of one phase is answered in the words of that phase, unless it is a schedule. ``discretization`` is that of the
    joint composition; None leaves it to the only phase. ``assumes`` are further sentences that every number takes for
    granted.
    """

    phases: tuple[Phase, ...]
    discretization: float | None = None
    assumes: tuple[str, ...] = ()
    is_plain: ClassVar[bool] = True

    @property
    def only(self) -> Phase:
        """The phase of a question that has one."""
        (phase,) = self.phases
        return phase

    def with_mechanism(self, **changes: object) -> "Question":
        """The question with these parameters of the mechanism of its only phase changed."""
        return replace(self, phases=(self.only.with_mechanism(**changes),))

    def with_run(self, **changes: object) -> "Question":
        """The question with these parameters of the run of each phase changed."""
        return replace(self, phases=tuple(phase.with_run(**changes) for phase in self.phases))

    def check(self) -> None:
        """Raise :class:`InvalidParameter` or :class:`Refused` unless each bound answers for its phase soundly."""
        for phase in self.phases:
            phase.check()

    def merged(self) -> list[Phase]:
        """The phases, those that differ in their steps alone as one, composed as the question says."""
        if len(self.phases) == 1:
            return [*self.phases]
        merged: dict[Phase, list[Phase]] = {}
        for phase in self.phases:
            alike = replace(phase, name="", planned=False, run=replace(phase.run, steps=1))
            merged.setdefault(alike, []).append(phase)
        return [some[0].with_run(steps=sum(phase.run.steps for phase in some)) for some in merged.values()]

    @property
    def asked_step(self) -> float | None:
        """The step of the grid of losses that was asked for, in nats, or None."""
        if self.discretization is None and len(self.phases) == 1:
            return self.only.run.discretization
        return self.discretization

    def curve(self) -> Curve:
        """The joint curve, delta against epsilon: of one phase as its bound has it, of several on one grid.

        For persons with several records it is the smaller of that and of group privacy of the curve of one record.
        Raises :class:`InvalidParameter` and :class:`Refused` as :meth:`Phase.curve` and :meth:`Phase.profile` do.
        """
        size = self.phases[0].run.group_size
        if size == 1:
            return self._composed()
        from privproj.composition.group_privacy import curve_of_group

        is_true = all(phase.is_truth for phase in self.phases)
        return curve_of_group(self._composed, self.with_run(group_size=1)._composed, size, is_true=is_true)

    def _composed(self) -> Curve:
        """The joint curve of what the phases release."""
        phases, step = self.merged(), self.asked_step
        if len(phases) > 1:
            uncut = compose_phases([phase.profile() for phase in phases], step)
            return cut_batches(uncut, phases)
        phase = phases[0]
        if step != phase.run.discretization:
            phase = phase.with_run(discretization=step)
        with nullcontext() if self.is_plain else within(f"phase {phase.name}"):
            return phase.curve()

    def side(self, curve: Curve) -> Side:
        """On which side of the truth the numbers lie that are read from this curve: for several phases above it."""
        phases = self.merged()
        return phases[0].side(curve) if len(phases) == 1 else Side.UPPER

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any number for this question should know, in words, each note once."""
        return each_once(note for phase in self.phases for note in phase.notes)

    @property
    def remedy(self) -> str:
        """What makes epsilon smaller in any of the phases, in words for a message."""
        caps = ("a larger max_batch_size" for phase in self.phases if phase.run.max_batch_size is not None)
        return " or ".join(each_once((*(phase.mechanism.remedy for phase in self.phases), *caps)))

    @property
    def run_assumes(self) -> tuple[str, ...]:
        """What the joint number takes for granted about the phases and their order."""
        if self.is_plain:
            return (*self.assumes, *self.only.run_assumes)
        # One plan of all phases: the sentence of a phase whose clip adapts stands for that of the others.
        plan = fixed_schedule(adapts=any(phase.mechanism.adapts_clip for phase in self.phases))
        planned = (plan,) if len(self.phases) > 1 or any(phase.run.is_planned for phase in self.phases) else ()
        of_phases = (words for phase in self.phases for words in phase.run_assumes if words not in FIXED_SCHEDULES)
        return each_once((*self.assumes, *of_phases, *planned))

    def named(self) -> dict[str, Any]:
        """The fields of a result that say what was asked: mechanism, run, bound and source, in words and values."""
        phases, words = self.phases, self.run_assumes
        assumes = each_once(words for phase in phases for words in phase.mechanism_assumes)
        run = phases[0].run.parameters() if len(phases) == 1 else run_of_several(phases)
        fields: dict[str, Any] = {
            "run": {**run, "assumes": words},
            "source": "; ".join(each_once(phase.bound.citation for phase in phases)),
        }
        if self.is_plain:
            mechanism = self.only.mechanism
            released = {"name": mechanism.name, **mechanism.parameters()}
            fields |= {"bound": self.only.bound.name, "noise_multiplier": mechanism.noise_multiplier}
        else:
            released = {"name": "run", "phases": [phase.as_dict() for phase in phases]}
            fields["bound"] = " + ".join(each_once(f"{phase.mechanism.name}.{phase.bound.name}" for phase in phases))
        return {"mechanism": {**released, "assumes": assumes}, **fields}

    def result(
        self, quantity: str, value: float | None, lower: float | Callable[[], float | None] | None, **details: object
    ) -> Result:
        """A result in which everything that does not depend on the quantity is filled in.

        A ``lower`` end that costs as much as the answer is a function, which is called when the end is first read. The
        status is the weakest of the phases. A value of a refuted bound is marked here: side none, outcome refused, and
        a warning.
        """
        phases = self.phases
        fields: dict[str, Any] = {
            "quantity": quantity,
            "value": value,
            "lower": None if callable(lower) else lower,
            "upper": value,
            "side": Side.UPPER,
            **self.named(),
            "bound_version": max((phase.bound.version for phase in phases), default=1),
            "status": max((phase.status for phase in phases), key=list(Status).index, default=Status.PROVED),
            "promises": each_once(promise for phase in phases for promise in phase.promises),
            "outcome": Outcome.OK,
            "warnings": self.notes,
        }
        remarked = self.remarked({**fields, **details})
        remarked["warnings"] += warnings_of_delta(known_size(phases), remarked.get("delta"))
        refuted = each_once(phase.bound.reason for phase in phases if not phase.is_guarantee)
        if refuted and value is not None:
            warnings = (*remarked["warnings"], *(f"NOT A GUARANTEE: {reason}" for reason in refuted))
            remarked.update(side=Side.NONE, outcome=Outcome.REFUSED, warnings=warnings, lower=None, upper=None)
        elif callable(lower):
            return Result(**remarked).completed_by(("lower",), lambda answered: replace(answered, lower=lower()))
        return Result(**remarked)

    def remarked(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of a result with what there is to say of its composer and of its batches."""
        return remark_on_batches(self, remark_on_composer(self.asked_step, fields))


def run_of_several(phases: Sequence[Phase]) -> dict[str, object]:
    """The run of phases in values, which have no rate in common."""
    shared = phases[0].run.parameters() if phases else {}
    run = {**Run().parameters(), **{name: shared[name] for name in ("relation", "group_size") if name in shared}}
    run |= {"steps": sum(phase.run.steps for phase in phases), "sampling_rate": None, "sampling": None}
    return run | {"public_size": any(phase.run.public_size for phase in phases)}


def each_once(items: Iterable[str]) -> tuple[str, ...]:
    """The items without repetitions, in the order of their first occurrence."""
    return tuple(dict.fromkeys(items))


def answer(question: Question, quantity: str, solve: Callable[[Question, Aim], Result], target: Aim) -> Result:
    """Return ``solve(question, target)``, the result for this quantity.

    An error that leaves a well-posed question unanswered carries the result without a value.
    """
    try:
        return solve(question, target)
    except Unanswered as error:
        fields = {"outcome": Outcome(error.outcome), "warnings": (str(error),), **target.fields()}
        error.result = question.result(quantity, None, None, **fields)
        raise


def ask(question: Question, quantity: str, solve: Callable[[Question, Aim], Result], target: Aim) -> Result:
    """The :func:`answer` with what stands beside it: the truth from below, and the same number for other batches."""
    result = with_lower_bound(question.phases, answer(question, quantity, solve, target))
    return with_alternatives(question, result, lambda other: solve(other, target))


def remark_on_composer(step: float | None, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a result with what there is to say of its composer: a measured rounding, a step without effect.

    A number whose rounding is measured is conditional. ``step`` is that of the grid that was asked for; a calibration
    has numerics where there is one.
    """
    if "numerics" not in fields or fields["value"] is None:
        return fields
    numerics = fields["numerics"]
    if numerics.get("rounding") and Requirement.MEASURED_ROUNDING not in fields["promises"]:
        weaker = Status.CONDITIONAL if fields["status"] is Status.PROVED else fields["status"]
        fields = {**fields, "status": weaker, "promises": (*fields["promises"], Requirement.MEASURED_ROUNDING)}
    if step is not None and "grid_step" not in numerics:
        note = f"discretization={step:g} had no effect on {fields['bound']}, which composes nothing on a grid here"
        fields = {**fields, "warnings": (*fields["warnings"], note)}
    return fields


def question_about(phase: Phase) -> Question:
    """The plain question about this phase and no other."""
    return Question((replace(phase, name="", planned=False),))


def ask_by_name(mechanism: Mechanism, bound: str | None, run: RunOptions) -> Question:
    """The question that is put by a mechanism, the name of a bound (None: the default) and the options of a run."""
    return question_about(phase_for(mechanism, bound, run))


# --- answers forwards ---------------------------------------------------------------------------------


def epsilon(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """Return the smallest epsilon that the bound proves at a delta, rounded up.

    Args:
        mechanism: What was released, with its noise multiplier, its rank and its promises.
        delta: The delta of the guarantee, above 0 and below 1; give either this or ``log10_delta``.
        log10_delta: The decimal logarithm of delta, from -1e6 to below 0, for deltas below double precision.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        **run: The run, as :class:`privproj.run.RunOptions` lists it; none of them: one release on the whole data set.

    Returns:
        A result whose ``value`` is epsilon. It is ``inf`` (outcome vacuous) if the bound proves no finite epsilon at
        this delta.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other.
        Refused: The bound proves nothing for this mechanism and run.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: A composition cannot tell so small a delta from its rounding.

    >>> from privproj import M2, epsilon
    >>> round(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5).value, 4)
    0.7382
    """
    return ask(ask_by_name(mechanism, bound, run), "epsilon", solve_epsilon, delta_target(delta, log10_delta))


def solve_epsilon(question: Question, target: Target) -> Result:
    """Answer :func:`privproj.epsilon` for a question that is already parsed."""
    curve = question.curve()
    interval = read_epsilon(curve, target)
    fields = {**target.fields(), "epsilon": interval.upper, "numerics": numerics_of(curve)}
    if interval.upper == math.inf:
        note = f"this bound proves no finite epsilon at this delta; expected a larger delta or {question.remedy}"
        fields |= {"outcome": Outcome.VACUOUS, "warnings": (*question.notes, note)}
    if interval.upper == 0.0:
        fields["warnings"] = (*question.notes, ZERO_EPSILON_NOTE)

    def lower() -> float | None:
        return interval.lower if 0.0 <= interval.lower < math.inf else None

    return question.result("epsilon", interval.upper, lower, side=question.side(curve), **fields)


def delta(mechanism: Mechanism, *, epsilon: float, bound: str | None = None, **run: Unpack[RunOptions]) -> Result:
    """Return the smallest delta that the bound proves at an epsilon, rounded up.

    Args:
        mechanism: What was released, with its noise multiplier, its rank and its promises.
        epsilon: The epsilon of the guarantee, from 0 to 1e9.
        bound: The name of a bound of the mechanism; None takes its default, the first in the registry.
        **run: The run, as :class:`privproj.run.RunOptions` lists it; none of them: one release on the whole data set.

    Returns:
        A result whose ``value`` is delta. A delta of 1 guarantees nothing (outcome vacuous). Where delta is below
        1e-300, ``value`` is about 1e-300, which is an upper bound, and ``log10_delta`` carries the size.

    Raises:
        InvalidParameter: A value is outside its domain, one is missing, or two contradict each other.
        Refused: The bound proves nothing for this mechanism and run.
        NotConverged: A quadrature or a search did not reach its accuracy.
        PrecisionLimit: The composed delta is too small to be told from rounding.

    >>> from privproj import Gaussian, delta
    >>> round(delta(Gaussian(noise_multiplier=1.0), epsilon=1.0).value, 6)
    0.126937
    """
    return ask(ask_by_name(mechanism, bound, run), "delta", solve_delta, epsilon_target(epsilon))


def solve_delta(question: Question, target: EpsilonTarget) -> Result:
    """Answer :func:`privproj.delta` for a question that is already parsed."""
    curve, epsilon = question.curve(), target.epsilon
    floor = getattr(curve, "floor", 0.0)
    if floor and curve.log_delta(epsilon).upper <= math.log(floor):
        raise PrecisionLimit(
            f"the composed delta at epsilon {epsilon:g} is below {floor:.1e}, what the composition can tell from its "
            "rounding; use a Renyi bound (mixture-rdp, rdp)"
        )
    interval = read_log_delta(curve, epsilon)
    value = delta_value(interval.upper)
    return question.result(
        "delta",
        value,
        lambda: math.exp(interval.lower) if interval.lower > LEAST_LOG_VALUE else None,
        side=question.side(curve) if interval.upper > LEAST_LOG_VALUE else Side.UPPER,
        epsilon=epsilon,
        delta=value,
        numerics=numerics_of(curve),
        log10_delta=log10_value(interval.upper),
        outcome=Outcome.VACUOUS if value >= 1.0 else Outcome.OK,
    )
