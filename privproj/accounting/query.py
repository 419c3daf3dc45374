"""Compute epsilon or delta of a whole run, which may have several phases."""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, TypeVar, Unpack

from privproj.accounting.phase import Phase, numerics_of, phase_for, remedy_for_fixed_projection, with_truncation
from privproj.assumptions import FIXED_SCHEDULES, Requirement, fixed_schedule
from privproj.composition.compose import compose_phases
from privproj.errors import InvalidParameterError, PrecisionError, QueryError, UnsupportedError, within
from privproj.mechanisms import Mechanism, NoisyMechanism
from privproj.mechanisms.registry import bounds_of
from privproj.numerics.interval import UNKNOWN, Enclosure, LazyEnclosure
from privproj.parameters import arguments_by_name, integer
from privproj.profiles.conversion import (
    LEAST_LOG_VALUE,
    delta_value,
    log10_value,
    meets,
    read_epsilon,
    read_log_delta,
    resolved_at,
)
from privproj.profiles.privacy_profile import Curve, PrivacyProfile
from privproj.result import Outcome, Result, Side, Status, round_outward
from privproj.run import Run, RunOptions
from privproj.targets import (
    EpsilonTarget,
    Target,
    delta_target,
    epsilon_target,
    full_target,
    risk_target,
)

Solver = TypeVar("Solver", bound=Callable[..., Result])

SOLVED_FOR = {
    "sigma": ("noise_multiplier",),
    "rank": ("rank",),
    "misalignment": ("misalignment", "alignment"),
    "steps": ("steps", "epochs"),
    "rate": ("sampling_rate", "batch_size", "dataset_size", "epochs", "max_batch_size"),
}  # by calibration: the names of the parameter that it finds, which must therefore not be given

ZERO_EPSILON_NOTE = (
    "delta is at least the total variation distance of neighboring outputs, so epsilon is 0. Use a smaller delta."
)

SMALL_LOG_DELTA = -35.0  # nats; above it the default grid is tight
TAIL_GAP = (
    "At so small a delta the composition is not tight: the exact epsilon of this bound is {}. Report the upper bound, "
    "or use a larger delta."
)


