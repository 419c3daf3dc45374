"""A run as data: phases, each a mechanism released some number of times, composed jointly."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from privproj import calibration
from privproj.accountant import Question, any_projection, composed, numerics_of, probability_ends, question_of
from privproj.assumptions import PLAN_FIXED_IN_ADVANCE, PUBLIC_SUBSPACE
from privproj.bounds import find
from privproj.entries import TYPES, check_keys, keys_of, kind_of, once, question_from, renamed
from privproj.errors import InvalidParameter, Refused
from privproj.inversion import log10_value, meets, read_epsilon, read_log_delta, smallest_passing
from privproj.mechanisms import Gaussian, Mechanism, NoisyMechanism, privacy_epsilon, probability
from privproj.numerics import crossing, largest_integer
from privproj.profile import Curve, PrivacyProfile
from privproj.result import Outcome, Result, Side, Status
from privproj.runs import Run
from privproj.target import full_target, target_of

FOR_ALL = ("relation", "discretization", "composer")
"""Keys of a run file that hold for all its phases."""
PHASE_KEYS = ("name", "mechanism", "bound", "planned")

MOST_STEPS = 10**8


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
            renamed(error, f"phase {self.name}")
        if not isinstance(form, PrivacyProfile):
            raise Refused(
                f"phase {self.name}: {self.question.bound.name} has no privacy profile, which joint composition needs; "
                "privproj bounds lists those that have one"
            )
        if run.sampling_rate < 1.0 and not form.amplifies:
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
                    f"fixed one may have served other phases; {any_projection(phase.question.mechanism)}"
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
        if len(self.phases) == 1:
            profile, run = self.phases[0].release
            return composed(profile, replace(run, discretization=self.discretization, composer=self.composer))
        from privproj import pld

        return pld.composed_phases([phase.release for phase in self.phases], self.discretization, self.composer)

    def epsilon(self, *, delta: float) -> Result:
        """The smallest epsilon of the whole run at ``delta``, rounded up."""
        target, curve = target_of(delta, None), self.curve()
        found = read_epsilon(curve, target)
        lower = found.lower if math.isfinite(found.lower) and found.lower >= 0.0 else None
        found_fields = {**target.fields(), "epsilon": found.upper}
        outcome = Outcome.VACUOUS if found.upper == math.inf else Outcome.OK
        return self.result("epsilon", found.upper, lower, numerics=numerics_of(curve), outcome=outcome, **found_fields)

    def delta(self, *, epsilon: float) -> Result:
        """The smallest delta of the whole run at ``epsilon``, rounded up."""
        target = privacy_epsilon(epsilon, zero=True)
        curve = self.curve()
        found = read_log_delta(curve, target)
        value, lower = probability_ends(found)
        found_fields = {"epsilon": target, "delta": value, "log10_delta": log10_value(found.upper)}
        outcome = Outcome.VACUOUS if value >= 1.0 else Outcome.OK
        return self.result("delta", value, lower, numerics=numerics_of(curve), outcome=outcome, **found_fields)

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
                "assumes": tuple(unique(a for q in questions for a in q.mechanism_assumes)),
            },
            "run": {**self.run(questions), "assumes": self.run_assumes(questions)},
            "bound": " + ".join(unique(f"{q.mechanism.name}.{q.bound.name}" for q in questions)),
            "bound_version": max(question.bound.version for question in questions),
            "status": Status.CONDITIONAL if Status.CONDITIONAL in statuses else Status.PROVED,
            "promises": tuple(unique(promise for question in questions for promise in question.promises)),
            "source": "; ".join(unique(question.bound.source for question in questions)),
            "outcome": Outcome.OK,
            "warnings": tuple(unique(note for question in questions for note in question.notes)),
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
        return tuple(unique((*self.assumes, *(a for q in questions for a in q.run_assumes), *planned)))

    def scaled(self, factor: float) -> "Schedule":
        """The schedule with every noise multiplier times ``factor``."""
        return replace(self, phases=tuple(scaled_phase(phase, factor) for phase in self.phases))

    def calibrated(self, *, epsilon: float, delta: float) -> "Schedule":
        """The schedule whose noise multipliers, scaled by one common factor, just meet ``(epsilon, delta)``.

        Raises :class:`Refused` where no factor between 1e-6 and 1e6 does.
        """
        target, log_delta = privacy_epsilon(epsilon, zero=False), math.log(probability("delta", delta))

        def excess(factor: float) -> float:
            return self.scaled(factor).curve().log_delta(target).upper - log_delta

        found = crossing(excess, 1.0, low=1e-6, high=1e6, spread=0.2, rtol=1e-7).upper
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
            last = replace(phase, question=calibration.with_run(phase.question, steps=steps))
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


def unique(items: Any) -> list[str]:
    """Each once, in order."""
    return list(dict.fromkeys(items))


def scaled_phase(phase: Phase, factor: float) -> Phase:
    """The phase with its noise multiplier times ``factor``; raises :class:`InvalidParameter` where it has none."""
    mechanism = phase.question.mechanism
    if not isinstance(mechanism, NoisyMechanism) or mechanism.noise_multiplier is None:
        raise InvalidParameter("noise_multiplier", "nothing", f"a noise multiplier in phase {phase.name}")
    louder = replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)
    return replace(phase, question=replace(phase.question, mechanism=louder))


def phase_of(mechanism: Mechanism, name: str = "phase", bound: str | None = None, **run: Any) -> Phase:
    """A phase from a mechanism and the options of a run."""
    return Phase(question_of(mechanism, find(type(mechanism), bound), run), name)  # pyright: ignore[reportArgumentType]


def from_data(data: Mapping[str, Any], where: str = "run") -> Schedule:
    """A schedule from the data of a run file: a list ``phase`` and, for all, :data:`FOR_ALL`.

    Raises :class:`InvalidParameter` that names the file, the entry and the key.
    """
    given = once(data, where)
    entries = given.pop("phase", None)
    try:
        check_keys(given, {name: TYPES[name] for name in FOR_ALL})
    except InvalidParameter as error:
        renamed(error, where)
    if not isinstance(entries, list) or not entries:
        raise InvalidParameter(f"{where}: phase", entries, "a list of phases ([[phase]] in TOML)")
    shared = {"relation": given.pop("relation")} if "relation" in given else {}
    phases = [phase_from(entry, shared, f"{where}: phase {i + 1}") for i, entry in enumerate(entries)]
    try:
        return Schedule(tuple(phases), **given)
    except InvalidParameter as error:
        renamed(error, where)


def phase_from(entry: Any, shared: dict[str, Any], where: str) -> Phase:
    """One phase of a run file."""
    given = once(entry, where)
    try:
        for key in (*shared, *(name for name in FOR_ALL if name != "relation")):
            if key in given:
                raise InvalidParameter(key, given[key], f"{key} once, before the phases")
        check_keys(given, keys_of(kind_of(given), PHASE_KEYS))
        question = question_from({**given, **shared})
        question.check()
    except InvalidParameter as error:
        renamed(error, where)
    except Refused as error:
        raise Refused(f"{where}: {error}") from None
    return Phase(question, given.get("name", where.rsplit(": ", 1)[-1]), given.get("planned", False))


# --- ready runs -----------------------------------------------------------------------------------


def dp_sft(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: tuple[int, int],
    share: float = 0.75,
    budget: str = "joint",
    public: bool = False,
) -> Schedule:
    """DP-SFT: a private search for a subspace, then training within it, both subsampled Gaussian mechanisms.

    ``budget="split"``: the stages get ``share`` and ``1 - share`` of epsilon and delta, by basic composition.
    ``"joint"``: both split multipliers times one factor, so that the joint composition meets the target. ``public``:
    the subspace comes from public data and costs nothing. Dimensions play no role in epsilon.
    """
    if budget not in ("joint", "split"):
        raise InvalidParameter("budget", budget, "joint or split")
    part = 0.0 if public else probability("share", share)
    stages = [("subspace", part, steps[0])] if part else []
    phases = []
    second = "training in a public subspace" if public else "training"
    for name, weight, count in [*stages, (second, 1.0 - part, steps[1])]:
        run = {"steps": count, "sampling_rate": sampling_rate}
        z = calibration.sigma(Gaussian(), epsilon=weight * epsilon, delta=weight * delta, **run).value
        phases.append(phase_of(Gaussian(noise_multiplier=z), name, **run))
    found = Schedule(tuple(phases), assumes=(PUBLIC_SUBSPACE,) if public else ())
    kept = len(phases) == 1 or (budget == "split" and found.meets(epsilon=epsilon, delta=delta))
    return found if kept else found.calibrated(epsilon=epsilon, delta=delta)


def prism_noise_energy(shapes: list[tuple[int, int]], rank: int, deviation: float) -> float:
    """``tau sqrt(sum over modules of r (m + n - r))``: the norm of PRISM's isotropic tangent noise, a diagnostic.

    ``tau`` is the deviation per coordinate; full-gradient DP-SGD has ``tau sqrt(sum m n)``. Epsilon is that of the
    subsampled Gaussian mechanism either way.
    """
    for m, n in shapes:
        if rank > min(m, n):
            raise InvalidParameter("rank", rank, f"a rank of at most {min(m, n)}, the smaller side of a module")
    return deviation * math.sqrt(sum(rank * (m + n - rank) for m, n in shapes))
