"""A run as data: phases, each a mechanism released some number of times, composed jointly."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from privproj.accounting.calibration import COMPOSED_RTOL, Search, sigma
from privproj.accounting.phase import Phase, cut_batches, numerics_of, phase_for, remedy_for_fixed_projection
from privproj.accounting.query import Question, ask, solve_delta, solve_epsilon
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import Gaussian, Mechanism, NoisyMechanism
from privproj.parameters import integer, probability
from privproj.profiles.conversion import meets
from privproj.profiles.privacy_profile import Curve
from privproj.profiles.tradeoff import risk_of
from privproj.result import Outcome, Result, risk_words
from privproj.run import Run
from privproj.targets import (
    RiskTarget,
    delta_target,
    epsilon_target,
    full_target,
    privacy_or_risk_target,
    risk_target,
)


@dataclass(frozen=True)
class Remaining:
    """What a budget leaves for one pattern of releases, after all that is done and after the planned phases before it.

    Attributes:
        phase: The pattern: a planned phase, or the last phase where none is planned.
        more_steps: How many releases like those of ``phase`` still fit; 0 if none does.
        after: The planned phases that are counted in full before it.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import Schedule, phase_of
    >>> run = Schedule((phase_of(Gaussian(noise_multiplier=10.0), "training", steps=3),))
    >>> [(found.phase.name, found.more_steps) for found in run.remaining(epsilon=1.0, delta=1e-5)]
    [('training', 4)]
    """

    phase: Phase
    more_steps: int
    after: tuple[Phase, ...] = ()

    @property
    def would_exceed(self) -> bool | None:
        """True if the planned phase does not fit as a whole; None for a pattern that is not planned."""
        return self.more_steps < self.phase.run.steps if self.phase.planned else None


@dataclass(frozen=True)
class Schedule(Question):
    """Phases under one neighbouring relation, accounted jointly.

    Every number is one of the whole run: the phases are composed, their epsilons are not added up.

    Args:
        phases: The phases in their order, at least one; all under one relation and with one group size.
        discretization: The step of the grid of losses on which the phases are composed, from 1e-12 to 1; None lets the
            composer choose it.
        assumes: Further sentences that every number of this run takes for granted.

    Raises:
        InvalidParameter: There is no phase, or the phases have different relations or group sizes.
        Refused: A phase reuses a fixed projection although its bound needs a fresh one for each release.

    >>> from privproj import M2, Gaussian
    >>> from privproj.schedule import Schedule, phase_of
    >>> first = phase_of(Gaussian(noise_multiplier=1.0), "first", steps=1000, sampling_rate=0.01)
    >>> second = phase_of(M2(dim=2048, rank=16, noise_multiplier=0.5), "second", steps=1000, sampling_rate=0.01)
    >>> round(Schedule((first, second)).epsilon(delta=1e-5).value, 4)
    1.8418
    """

    is_plain: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.phases:
            raise InvalidParameter("phase", "nothing", "at least one phase")
        Run(discretization=self.discretization)
        for name, expected in (
            ("group_size", "one group_size for all phases: the same person is in all of them"),
            ("relation", "one neighbouring relation for all phases"),
        ):
            values = sorted({str(getattr(phase.run, name)) for phase in self.phases})
            if len(values) > 1:
                raise InvalidParameter(name, ", ".join(values), expected)
        for phase in self.phases:
            if (step := phase.run.discretization) is not None:
                raise InvalidParameter("discretization", step, "discretization once, for the whole schedule")
            if len(self.phases) > 1 and phase.reuses_projection:
                raise Refused(
                    f"phase {phase.name}: {phase.bound.name} needs a fresh projection for each release, and a fixed "
                    f"one may have served other phases; {remedy_for_fixed_projection(phase.mechanism)}"
                )

    def __add__(self, other: "Schedule | Phase") -> "Schedule":
        """The run of both, one after the other, as :func:`phase_of` or another schedule says it.

        A phase that goes on as one did before, under its name, makes that longer, so that a loop may add every step on
        its own. Planned phases keep their order: one goes on with the last phase only.
        """
        phases = list(self.phases)
        for phase in (other,) if isinstance(other, Phase) else other.phases:
            first = len(phases) - 1 if phase.planned else 0
            place = next((i for i in range(first, len(phases)) if _goes_on(phases[i], phase)), None)
            if place is None:
                phases.append(phase)
            else:
                phases[place] = phases[place].with_run(steps=phases[place].run.steps + phase.run.steps)
        return replace(self, phases=tuple(phases))

    def __mul__(self, times: int) -> "Schedule":
        """The run that does all phases so many times; their order plays no role."""
        count = integer("times", times, "a whole number of times >= 1", 1, 10**9)
        if any(phase.accountant is not None or vars(phase.mechanism).get("fixed_projection") for phase in self.phases):
            raise Refused("a run with events of dp-accounting or a fixed projection is not done again by a factor")
        return replace(self, phases=tuple(phase.with_run(steps=count * phase.run.steps) for phase in self.phases))

    def as_dict(self) -> dict[str, object]:
        """Return the schedule as the data of a run file, which :func:`privproj.schedule.from_data` reads again."""
        shared: dict[str, object] = {} if self.discretization is None else {"discretization": self.discretization}
        return {**shared, "phase": [phase.as_dict() for phase in self.phases]}

    @property
    def done(self) -> "Schedule":
        """The schedule of the phases that have happened, those that are not merely planned.

        Raises:
            InvalidParameter: All phases are merely planned.
        """
        return replace(self, phases=self.done_phases)

    @property
    def done_phases(self) -> tuple[Phase, ...]:
        """The phases that have happened, those that are not merely planned; there may be none."""
        return tuple(phase for phase in self.phases if not phase.planned)

    @property
    def accountant(self) -> Any:
        """Who composes the phases where one of them has an accountant of its own."""
        return next((phase.accountant for phase in self.phases if phase.accountant), None)

    def curve(self) -> Curve:
        """The joint curve, by the accountant of a phase where one has its own."""
        accountant = self.accountant
        if accountant is None:
            return super().curve()
        phases = self.merged()
        return cut_batches(accountant.curve(phases, self.discretization), phases)

    def epsilon(self, *, delta: float) -> Result:
        """Return the smallest epsilon of the whole run at a delta, rounded up.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            A result whose ``value`` is epsilon.

        Raises:
            InvalidParameter: A value is outside its domain.
            Refused: A phase has no privacy profile.
            PrecisionLimit: The composition cannot tell so small a delta from its rounding.
        """
        return ask(self.by_one_accountant(), "epsilon", solve_epsilon, delta_target(delta, None))

    def delta(self, *, epsilon: float) -> Result:
        """Return the smallest delta of the whole run at an epsilon, rounded up.

        Args:
            epsilon: The epsilon of the guarantee, from 0 to 1e9.

        Returns:
            A result whose ``value`` is delta.

        Raises:
            InvalidParameter: A value is outside its domain.
            Refused: A phase has no privacy profile.
            PrecisionLimit: The composed delta is too small to be told from rounding.
        """
        return ask(self.by_one_accountant(), "delta", solve_delta, epsilon_target(epsilon))

    def by_one_accountant(self) -> "Schedule":
        """The schedule with the bounds that its number rests on (:meth:`Accountant.accounted`)."""
        accountant = self.accountant
        return replace(self, phases=accountant.accounted(self.phases)) if accountant else self

    def scaled(self, factor: float) -> "Schedule":
        """Return the schedule with every noise multiplier times one factor.

        Args:
            factor: The factor, above 0.

        Returns:
            The new schedule.

        Raises:
            InvalidParameter: A phase has no noise multiplier, or the product is outside its range.
            Refused: A phase is an event of dp-accounting.
        """
        return replace(self, phases=tuple(_with_scaled_noise(phase, factor) for phase in self.phases))

    def calibrated(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        advantage: float | None = None,
        tpr: float | None = None,
        fpr: float | None = None,
    ) -> "Schedule":
        """Return the schedule whose noise multipliers, all times one common factor, just meet a target.

        The target is ``(epsilon, delta)`` or an attack risk, as for :func:`privproj.sigma`.

        Args:
            epsilon: The epsilon to be met, above 0 and at most 1e9.
            delta: The delta to be met, above 0 and below 1.
            advantage: Instead of these: the largest true positive rate less false positive rate of any attack.
            tpr: Instead of these: the largest true positive rate of any attack at the false positive rate ``fpr``.
            fpr: That false positive rate, above 0 and below ``tpr``.

        Returns:
            The scaled schedule, whose epsilon at ``delta`` is at most ``epsilon``, or whose risk is at most the target.

        Raises:
            InvalidParameter: A value is outside its domain, two targets are given, or a phase has no noise multiplier.
            Refused: No factor from 1e-6 to 1e6 meets the target, or a phase has no privacy profile.
        """
        target = privacy_or_risk_target(epsilon=epsilon, delta=delta, advantage=advantage, tpr=tpr, fpr=fpr)

        at_risk = isinstance(target, RiskTarget)
        words = risk_words(target.parameters()) if at_risk else f"epsilon {epsilon:g} and delta {delta:g}"
        search = Search(self.scaled, target)
        rtol = COMPOSED_RTOL if at_risk else 1e-7
        factor, _ = search.least(search.guess(1.0), low=1e-6, high=1e6, rtol=rtol)
        if factor == math.inf:
            raise Refused(f"no common factor of the noise meets {words}")
        return self.scaled(factor)

    def risk(self, *, advantage: float | None = None, tpr: float | None = None, fpr: float | None = None) -> Result:
        """Return what any attack on the whole run reaches at most, of the kind of a target, rounded up.

        Args:
            advantage: The target that the advantage is compared with, above 0 and below 1.
            tpr: Instead of it: the target of the true positive rate at the false positive rate ``fpr``.
            fpr: That false positive rate, above 0 and below ``tpr``.

        Returns:
            A result whose ``value`` is the advantage, or the true positive rate.

        Raises:
            InvalidParameter: A value is outside its domain, or it is not one target.
            Refused: A phase has no privacy profile.
        """
        target, curve = risk_target(advantage, tpr, fpr), self.curve()
        value = risk_of(curve, target)
        outcome = Outcome.VACUOUS if value >= 1.0 else Outcome.OK
        fields = {"outcome": outcome, "numerics": numerics_of(curve), **target.fields()}
        return self.result("advantage" if target.fpr is None else "tpr", value, None, **fields)

    def meets(self, *, epsilon: float, delta: float) -> bool:
        """Return True if the schedule answers no more than ``(epsilon, delta)`` to both questions (C24).

        Args:
            epsilon: The epsilon to be met, from 0 to 1e9.
            delta: The delta to be met, above 0 and below 1.

        Returns:
            True if both answers meet the target.

        Raises:
            InvalidParameter: A value is outside its domain.
            Refused: A phase has no privacy profile, or no amplification by subsampling.
        """
        return meets(self.curve(), full_target(epsilon, delta, None, zero=True))

    def more_steps(self, phase: Phase, *, epsilon: float, delta: float, after: tuple[Phase, ...] = ()) -> int:
        """Return how many releases like those of a phase fit after all that is done and after further phases.

        Args:
            phase: The pattern; its own number of steps plays no role.
            epsilon: The epsilon of the budget, from 0 to 1e9.
            delta: The delta of the budget, above 0 and below 1.
            after: Planned phases that come before it and are counted in full.

        Returns:
            A number of releases up to 1e8; 0 if none fits.

        Raises:
            InvalidParameter: A value is outside its domain.
            Refused: A phase has no privacy profile, or no amplification by subsampling.
        """
        before = (*self.done_phases, *after)

        def question_at(steps: int) -> Schedule:
            return replace(self, phases=(*before, phase.with_run(steps=steps)))

        target = full_target(epsilon, delta, None, zero=True)
        # Where to look first is told by phases with a profile.
        releases = [one.guess() for one in before if one.accountant is None]
        return Search(question_at, target).most_steps(releases, phase.guess()) or 0

    def remaining(self, *, epsilon: float, delta: float) -> list[Remaining]:
        """Return what the budget leaves for every planned phase, after all that is done and planned before it.

        Without a planned phase the last one is the pattern of what may follow.

        Args:
            epsilon: The epsilon of the budget, from 0 to 1e9.
            delta: The delta of the budget, above 0 and below 1.

        Returns:
            A record for each planned phase, in order.

        Raises:
            InvalidParameter: A value is outside its domain.
            Refused: A phase has no privacy profile, or no amplification by subsampling.
        """
        planned = tuple(phase for phase in self.phases if phase.planned)
        return [
            Remaining(phase, self.more_steps(phase, epsilon=epsilon, delta=delta, after=planned[:i]), planned[:i])
            for i, phase in enumerate(planned or self.phases[-1:])
        ]


def _goes_on(before: Phase, phase: Phase) -> bool:
    """True where a phase only takes more steps like those of one before it."""
    # Two phases with a fixed projection each have two of them.
    if before.accountant is not None or vars(before.mechanism).get("fixed_projection"):
        return False
    return phase.with_run(steps=1) == before.with_run(steps=1)


def _with_scaled_noise(phase: Phase, factor: float) -> Phase:
    """The phase with its noise multiplier times ``factor``; raises :class:`InvalidParameter` where it has none."""
    if phase.accountant is not None:
        raise Refused(
            f"phase {phase.name} is an event of dp-accounting, whose noise is not scaled with that of other phases; "
            "leave it out, or give it as a mechanism of privproj"
        )
    noise = phase.mechanism.noise_multiplier if isinstance(phase.mechanism, NoisyMechanism) else None
    if noise is None:
        raise InvalidParameter("noise_multiplier", "nothing", f"a noise multiplier in phase {phase.name}")
    return phase.with_mechanism(noise_multiplier=noise * factor)


def phase_of(mechanism: Mechanism, name: str = "phase", bound: str | None = None, **run: Any) -> Phase:
    """Make a phase of a schedule from a mechanism and the options of a run.

    Args:
        mechanism: What the phase releases, with its noise multiplier and its rank.
        name: What the phase is called in answers and messages.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run of the phase, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        The phase, which is not merely planned.

    Raises:
        InvalidParameter: A value is outside its domain, or the mechanism has no bound of that name.

    >>> from privproj import M2
    >>> from privproj.schedule import phase_of
    >>> phase_of(M2(dim=2048, rank=16, noise_multiplier=0.5), "training", steps=10).bound.name
    'rank-free'
    """
    return phase_for(mechanism, bound, run, name)  # pyright: ignore[reportArgumentType]


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
    """Plan DP-SFT: a private search for a subspace, then training within it, both subsampled Gaussian mechanisms.

    The dimensions of the subspace play no role in epsilon.

    Args:
        epsilon: The epsilon of the whole run, above 0 and at most 1e9.
        delta: The delta of the whole run, above 0 and below 1.
        sampling_rate: The Poisson sampling rate of both stages, above 0 and at most 1.
        steps: The number of steps of the search and of the training.
        share: The part of epsilon and delta that the search starts from, above 0 and below 1.
        budget: How the two stages share the target. "split": the search gets ``share`` and the training ``1 - share``
            of epsilon and delta, by basic composition. "joint": the two multipliers of the split times one common
            factor, so that the joint composition just meets the target.
        public: True if the subspace comes from public data: it costs nothing, and ``share`` and the steps of the search
            are not used.

    Returns:
        A schedule of one or two phases with their noise multipliers.

    Raises:
        InvalidParameter: A value is outside its domain.
        Refused: No noise meets the target.

    >>> from privproj.schedule import dp_sft
    >>> found = dp_sft(epsilon=2.0, delta=1e-5, sampling_rate=0.01, steps=(100, 900))
    >>> [(phase.name, round(phase.mechanism.noise_multiplier, 4)) for phase in found.phases]
    [('subspace', 0.7421), ('training', 2.2526)]
    """
    if budget not in ("joint", "split"):
        raise InvalidParameter("budget", budget, "joint or split")
    part = 0.0 if public else probability("share", share)
    # Basic composition: (share eps, share delta) for the search, ((1 - share) eps, (1 - share) delta) for the training.
    stages = [("subspace", part, steps[0])] if part else []
    phases = []
    second = "training in a public subspace" if public else "training"
    for name, weight, count in [*stages, (second, 1.0 - part, steps[1])]:
        run = {"steps": count, "sampling_rate": sampling_rate}
        noise = sigma(Gaussian(), epsilon=weight * epsilon, delta=weight * delta, **run)
        if not noise.usable:
            raise Refused(f"{name}: no noise meets epsilon {weight * epsilon:g} at delta {weight * delta:g}")
        phases.append(phase_of(Gaussian(noise_multiplier=noise.value), name, **run))
    plan = Schedule(tuple(phases), assumes=(Requirement.PUBLIC_SUBSPACE,) if public else ())
    is_final = len(phases) == 1 or (budget == "split" and plan.meets(epsilon=epsilon, delta=delta))
    return plan if is_final else plan.calibrated(epsilon=epsilon, delta=delta)