@dataclass(frozen=True)
class Composition:
    """A training run of one or more phases, each a mechanism with its steps and sampling.

    Every result is about the whole run: the phases are composed, and their epsilons are not added up. All phases have
    the same neighboring relation and group size.

    Args:
        phases: The phases in their order, at least one. A single phase without a name is reported as its mechanism.
        discretization: The step of the grid of privacy losses on which the phases are composed, in nats, from 1e-12 to
            1; None lets privproj choose it.
        requirements: Further requirements that every result of this run states.

    Raises:
        InvalidParameterError: There is no phase, or the phases have different relations or group sizes.
        UnsupportedError: A phase reuses a fixed projection although its bound needs a fresh one for each release.

    >>> from privproj import M2, Gaussian
    >>> from privproj.schedule import Composition, phase_of
    >>> first = phase_of(Gaussian(noise_multiplier=1.0), "first", steps=1000, sampling_rate=0.01)
    >>> second = phase_of(M2(dim=2048, rank=16, noise_multiplier=0.5), "second", steps=1000, sampling_rate=0.01)
    >>> round(Composition((first, second)).epsilon(delta=1e-5).value, 4)
    1.8418
    """

    phases: tuple[Phase, ...]
    discretization: float | None = None
    requirements: tuple[str, ...] = ()
    has_batch_notes: ClassVar[bool] = True  # whether results state what truncated and shuffled batches cost

    def __post_init__(self) -> None:
        if not all(isinstance(phase, Phase) for phase in self.phases):
            kinds = ", ".join(type(phase).__name__ for phase in self.phases)
            raise InvalidParameterError("phases", kinds, "phases", "write phase_of(mechanism, steps=...) for each")
        if self.is_plain:
            return
        if not self.phases:
            raise InvalidParameterError("phase", "nothing", "at least one phase")
        Run(discretization=self.discretization)
        for name, expected in (
            ("group_size", "the same for all phases"),
            ("relation", "the same for all phases"),
        ):
            values = sorted({str(getattr(phase.run, name)) for phase in self.phases})
            if len(values) > 1:
                raise InvalidParameterError(name, ", ".join(values), expected)
        for phase in self.phases:
            if (step := phase.run.discretization) is not None:
                raise InvalidParameterError("discretization", step, "the same for all phases")
            if len(self.phases) > 1 and phase.reuses_projection:
                raise UnsupportedError(
                    f"{phase.place}: the bound {phase.bound.name} needs a fresh projection for each release. "
                    f"{remedy_for_fixed_projection(phase.mechanism)}"
                )

    @property
    def is_plain(self) -> bool:
        """True for a single phase without a name."""
        return len(self.phases) == 1 and not self.phases[0].name

    @property
    def only(self) -> Phase:
        """The only phase, of a run with one phase."""
        (phase,) = self.phases
        return phase

    def with_mechanism(self, **changes: object) -> "Composition":
        """Return a copy with some parameters of the mechanism changed, for a run with one phase."""
        return replace(self, phases=(self.only.with_mechanism(**changes),))

    def with_run(self, **changes: object) -> "Composition":
        """Return a copy with some run options of every phase changed."""
        return replace(self, phases=tuple(phase.with_run(**changes) for phase in self.phases))

    def check(self) -> None:
        """Raise an error unless the bound of every phase is valid for its mechanism and run."""
        for phase in self.phases:
            phase.check()

    # --- the curve ------------------------------------------------------------------------------------

    def merged(self) -> list[Phase]:
        """Return the phases, merging those that differ only in their number of steps."""
        if len(self.phases) == 1:
            return [*self.phases]
        merged: dict[Phase, list[Phase]] = {}
        for phase in self.phases:
            same_release = replace(phase, name="", planned=False, run=replace(phase.run, steps=1))
            merged.setdefault(same_release, []).append(phase)
        return [same[0].with_run(steps=sum(phase.run.steps for phase in same)) for same in merged.values()]

    @property
    def grid_step(self) -> float | None:
        """The step of the grid of privacy losses in nats; None if privproj chooses it."""
        if self.discretization is None and len(self.phases) == 1:
            return self.phases[0].run.discretization
        return self.discretization

    @property
    def accountant(self) -> Any:
        """The external accountant of the run, such as dp-accounting; None for privproj."""
        return next((phase.accountant for phase in self.phases if phase.accountant), None)

    def by_one_accountant(self) -> "Composition":
        """Return a copy whose bounds the external accountant of the run can compose.

        Without an external accountant, the run is returned unchanged.
        """
        accountant = self.accountant
        return replace(self, phases=accountant.accounted(self.phases)) if accountant else self

    def curve(self) -> Curve:
        """Return the privacy curve of the whole run.

        Raises:
            InvalidParameterError: A parameter of a phase is missing or out of range.
            UnsupportedError: A phase is not supported, or one of several phases has no privacy profile.
        """
        # One phase is composed by its bound, and several phases on one discretization grid. For users with several
        # records, the result is the smaller one of this curve and of group privacy applied to the curve of one record
        # (C37).
        if accountant := self.accountant:
            phases = self.merged()
            return with_truncation(accountant.curve(phases, self.discretization), phases)
        size = self.phases[0].run.group_size
        if size == 1:
            needs_no_composition = self.is_plain and self.discretization is None
            return self.phases[0].curve() if needs_no_composition else self._composed()
        from privproj.composition.group_privacy import curve_of_group

        is_true = all(phase.is_attained for phase in self.phases)
        return curve_of_group(self._composed, self.with_run(group_size=1)._composed, size, is_true=is_true)

    def _composed(self) -> Curve:
        phases, step = self.merged(), self.grid_step
        if len(phases) > 1:
            composed = compose_phases([phase.profile() for phase in phases], step)
            return with_truncation(composed, phases)
        phase = phases[0]
        if step != phase.run.discretization:
            phase = phase.with_run(discretization=step)
        with nullcontext() if self.is_plain else within(phase.place):
            return phase.curve()

    # --- fields of results ----------------------------------------------------------------------------

    def side(self, curve: Curve) -> Side:
        """Return whether values read from a privacy curve of this run are exact or upper bounds."""
        # Values for several phases are upper bounds. Phases that differ only in their number of steps count as one.
        phases = self.phases if self.is_plain else self.merged()
        return phases[0].side(curve) if len(phases) == 1 else Side.UPPER

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings of all phases for every result of this run."""
        return unique(note for phase in self.phases for note in phase.notes)

    @property
    def remedy(self) -> str:
        """A text that states how to decrease the epsilon of the run."""
        caps = ("a larger max_batch_size" for phase in self.phases if phase.run.max_batch_size is not None)
        return " or ".join(unique((*(phase.mechanism.remedy for phase in self.phases), *caps)))

    @property
    def run_requirements(self) -> tuple[str, ...]:
        """The requirements on how the program runs the phases, and on their order."""
        if self.is_plain:
            return (*self.requirements, *self.phases[0].run_requirements)
        # There is one plan for all phases: with adaptive clipping in one of them its requirement replaces the others.
        plan = fixed_schedule(adapts=any(phase.mechanism.adapts_clip for phase in self.phases))
        planned = (plan,) if len(self.phases) > 1 or any(phase.run.is_planned for phase in self.phases) else ()
        of_phases = (text for phase in self.phases for text in phase.run_requirements if text not in FIXED_SCHEDULES)
        return unique((*self.requirements, *of_phases, *planned))

    def named(self) -> dict[str, Any]:
        """Return the fields of a result that describe the mechanism, the run and the bound."""
        phases, run_requirements = self.phases, self.run_requirements
        requirements = unique(text for phase in phases for text in phase.mechanism_requirements)
        run = phases[0].run.parameters() if len(phases) == 1 else run_of_several(phases)
        fields: dict[str, Any] = {
            "run": {**run, "requirements": run_requirements},
            "source": "; ".join(unique(phase.bound.citation for phase in phases)),
        }
        if self.is_plain:
            mechanism = phases[0].mechanism
            released = {"name": mechanism.name, **mechanism.parameters()}
            fields |= {"bound": phases[0].bound.name, "noise_multiplier": mechanism.noise_multiplier}
        else:
            released = {"name": "run", "phases": [phase.as_dict() for phase in phases]}
            fields["bound"] = " + ".join(unique(f"{phase.mechanism.name}.{phase.bound.name}" for phase in phases))
        return {"mechanism": {**released, "requirements": requirements}, **fields}

    # --- queries --------------------------------------------------------------------------------------

    def epsilon(self, *, delta: float) -> Result:
        """Return the smallest epsilon of the whole run at a delta, rounded up.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            A result whose ``value`` is epsilon.

        Raises:
            InvalidParameterError: A value is outside its domain.
            UnsupportedError: A phase has no privacy profile.
            PrecisionError: Delta is below the rounding error of the composition.
        """
        return evaluate_epsilon(self.by_one_accountant(), delta_target(delta, None))

    def delta(self, *, epsilon: float) -> Result:
        """Return the smallest delta of the whole run at an epsilon, rounded up.

        Args:
            epsilon: The epsilon of the guarantee, from 0 to 1e9.

        Returns:
            A result whose ``value`` is delta.

        Raises:
            InvalidParameterError: A value is outside its domain.
            UnsupportedError: A phase has no privacy profile.
            PrecisionError: The composed delta is below the rounding error of the composition.
        """
        return evaluate_delta(self.by_one_accountant(), epsilon_target(epsilon))

    def risk(self, *, advantage: float | None = None, tpr: float | None = None, fpr: float | None = None) -> Result:
        """Return an upper bound of the advantage or true positive rate of any attack on the run.

        Args:
            advantage: The target advantage, above 0 and below 1.
            tpr: In place of ``advantage``: the target true positive rate at the false positive rate ``fpr``.
            fpr: The false positive rate, above 0 and below ``tpr``.

        Returns:
            A result whose ``value`` is the advantage or the true positive rate, rounded up. The result also states the
            target, for comparison.

        Raises:
            InvalidParameterError: A value is outside its domain, or both or no target is given.
            UnsupportedError: A phase has no privacy profile.
        """
        from privproj.profiles.tradeoff import risk_of

        target, curve = risk_target(advantage, tpr, fpr), self.curve()
        value = risk_of(curve, target)
        outcome = Outcome.VACUOUS if value >= 1.0 else Outcome.OK
        quantity = "advantage" if target.fpr is None else "tpr"
        return build_result(self, quantity, value, curve=curve, outcome=outcome, **target.fields())

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Return whether the whole run meets the target ``(epsilon, delta)`` (C24).

        Both epsilon at the target delta and delta at the target epsilon are evaluated.

        Args:
            epsilon: The target epsilon, from 0 to 1e9.
            delta: The target delta, above 0 and below 1.

        Returns:
            True if both values meet the target.

        Raises:
            InvalidParameterError: A value is outside its domain.
            UnsupportedError: A phase has no privacy profile, or no amplification by subsampling.
        """
        return meets(self.curve(), full_target(epsilon, delta, None, zero=True))

    def scaled(self, factor: float) -> "Composition":
        """Return the run with every noise multiplier scaled by one factor.

        Args:
            factor: The factor, above 0.

        Returns:
            The scaled run.

        Raises:
            InvalidParameterError: A phase has no noise multiplier, or the product is outside its range.
            UnsupportedError: Another accountant composes a phase.
        """
        return replace(self, phases=tuple(_with_scaled_noise(phase, factor) for phase in self.phases))

    # --- data -------------------------------------------------------------------------------------------

    def __add__(self, other: "Composition | Phase") -> "Composition":
        """Return this run followed by another run or phase.

        A phase that repeats the name and parameters of an earlier one is merged with it, so that a loop may add each
        step separately. A planned phase is merged with the last phase only.
        """
        phases = list(self.phases)
        for phase in (other,) if isinstance(other, Phase) else other.phases:
            first = len(phases) - 1 if phase.planned else 0
            place = next((i for i in range(first, len(phases)) if _continues(phases[i], phase)), None)
            if place is None:
                phases.append(phase)
            else:
                phases[place] = phases[place].with_run(steps=phases[place].run.steps + phase.run.steps)
        return replace(self, phases=tuple(phases))

    def __mul__(self, times: int) -> "Composition":
        """Return the run with ``times`` times as many steps in every phase."""
        count = integer("times", times, "an integer >= 1", 1, 10**9)
        if any(phase.accountant is not None or vars(phase.mechanism).get("fixed_projection") for phase in self.phases):
            raise UnsupportedError("a run that uses another accountant or a fixed projection cannot be repeated")
        return replace(self, phases=tuple(phase.with_run(steps=count * phase.run.steps) for phase in self.phases))

    def as_dict(self) -> dict[str, object]:
        """Return the run as plain names and values, as a run file stores it."""
        shared: dict[str, object] = {} if self.discretization is None else {"discretization": self.discretization}
        return {**shared, "phase": [phase.as_dict() for phase in self.phases]}

    @property
    def done(self) -> "Composition":
        """The completed phases as a run; planned phases are omitted.

        Raises:
            InvalidParameterError: All phases are planned.
        """
        return replace(self, phases=self.done_phases)

    @property
    def done_phases(self) -> tuple[Phase, ...]:
        """The completed phases; planned phases are omitted."""
        return tuple(phase for phase in self.phases if not phase.planned)


