"""A run as data: phases, each a mechanism released some number of times, composed jointly."""

import math
from dataclasses import dataclass, replace
from typing import Any

from privproj.accounting.calibration import MOST_STEPS
from privproj.accounting.queries import solve_delta, solve_epsilon
from privproj.accounting.question import Question, question_of, remedy_for_fixed_projection
from privproj.assumptions import PLAN_FIXED_IN_ADVANCE
from privproj.bounds import find_bound
from privproj.composition.compose import compose_phases
from privproj.curves.inversion import meets, smallest_passing
from privproj.curves.profile import Curve, PrivacyProfile
from privproj.errors import InvalidParameter, Refused, raise_within
from privproj.mechanisms import Mechanism, NoisyMechanism
from privproj.numerics.search import find_crossing, largest_integer
from privproj.result import Outcome, Result, Side, Status
from privproj.runs import Run, delta_target, epsilon_target, full_target
from privproj.validation import privacy_epsilon, probability


@dataclass(frozen=True)
class Phase:
    """One phase: what is released how often, by which bound it is accounted; ``planned`` ones have not happened yet."""

    question: Question
    name: str
    planned: bool = False

    @property
    def release(self) -> tuple[PrivacyProfile, Any]:
        """The profile of one release and the run; raises :class:`Refused` for a bound without a profile."""
        try:
            form, run = self.question.release()
        except InvalidParameter as error:
            raise_within(error, f"phase {self.name}")
        if not isinstance(form, PrivacyProfile):
            raise Refused(
                f"phase {self.name}: {self.question.bound.name} has no privacy profile, which joint composition needs; "
                "privproj bounds lists those that have one"
            )
        if run.sampling_rate < 1.0 and not form.can_be_subsampled:
            raise Refused(f"phase {self.name}: {self.question.bound.name} has no amplification by subsampling")
        return form, run

    def as_dict(self) -> dict[str, object]:
        """The phase as an entry of a run file."""
        mechanism, run = self.question.mechanism, self.question.run.parameters()
        given = {"layer" if k == "layers" else k: v for k, v in mechanism.parameters().items()}
        shown: dict[str, object] = {
            "name": self.name,
            "mechanism": mechanism.name,
            **given,
            "bound": self.question.bound.name,
        }
        plain = {"group_size": 1, "public_size": False}
        shown |= {key: value for key, value in run.items() if value is not None and plain.get(key) != value}
        return shown | ({"planned": True} if self.planned else {})


@dataclass(frozen=True)
class Remaining:
    """How many releases like those of ``phase`` fit after all that is done and, in full, the planned ones ``after``."""

    phase: Phase
    more_steps: int
    after: tuple[Phase, ...] = ()

    @property
    def would_exceed(self) -> bool | None:
        """True if a planned phase does not fit as a whole; None for a pattern that is not planned."""
        return self.more_steps < self.phase.question.run.steps if self.phase.planned else None


