"""What a release is worth: the noise and the projection error of its update, beside those of DP-SGD at equal privacy.

Epsilon says nothing of the model that comes out. Two numbers do (docs/proofs.md, C38): the effective noise multiplier,
that of the DP-SGD whose update is as noisy, and the projection factor ``kappa``: the update of one step misses
``kappa - 1`` times the square of the clipped sum, which fresh projections average out over the steps.
"""

from dataclasses import dataclass, replace
from typing import Any, Unpack

from privproj.accounting.calibration import solve_sigma
from privproj.accounting.phase import check_mechanism
from privproj.accounting.question import ask_by_name, question_about
from privproj.errors import Refused, Unanswered
from privproj.mechanisms import Gaussian
from privproj.mechanisms.base import Lift, Mechanism
from privproj.result import Result
from privproj.runs import RunOptions
from privproj.runs.sampling import IN_EPOCHS
from privproj.runs.targets import privacy_or_risk_target


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The update that is read off a release, beside that of DP-SGD at the same privacy.

    Attributes:
        effective_noise_multiplier: That of the DP-SGD whose update has as much noise.
        dp_sgd_noise_multiplier: What DP-SGD needs for the same privacy in the same run.
        projection_error: ``kappa - 1``: the mean square of what one step's update misses by projecting, over the square
            of the clipped sum. 0 where nothing is projected.
        releases: Over how many releases it averages, with a fresh projection for each.
        released: How many numbers a release has; None where the size of the gradient is not known.
        of: How many the gradient has.

    >>> from privproj import M2, worth
    >>> round(worth(M2(dim=64, rank=4, noise_multiplier=2.0), epsilon=1.0, delta=1e-5).noise_over_dp_sgd, 2)
    2.14
    """

    effective_noise_multiplier: float
    dp_sgd_noise_multiplier: float
    projection_error: float
    releases: int
    released: int | None = None
    of: int | None = None

    @property
    def noise_over_dp_sgd(self) -> float:
        """How many times the noise of DP-SGD the update has, at the same privacy."""
        return self.effective_noise_multiplier / self.dp_sgd_noise_multiplier

    @property
    def projection_error_of_run(self) -> float:
        """The projection error of the mean update of a whole run, for a sum that stays the same."""
        return self.projection_error / self.releases

    @property
    def error(self) -> float:
        """The squared error of the mean update of the run, where the noise of DP-SGD would make it 1.

        That is ``(kappa - 1)/T + (z_eff/z_DP-SGD)^2``: the noise of DP-SGD, averaged over the run, is taken to be as
        large as the update itself.
        """
        return self.projection_error_of_run + self.noise_over_dp_sgd**2

    def as_dict(self) -> dict[str, object]:
        """Return what the JSON object of an answer has among its numerics."""
        return {
            "effective_noise_multiplier": self.effective_noise_multiplier,
            "dp_sgd_noise_multiplier": self.dp_sgd_noise_multiplier,
            "projection_error": self.projection_error,
            "projection_error_of_run": self.projection_error_of_run,
        }


def worth(
    mechanism: Mechanism,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    log10_delta: float | None = None,
    risk: dict[str, float] | None = None,
    **run: Unpack[RunOptions],
) -> Worth | None:
    """Compare the update that is read off a mechanism's releases with that of DP-SGD at the same privacy.

    ``z_eff = z lift`` and ``kappa - 1`` of C38, and DP-SGD's noise multiplier for the target in the same run.

    Args:
        mechanism: What is released, with its noise multiplier.
        epsilon: The epsilon that it has.
        delta: Its delta; or ``log10_delta``.
        log10_delta: The decimal logarithm of delta.
        risk: An attack risk in place of epsilon and delta: ``advantage``, or ``tpr`` and ``fpr``.
        **run: The run, as :class:`privproj.runs.RunOptions` lists it.

    Returns:
        The comparison; None for a mechanism whose release gives no update (``wishart``, ``sketch``, ...), and where
        DP-SGD has no such noise multiplier.

    Raises:
        InvalidParameter: A value is outside its range.

    >>> from privproj import M2, worth
    >>> run = {"steps": 2000, "sampling_rate": 0.01}
    >>> found = worth(M2(dim=2048, rank=16, noise_multiplier=0.1661), epsilon=1.0, delta=1e-5, **run)
    >>> round(found.effective_noise_multiplier, 3), round(found.noise_over_dp_sgd, 2), round(found.projection_error)
    (1.879, 1.02, 127)
    """
    check_mechanism(mechanism)
    lift = mechanism.lift()
    if lift is None:
        return None
    plain = Gaussian(adaptive_clipping_sigma=vars(mechanism).get("adaptive_clipping_sigma"))
    target = privacy_or_risk_target(epsilon, delta, log10_delta, **(risk or {}))
    try:
        only = ask_by_name(plain, None, run).only
        # An expectation is not asked back at the door of columns, which would load their packages.
        plain_question = question_about(replace(only, bound=replace(only.bound, columns=None)))
        least = solve_sigma(plain_question, target, roughly=True)
    except (Unanswered, Refused):
        return None
    return worth_of(mechanism, lift, least) if least.value else None


def worth_of(mechanism: Any, lift: Lift, dp_sgd: Result) -> Worth:
    """The worth of a mechanism with its noise, beside DP-SGD's answer for the same privacy in the same run."""
    run: Any = dp_sgd.run
    # In epochs each batch is an update.
    updates = run["steps"] * (run.get("batches", 1) if run["sampling"] in IN_EPOCHS else 1)
    return Worth(
        effective_noise_multiplier=mechanism.z * lift.noise,
        dp_sgd_noise_multiplier=float(dp_sgd.value or 0.0),
        projection_error=lift.factor - 1.0,
        releases=1 if vars(mechanism).get("fixed_projection") else updates,
        released=lift.released,
        of=lift.of,
    )
