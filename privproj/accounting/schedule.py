"""Schedules: phases of a run, what a budget leaves for them, and DP-SFT."""

from dataclasses import dataclass, replace
from typing import Any

from privproj.accounting.calibration import noise_factor, sigma, steps_after
from privproj.accounting.phase import Phase, phase_for
from privproj.accounting.query import Composition
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import Gaussian, Mechanism
from privproj.parameters import probability
from privproj.targets import full_target, privacy_or_risk_target

__all__ = ["Composition", "Phase", "Remaining", "calibrate_noise", "dp_sft", "more_steps", "phase_of", "remaining"]


@dataclass(frozen=True)
class Remaining:
    """What a budget leaves for one pattern of releases, after all that is done and after the planned phases before it.

    Attributes:
        phase: The pattern: a planned phase, or the last phase where none is planned.
        more_steps: How many releases like those of ``phase`` still fit; 0 if none does.
        after: The planned phases that are counted in full before it.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import Composition, phase_of, remaining
    >>> run = Composition((phase_of(Gaussian(noise_multiplier=10.0), "training", steps=3),))
    >>> [(found.phase.name, found.more_steps) for found in remaining(run, epsilon=1.0, delta=1e-5)]
    [('training', 4)]
    """

    phase: Phase
    more_steps: int
    after: tuple[Phase, ...] = ()

    @property
    def would_exceed(self) -> bool | None:
        """True if the planned phase does not fit as a whole; None for a pattern that is not planned."""
        return self.more_steps < self.phase.run.steps if self.phase.planned else None


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
        InvalidParameterError: A value is outside its domain, or the mechanism has no bound of that name.

    >>> from privproj import M2
    >>> from privproj.schedule import phase_of
    >>> phase_of(M2(dim=2048, rank=16, noise_multiplier=0.5), "training", steps=10).bound.name
    'rank-free'
    """
    return phase_for(mechanism, bound, run, name)  # pyright: ignore[reportArgumentType]


def calibrate_noise(
    run: Composition,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> Composition:
    """Return the schedule whose noise multipliers, all times one common factor, just meet a target.

    The target is ``(epsilon, delta)`` or an attack risk, as for :func:`privproj.sigma`.

    Args:
        run: The schedule.
        epsilon: The epsilon to be met, above 0 and at most 1e9.
        delta: The delta to be met, above 0 and below 1.
        advantage: Instead of these: the largest true positive rate less false positive rate of any attack.
        tpr: Instead of these: the largest true positive rate of any attack at the false positive rate ``fpr``.
        fpr: That false positive rate, above 0 and below ``tpr``.

    Returns:
        The scaled schedule, whose epsilon at ``delta`` is at most ``epsilon``, or whose risk is at most the target.

    Raises:
        InvalidParameterError: A value is outside its domain, two targets are given, or a phase has no noise
            multiplier.
        UnsupportedError: No factor from 1e-6 to 1e6 meets the target, or a phase has no privacy profile.
    """
    target = privacy_or_risk_target(epsilon=epsilon, delta=delta, advantage=advantage, tpr=tpr, fpr=fpr)
    return run.scaled(noise_factor(run, target))


def more_steps(run: Composition, phase: Phase, *, epsilon: float, delta: float, after: tuple[Phase, ...] = ()) -> int:
    """Return how many releases like those of a phase fit after all that is done and after further phases.

    Args:
        run: The schedule.
        phase: The pattern; its own number of steps plays no role.
        epsilon: The epsilon of the budget, from 0 to 1e9.
        delta: The delta of the budget, above 0 and below 1.
        after: Planned phases that come before it and are counted in full.

    Returns:
        A number of releases up to 1e8; 0 if none fits.

    Raises:
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: A phase has no privacy profile, or no amplification by subsampling.
    """
    before = replace(run, phases=(*run.done_phases, *after, phase))
    return steps_after(before, full_target(epsilon, delta, None, zero=True))


def remaining(run: Composition, *, epsilon: float, delta: float) -> list[Remaining]:
    """Return what the budget leaves for every planned phase, after all that is done and planned before it.

    Without a planned phase the last one is the pattern of what may follow.

    Args:
        run: The schedule.
        epsilon: The epsilon of the budget, from 0 to 1e9.
        delta: The delta of the budget, above 0 and below 1.

    Returns:
        A record for each planned phase, in order.

    Raises:
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: A phase has no privacy profile, or no amplification by subsampling.
    """
    planned = tuple(phase for phase in run.phases if phase.planned)
    return [
        Remaining(phase, more_steps(run, phase, epsilon=epsilon, delta=delta, after=planned[:i]), planned[:i])
        for i, phase in enumerate(planned or run.phases[-1:])
    ]


def dp_sft(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: tuple[int, int],
    share: float = 0.75,
    budget: str = "joint",
    public: bool = False,
) -> Composition:
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
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: No noise meets the target.

    >>> from privproj.schedule import dp_sft
    >>> found = dp_sft(epsilon=2.0, delta=1e-5, sampling_rate=0.01, steps=(100, 900))
    >>> [(phase.name, round(phase.mechanism.noise_multiplier, 4)) for phase in found.phases]
    [('subspace', 0.7421), ('training', 2.2526)]
    """
    if budget not in ("joint", "split"):
        raise InvalidParameterError("budget", budget, "joint or split")
    part = 0.0 if public else probability("share", share)
    # Basic composition: (share eps, share delta) for the search, ((1 - share) eps, (1 - share) delta) for the training.
    stages = [("subspace", part, steps[0])] if part else []
    phases = []
    second = "training in a public subspace" if public else "training"
    for name, weight, count in [*stages, (second, 1.0 - part, steps[1])]:
        run = {"steps": count, "sampling_rate": sampling_rate}
        noise = sigma(Gaussian(), epsilon=weight * epsilon, delta=weight * delta, **run)
        if not noise.usable:
            raise UnsupportedError(f"{name}: no noise meets epsilon {weight * epsilon:g} at delta {weight * delta:g}")
        phases.append(phase_of(Gaussian(noise_multiplier=noise.value), name, **run))
    plan = Composition(tuple(phases), assumes=(Requirement.PUBLIC_SUBSPACE,) if public else ())
    is_final = len(phases) == 1 or (budget == "split" and plan.meets(epsilon=epsilon, delta=delta))
    return plan if is_final else calibrate_noise(plan, epsilon=epsilon, delta=delta)
