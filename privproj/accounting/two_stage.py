"""The noise of a run in two stages: DP-SFT."""

from privproj.accounting import calibration
from privproj.accounting.schedule import Schedule, phase_of
from privproj.assumptions import PUBLIC_SUBSPACE
from privproj.errors import InvalidParameter
from privproj.mechanisms import Gaussian
from privproj.validation import probability

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