def _continues(before: Phase, phase: Phase) -> bool:
    """Return whether a phase equals an earlier one except for its number of steps."""
    # Two phases with a fixed projection have two different projections.
    if before.accountant is not None or vars(before.mechanism).get("fixed_projection"):
        return False
    return phase.with_run(steps=1) == before.with_run(steps=1)


def _with_scaled_noise(phase: Phase, factor: float) -> Phase:
    """Return the phase with its noise multiplier multiplied by a factor."""
    if phase.accountant is not None:
        raise UnsupportedError(
            f"{phase.place} uses another accountant, so its noise cannot be scaled. Omit the phase, or "
            "describe it by a mechanism of privproj"
        )
    noise = phase.mechanism.noise_multiplier if isinstance(phase.mechanism, NoisyMechanism) else None
    if noise is None:
        raise InvalidParameterError(
            "noise_multiplier", "nothing", "a noise multiplier", f"give a noise multiplier in {phase.place}"
        )
    return phase.with_mechanism(noise_multiplier=noise * factor)


def run_of_several(phases: Sequence[Phase]) -> dict[str, object]:
    """Return the run options that several phases have in common."""
    shared = phases[0].run.parameters() if phases else {}
    run = {**Run().parameters(), **{name: shared[name] for name in ("relation", "group_size") if name in shared}}
    run |= {"steps": sum(phase.run.steps for phase in phases), "sampling_rate": None, "sampling": None}
    return run | {"public_size": any(phase.run.public_size for phase in phases)}


