"""Build and plan training runs of several phases."""

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

SEARCH_SHARE = 0.75  # default share of epsilon and delta for the subspace search of DP-SFT


@dataclass(frozen=True)
class Remaining:
    """How many more releases of one phase a privacy budget allows.

    The budget is first spent on all earlier phases.

    Attributes:
        phase: The phase whose releases are counted: a planned phase, or the last phase if none is planned.
        more_steps: The number of releases of ``phase`` that the budget allows.
        after: The planned phases before ``phase``; the budget also covers all steps of these phases.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import Composition, phase_of, remaining
    >>> run = Composition((phase_of(Gaussian(noise_multiplier=10.0), "training", steps=3),))
    >>> [(left.phase.name, left.more_steps) for left in remaining(run, epsilon=1.0, delta=1e-5)]
    [('training', 4)]
    """

    phase: Phase
    more_steps: int
    after: tuple[Phase, ...] = ()

    @property
    def would_exceed(self) -> bool | None:
        """True if the planned phase exceeds the budget; None for a phase that is not planned."""
        return self.more_steps < self.phase.run.steps if self.phase.planned else None


def phase_of(mechanism: Mechanism, name: str = "phase", bound: str | None = None, **run: Any) -> Phase:
    """Return a phase of a run, from a mechanism and run options.

    Args:
        mechanism: The mechanism of the phase, with its noise multiplier and its rank.
        name: The name of the phase in results and messages.
        bound: The name of a bound of the mechanism; None takes its default.
        **run: The run of the phase, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        The phase, which is not marked as planned.

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
    """Return the run with all noise multipliers scaled by one factor to meet a target.

    The factor is the smallest one that meets the target. The target is ``(epsilon, delta)`` or an attack risk, as for
    :func:`privproj.sigma`.

    Args:
        run: The run, as a composition of phases.
        epsilon: The target epsilon, above 0 and at most 1e9.
        delta: The target delta, above 0 and below 1.
        advantage: In place of epsilon and delta: the largest difference of true and false positive rate of any attack.
        tpr: In place of epsilon and delta: the largest true positive rate at the false positive rate ``fpr``.
        fpr: The false positive rate, above 0 and below ``tpr``.

    Returns:
        The scaled run, whose epsilon at ``delta`` is at most ``epsilon``, or whose risk is at most the target.

    Raises:
        InvalidParameterError: A value is outside its domain, two targets are given, or a phase has no noise
            multiplier.
        UnsupportedError: No factor from 1e-6 to 1e6 meets the target, or a phase has no privacy profile.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import Composition, calibrate_noise, phase_of
    >>> run = Composition((phase_of(Gaussian(noise_multiplier=10.0), "training", steps=3),))
    >>> calibrated = calibrate_noise(run, epsilon=2.0, delta=1e-5)
    >>> round(calibrated.epsilon(delta=1e-5).value, 4)
    2.0
    """
    target = privacy_or_risk_target(epsilon=epsilon, delta=delta, advantage=advantage, tpr=tpr, fpr=fpr)
    return run.scaled(noise_factor(run, target))


def more_steps(run: Composition, phase: Phase, *, epsilon: float, delta: float, after: tuple[Phase, ...] = ()) -> int:
    """Return how many more releases of one phase a privacy budget allows.

    Args:
        run: The composition of the phases. The budget is first spent on the completed phases. The planned phases of
            the composition are ignored.
        phase: The phase whose releases are counted; its number of steps is ignored.
        epsilon: The epsilon of the budget, from 0 to 1e9.
        delta: The delta of the budget, above 0 and below 1.
        after: Phases between the completed phases and ``phase``; the budget also covers all steps of these phases.

    Returns:
        A number of releases up to 1e8; 0 if a single release exceeds the budget.

    Raises:
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: A phase has no privacy profile, or no amplification by subsampling.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import Composition, more_steps, phase_of
    >>> run = Composition((phase_of(Gaussian(noise_multiplier=10.0), "training", steps=3),))
    >>> more_steps(run, run.phases[0], epsilon=1.0, delta=1e-5)
    4
    """
    before = replace(run, phases=(*run.done_phases, *after, phase))
    return steps_after(before, full_target(epsilon, delta, None, zero=True))


def remaining(run: Composition, *, epsilon: float, delta: float) -> list[Remaining]:
    """Return how many releases of each planned phase fit into a privacy budget.

    The completed phases and the earlier planned phases are first subtracted from the budget. If no phase is planned,
    the result is the number of further releases of the last phase.

    Args:
        run: The composition of the phases.
        epsilon: The epsilon of the budget, from 0 to 1e9.
        delta: The delta of the budget, above 0 and below 1.

    Returns:
        A record for each planned phase, in order; if no phase is planned, one for the last phase.

    Raises:
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: A phase has no privacy profile, or no amplification by subsampling.

    >>> from privproj import Gaussian
    >>> from privproj.schedule import Composition, phase_of, remaining
    >>> run = Composition((phase_of(Gaussian(noise_multiplier=10.0), "training", steps=3),))
    >>> remaining(run, epsilon=1.0, delta=1e-5)[0].more_steps
    4
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
    share: float = SEARCH_SHARE,
    budget: str = "joint",
    public: bool = False,
) -> Composition:
    """Plan the noise of DP-SFT for a target ``(epsilon, delta)``.

    DP-SFT first searches for a subspace privately, and then trains within the subspace. Both stages are subsampled
    Gaussian mechanisms. Epsilon does not depend on the dimension of the subspace.

    Args:
        epsilon: The epsilon of the whole run, above 0 and at most 1e9.
        delta: The delta of the whole run, above 0 and below 1.
        sampling_rate: The Poisson sampling rate of both stages, above 0 and at most 1.
        steps: The number of steps of the search and of the training.
        share: The share of epsilon and delta for the search, above 0 and below 1. With the budget "joint", it sets the
            ratio of the two noise multipliers.
        budget: How the two stages share the target. With "split", the search gets ``share`` and the training
            ``1 - share`` of epsilon and delta, by basic composition. With "joint", the two noise multipliers of the
            split are scaled by one common factor, so that the joint composition just meets the target.
        public: True if the subspace comes from public data. Then the search is not private, and ``share`` and the steps
            of the search are not used.

    Returns:
        A composition of one or two phases with their noise multipliers.

    Raises:
        InvalidParameterError: A value is outside its domain.
        UnsupportedError: No noise multiplier meets the target.

    >>> from privproj.schedule import dp_sft
    >>> plan = dp_sft(epsilon=2.0, delta=1e-5, sampling_rate=0.01, steps=(100, 900))
    >>> [(phase.name, round(phase.mechanism.noise_multiplier, 4)) for phase in plan.phases]
    [('subspace', 0.7421), ('training', 2.2526)]
    """
    if budget not in ("joint", "split"):
        raise InvalidParameterError("budget", budget, "joint or split")
    if not isinstance(steps, tuple | list) or len(steps) != 2:
        raise InvalidParameterError("steps", steps, "two numbers of steps, of the search and of the training")
    part = 0.0 if public else probability("share", share)
    # Basic composition: (share eps, share delta) for the search, ((1 - share) eps, (1 - share) delta) for the training.
    stages = [("subspace", part, steps[0])] if part else []
    phases = []
    second = "training in a public subspace" if public else "training"
    for name, weight, count in [*stages, (second, 1.0 - part, steps[1])]:
        run = {"steps": count, "sampling_rate": sampling_rate}
        noise = sigma(Gaussian(), epsilon=weight * epsilon, delta=weight * delta, **run)
        if not noise.usable:
            raise UnsupportedError(
                f"no noise multiplier of {name} meets epsilon {weight * epsilon:g} at delta {weight * delta:g}"
            )
        phases.append(phase_of(Gaussian(noise_multiplier=noise.value), name, **run))
    plan = Composition(tuple(phases), requirements=(Requirement.PUBLIC_SUBSPACE,) if public else ())
    is_final = len(phases) == 1 or (budget == "split" and plan.meets(epsilon=epsilon, delta=delta))
    return plan if is_final else calibrate_noise(plan, epsilon=epsilon, delta=delta)
