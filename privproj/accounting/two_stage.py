"""Runs in two stages: the noise of DP-SFT, which finds a subspace privately and then trains in it."""

from privproj.accounting import calibration
from privproj.accounting.schedule import Schedule, phase_of
from privproj.assumptions import PUBLIC_SUBSPACE
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import Gaussian
from privproj.validation import probability


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
        noise = calibration.sigma(Gaussian(), epsilon=weight * epsilon, delta=weight * delta, **run)
        if not noise.usable:
            raise Refused(f"{name}: no noise meets epsilon {weight * epsilon:g} at delta {weight * delta:g}")
        phases.append(phase_of(Gaussian(noise_multiplier=noise.value), name, **run))
    found = Schedule(tuple(phases), assumes=(PUBLIC_SUBSPACE,) if public else ())
    kept = len(phases) == 1 or (budget == "split" and found.meets(epsilon=epsilon, delta=delta))
    return found if kept else found.calibrated(epsilon=epsilon, delta=delta)