def unique(items: Iterable[str]) -> tuple[str, ...]:
    """Return texts without repetitions, in the order of their first occurrence."""
    return tuple(dict.fromkeys(items))


def composition_of(mechanism: Mechanism, bound: str | None, run: RunOptions) -> Composition:
    """Return a run with one phase; without a name of a bound, the default bound is used."""
    return Composition((phase_for(mechanism, bound, run),))


def composition_of_phase(phase: Phase) -> Composition:
    """Return a run with one phase, whose name and mark as planned are removed."""
    return Composition((replace(phase, name="", planned=False),))


# --- results ------------------------------------------------------------------------------------------


def build_result(
    query: Composition,
    quantity: str,
    value: float | None,
    interval: Enclosure | None = None,
    curve: Curve | None = None,
    **fields: Any,
) -> Result:
    """Build the :class:`privproj.Result` of a query.

    Args:
        query: The run that was evaluated.
        quantity: The name of the quantity.
        value: The value; None if there is none.
        interval: An enclosure of the exact value; None if only an upper bound is known.
        curve: The privacy curve from which the value was read; None omits the numerics of the result.
        **fields: Other fields of :class:`privproj.Result`.
    """
    phases = query.phases
    if quantity in ("epsilon", "delta") and any(phase.run.is_bounded_by_blocks for phase in phases):
        interval = None  # no dataset attains the bound, so its lower end is not a lower bound of the mechanism (C25)
    result = {
        "quantity": quantity,
        "value": value,
        "interval": Enclosure(-math.inf, math.inf if value is None else value) if interval is None else interval,
        "side": Side.UPPER,
        **query.named(),
        "bound_version": max((phase.bound.version for phase in phases), default=1),
        "status": max((phase.status for phase in phases), key=list(Status).index, default=Status.PROVED),
        "data_assumptions": unique(assumption for phase in phases for assumption in phase.data_assumptions),
        "outcome": Outcome.OK,
        "warnings": query.notes,
        **({} if curve is None else {"numerics": numerics_of(curve)}),
        **fields,
    }
    free = curve.free if isinstance(curve, PrivacyProfile) else None
    if free is not None and 0.0 < (eps := fields.get("epsilon") or 0.0) < math.inf:
        result["numerics"] = {**result["numerics"], free.name: free.best(eps)}
    warnings, numerics = [*result["warnings"]], result.get("numerics")
    if numerics is not None and value is not None:
        if numerics.get("rounding") and Requirement.MEASURED_ROUNDING not in result["data_assumptions"]:
            result["data_assumptions"] = (*result["data_assumptions"], Requirement.MEASURED_ROUNDING)
            result["status"] = Status.CONDITIONAL if result["status"] is Status.PROVED else result["status"]
        if query.grid_step is not None and "grid_step" not in numerics:
            unused = f"discretization={query.grid_step:g} had no effect, because "
            warnings.append(unused + f"{result['bound']} does not compose on a grid here. Omit it.")
    if query.has_batch_notes and any(phase.run.max_batch_size or phase.run.scheme.is_shuffled for phase in phases):
        from privproj.accounting.batch_notes import WHOLE_BATCHES, describe_batches

        warnings += describe_batches(phases, result, lambda: query.with_run(**WHOLE_BATCHES).curve())
    if any(phase.run.dataset_size for phase in phases):
        from privproj.accounting.batch_notes import known_size, warnings_of_delta

        warnings += warnings_of_delta(known_size(phases), result.get("delta"))
    refuted = unique(phase.bound.reason for phase in phases if not phase.bound.guarantees(phase.mechanism))
    if refuted and value is not None:
        warnings += [f"NOT A GUARANTEE: {reason}." for reason in refuted]
        result |= {"side": Side.NONE, "outcome": Outcome.UNSUPPORTED, "interval": UNKNOWN}
    return Result(**{**result, "warnings": tuple(warnings)})