@dataclass(frozen=True)
class Schedule:
    """Phases under one neighbouring relation. Every number is a joint one: nothing is added up that can be composed."""

    phases: tuple[Phase, ...]
    discretization: float | None = None
    composer: str = "privproj"
    assumes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.phases:
            raise InvalidParameter("phase", "nothing", "at least one phase")
        Run(discretization=self.discretization, composer=self.composer)
        sizes = sorted({phase.question.run.group_size for phase in self.phases})
        if len(sizes) > 1:
            expected = "one group_size for all phases: the same person is in all of them"
            raise InvalidParameter("group_size", ", ".join(map(str, sizes)), expected)
        relations = {str(phase.question.run.relation) for phase in self.phases}
        if len(relations) > 1:
            raise InvalidParameter("relation", ", ".join(sorted(relations)), "one neighbouring relation for all phases")
        for phase in self.phases:
            if len(self.phases) > 1 and phase.question.reuses_projection:
                raise Refused(
                    f"phase {phase.name}: {phase.question.bound.name} needs a fresh projection for each release, and a "
                    f"fixed one may have served other phases; {remedy_for_fixed_projection(phase.question.mechanism)}"
                )

    def as_dict(self) -> dict[str, object]:
        """The schedule as the data of a run file."""
        shared: dict[str, object] = {} if self.discretization is None else {"discretization": self.discretization}
        shared |= {} if self.composer == "privproj" else {"composer": self.composer}
        return {**shared, "phase": [phase.as_dict() for phase in self.phases]}

    @property
    def done(self) -> "Schedule":
        """The phases that are not merely planned."""
        return replace(self, phases=self.done_phases)

    @property
    def done_phases(self) -> tuple[Phase, ...]:
        """The phases that are not merely planned, maybe none."""
        return tuple(phase for phase in self.phases if not phase.planned)

    def curve(self) -> Curve:
        """The joint curve: of one phase as its bound has it, of several on one grid."""
        return compose_phases([phase.release for phase in self.phases], self.discretization, self.composer)

    def epsilon(self, *, delta: float) -> Result:
        """The smallest epsilon of the whole run at ``delta``, rounded up."""
        return solve_epsilon(self, delta_target(delta, None))

    def delta(self, *, epsilon: float) -> Result:
        """The smallest delta of the whole run at ``epsilon``, rounded up."""
        return solve_delta(self, epsilon_target(epsilon))

    def side(self, curve: Curve) -> Side:
        """An upper bound, whatever the phases are."""
        return Side.UPPER

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any number of this run should know."""
        return tuple(_each_once(note for phase in self.phases for note in phase.question.notes))

    @property
    def remedy(self) -> str:
        """What makes epsilon smaller, in any phase."""
        return " or ".join(_each_once(phase.question.remedy for phase in self.phases))

    def result(self, quantity: str, value: float | None, lower: float | None, **details: Any) -> Result:
        """A result that names every phase; its status is the weakest of theirs."""
        questions = [phase.question for phase in self.phases]
        statuses = {question.status for question in questions}
        given: dict[str, Any] = {
            "quantity": quantity,
            "value": value,
            "lower": lower,
            "upper": value,
            "side": Side.UPPER,
            "mechanism": {
                "name": "run",
                "phases": [phase.as_dict() for phase in self.phases],
                "assumes": tuple(_each_once(a for q in questions for a in q.mechanism_assumes)),
            },
            "run": {**self.run(questions), "assumes": self.run_assumes(questions)},
            "bound": " + ".join(_each_once(f"{q.mechanism.name}.{q.bound.name}" for q in questions)),
            "bound_version": max(question.bound.version for question in questions),
            "status": Status.CONDITIONAL if Status.CONDITIONAL in statuses else Status.PROVED,
            "promises": tuple(_each_once(promise for question in questions for promise in question.promises)),
            "source": "; ".join(_each_once(question.bound.citation for question in questions)),
            "outcome": Outcome.OK,
            "warnings": self.notes,
        }
        return Result(**{**given, **details})

    @staticmethod
    def run(questions: list[Question]) -> dict[str, object]:
        """The run as plain values; phases may sample differently, so several have no rate in common."""
        shown = questions[0].run.parameters()
        if len(questions) > 1:
            shown |= {"sampling_rate": None, "sampling": None}
            shown |= {"steps": sum(question.run.steps for question in questions)}
            shown |= {"public_size": any(question.run.public_size for question in questions)}
        return shown

    def run_assumes(self, questions: list[Question]) -> tuple[str, ...]:
        """What the joint number takes for granted about the phases and their order."""
        planned = (PLAN_FIXED_IN_ADVANCE,) if len(questions) > 1 else ()
        return tuple(_each_once((*self.assumes, *(a for q in questions for a in q.run_assumes), *planned)))

    def scaled(self, factor: float) -> "Schedule":
        """The schedule with every noise multiplier times ``factor``."""
        return replace(self, phases=tuple(_with_scaled_noise(phase, factor) for phase in self.phases))

    def calibrated(self, *, epsilon: float, delta: float) -> "Schedule":
        """The schedule whose noise multipliers, scaled by one common factor, just meet ``(epsilon, delta)``.

        Raises :class:`Refused` where no factor between 1e-6 and 1e6 does.
        """
        target, log_delta = privacy_epsilon(epsilon, zero=False), math.log(probability("delta", delta))

        def excess(factor: float) -> float:
            return self.scaled(factor).curve().log_delta(target).upper - log_delta

        found = find_crossing(excess, 1.0, low=1e-6, high=1e6, spread=0.2, rtol=1e-7).upper
        if found == math.inf:
            raise Refused(f"no common factor of the noise meets epsilon {target:g} and delta {delta:g}")
        return self.scaled(smallest_passing(lambda c: self.scaled(c).meets(epsilon=target, delta=delta), found, 1e-9))

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """True where the schedule, asked for its epsilon or its delta, answers no more than ``(epsilon, delta)``."""
        return meets(self.curve(), full_target(epsilon, delta, None, zero=True))

    def more_steps(self, phase: Phase, *, epsilon: float, delta: float, after: tuple[Phase, ...] = ()) -> int:
        """How many releases like those of ``phase`` fit after all that is done and all of ``after``; 0 if none does."""
        target = privacy_epsilon(epsilon, zero=True)
        before = (*self.done_phases, *after)

        def fits(steps: int) -> bool:
            last = replace(phase, question=phase.question.with_run(steps=steps))
            return replace(self, phases=(*before, last)).meets(epsilon=target, delta=delta)

        return largest_integer(fits, 1, MOST_STEPS) or 0

    def remaining(self, *, epsilon: float, delta: float) -> list[Remaining]:
        """What the budget leaves for every planned phase, each after all that is done and the planned ones before it.

        Without a planned phase the last one is the pattern of what may follow.
        """
        planned = tuple(phase for phase in self.phases if phase.planned)
        if not planned:
            return [Remaining(self.phases[-1], self.more_steps(self.phases[-1], epsilon=epsilon, delta=delta))]
        found = []
        for i, phase in enumerate(planned):
            count = self.more_steps(phase, epsilon=epsilon, delta=delta, after=planned[:i])
            found.append(Remaining(phase, count, planned[:i]))
        return found


def _each_once(items: Any) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(items))


def _with_scaled_noise(phase: Phase, factor: float) -> Phase:
    """The phase with its noise multiplier times ``factor``; raises :class:`InvalidParameter` where it has none."""
    mechanism = phase.question.mechanism
    if not isinstance(mechanism, NoisyMechanism) or mechanism.noise_multiplier is None:
        raise InvalidParameter("noise_multiplier", "nothing", f"a noise multiplier in phase {phase.name}")
    louder = replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)
    return replace(phase, question=replace(phase.question, mechanism=louder))


def phase_of(mechanism: Mechanism, name: str = "phase", bound: str | None = None, **run: Any) -> Phase:
    """A phase from a mechanism and the options of a run."""
    return Phase(question_of(mechanism, find_bound(type(mechanism), bound), run), name)  # pyright: ignore[reportArgumentType]