def query_of(quantity: str) -> Callable[[Solver], Solver]:
    """Return a decorator for functions that evaluate ``quantity`` for a run at a target.

    If the function raises a :class:`QueryError`, the error gets a :class:`privproj.Result` whose value is None.
    """

    def decorate(solve: Solver) -> Solver:
        @wraps(solve)
        def solve_or_explain(query: Composition, target: Any, **options: Any) -> Result:
            try:
                return solve(query, target, **options)
            except QueryError as error:
                if isinstance(error, UnsupportedError) and len(query.phases) == 1:
                    error.describe(**query.only.description)
                fields = {"outcome": Outcome(error.outcome), "warnings": (str(error),), **target.fields()}
                error.result = build_result(query, quantity, None, **fields)
                raise

        return solve_or_explain  # pyright: ignore[reportReturnType]

    return decorate


# --- epsilon and delta --------------------------------------------------------------------------------


@arguments_by_name("epsilon(mechanism, delta=1e-5)")
def epsilon(
    mechanism: Mechanism,
    *,
    delta: float | None = None,
    log10_delta: float | None = None,
    bound: str | None = None,
    **run: Unpack[RunOptions],
) -> Result:
    """Return the smallest epsilon that a bound proves at a delta, rounded up.

    Args:
        mechanism: The mechanism with its noise multiplier, its rank and its assumptions on the data.
        delta: The delta of the guarantee, above 0 and below 1; give either this or ``log10_delta``.
        log10_delta: The decimal logarithm of delta, from -1e6 to below 0, for deltas below the range of doubles.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run, as :class:`privproj.run.RunOptions` lists it; by default one release on the whole dataset.

    Returns:
        A result whose ``value`` is epsilon. It is ``inf`` (outcome vacuous) if the bound proves no finite epsilon at
        this delta.

    Raises:
        InvalidParameterError: A value is outside its domain, one is missing, or two contradict each other.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: Delta is below the rounding error of the composition.

    >>> from privproj import M2, epsilon
    >>> round(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5).value, 4)
    0.7382
    """
    return evaluate_epsilon(composition_of(mechanism, bound, run), delta_target(delta, log10_delta))


def evaluate_epsilon(query: Composition, target: Target) -> Result:
    """Return the epsilon of a run at a target delta; the result stores the query."""
    return replace(solve_epsilon(query, target), query=query, target=target)


@query_of("epsilon")
def solve_epsilon(query: Composition, target: Target) -> Result:
    """Return the epsilon of a run at a target delta; the result does not store the query."""
    curve = resolved_at(query.curve(), target.log_delta)
    interval = read_epsilon(curve, target)
    fields: dict[str, Any] = {**target.fields(), "epsilon": interval.upper}
    if interval.upper == math.inf:
        bound = " + ".join(unique(phase.bound.name for phase in query.phases))
        note = f"The bound {bound} gives no finite epsilon at this delta. Use a larger delta or {query.remedy}."
        named = [
            phase.mechanism
            for phase in query.phases
            if (bounds := bounds_of(type(phase.mechanism))) and phase.bound.name != bounds[0].name
        ]
        if named:
            others = " and ".join(unique(f"`privproj compare {mechanism.name}`" for mechanism in named))
            note = f"{note[:-1]}, or another bound ({others} lists them)."
        fields |= {"outcome": Outcome.VACUOUS, "warnings": (*query.notes, note)}
    if interval.upper == 0.0:
        fields["warnings"] = (*query.notes, ZERO_EPSILON_NOTE)
    result = build_result(query, "epsilon", interval.upper, interval, curve, side=query.side(curve), **fields)
    least = result.lower or 0.0 if target.log_delta < SMALL_LOG_DELTA and "composer" in result.numerics else math.inf
    if math.inf > interval.upper > 1.01 * least:
        ends = (round_outward(least, up=False), round_outward(interval.upper))
        gap = f"between {ends[0]} and {ends[1]}" if least else "smaller, by an unknown factor"
        result = replace(result, warnings=(*result.warnings, TAIL_GAP.format(gap)))
    return result


@arguments_by_name("delta(mechanism, epsilon=1.0)")
def delta(mechanism: Mechanism, *, epsilon: float, bound: str | None = None, **run: Unpack[RunOptions]) -> Result:
    """Return the smallest delta that a bound proves at an epsilon, rounded up.

    Args:
        mechanism: The mechanism with its noise multiplier, its rank and its assumptions on the data.
        epsilon: The epsilon of the guarantee, from 0 to 1e9.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run, as :class:`privproj.run.RunOptions` lists it; by default one release on the whole dataset.

    Returns:
        A result whose ``value`` is delta. A delta of 1 guarantees nothing (outcome vacuous). If delta is below 1e-300,
        ``value`` is about 1e-300, which is an upper bound, and ``log10_delta`` is the logarithm of the exact bound.

    Raises:
        InvalidParameterError: A value is outside its domain, one is missing, or two contradict each other.
        UnsupportedError: The bound does not support this mechanism and run.
        ConvergenceError: A quadrature or a search did not reach its accuracy.
        PrecisionError: The composed delta is below the rounding error of the composition.

    >>> from privproj import Gaussian, delta
    >>> round(delta(Gaussian(noise_multiplier=1.0), epsilon=1.0).value, 6)
    0.126937
    """
    return evaluate_delta(composition_of(mechanism, bound, run), epsilon_target(epsilon))


def evaluate_delta(query: Composition, target: EpsilonTarget) -> Result:
    """Return the delta of a run at a target epsilon; the result stores the query."""
    return replace(solve_delta(query, target), query=query, target=target)


@query_of("delta")
def solve_delta(query: Composition, target: EpsilonTarget) -> Result:
    """Return the delta of a run at a target epsilon; the result does not store the query."""
    curve, epsilon = query.curve(), target.epsilon
    floor = getattr(curve, "floor", 0.0)
    if floor and curve.log_delta(epsilon).upper <= math.log(floor):
        raise PrecisionError(
            f"the composed delta at epsilon {epsilon:g} is below {floor:.1e}, "
            f"the rounding error of the composition. Use "
            "a Renyi bound (mixture-rdp or rdp)"
        )
    log_delta = read_log_delta(curve, epsilon)
    if (resolved := resolved_at(curve, log_delta.upper)) is not curve:
        log_delta = read_log_delta(resolved, epsilon)
    value = delta_value(log_delta.upper)

    def lower() -> float:
        return math.exp(log_delta.lower) if log_delta.lower > LEAST_LOG_VALUE else -math.inf

    return build_result(
        query,
        "delta",
        value,
        LazyEnclosure(lower, value),
        curve,
        side=query.side(curve) if log_delta.upper > LEAST_LOG_VALUE else Side.UPPER,
        epsilon=epsilon,
        delta=value,
        log10_delta=log10_value(log_delta.upper),
        outcome=Outcome.VACUOUS if value >= 1.0 else Outcome.OK,
    )
