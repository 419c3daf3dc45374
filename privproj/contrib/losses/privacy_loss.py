"""The privacy loss distribution of a run as an object, and what a run is in the words of other tools.

The true curve of a run is convex and holds in both orders, so that upper bounds of it at the points of a lattice make a
pair of laws that dominates the run (C18), whatever its bound is. Runs are composed before that, as schedules.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from privproj.accounting.gdp import DEFAULT_SLACK, gdp_mu, require_no_options
from privproj.accounting.query import build_result
from privproj.accounting.renyi import renyi_curve
from privproj.accounting.schedule import Schedule, phase_of
from privproj.errors import InvalidParameter, Refused, unknown_name
from privproj.mechanisms import Mechanism
from privproj.numerics.interval import next_up
from privproj.parameters import real
from privproj.profiles.privacy_profile import Curve, LazyBounds, PrivacyProfile, shallow
from privproj.profiles.tradeoff import tradeoff
from privproj.result import Result, Side
from privproj.run import Run, RunOptions

__all__ = ["Conversion", "PrivacyLoss", "convert", "privacy_loss"]

if TYPE_CHECKING:
    from privproj.composition.dominating_pairs import DominatingPair
    from privproj.numerics.arrays import Array

Form = Literal["mu", "rho", "renyi", "trade-off", "dp-accounting"]
"""What a run may be converted to."""

CUT_MASS = 1e-15
"""What the tails that are cut are meant to add to delta, as in dp-accounting. It is counted. Speed only."""

LOSSES_PER_DEVIATION = 20.0
"""Lattice points per standard deviation of the loss. Speed only."""


@dataclass(frozen=True)
class PrivacyLoss(Schedule):
    """A run with its privacy loss: a law of it on a lattice, from above.

    ``above`` dominates every pair of neighbours in both orders, so that whatever is computed from it is an upper bound.
    It has ``losses`` (nats), ``masses`` at these under the one data set, and ``infinity_mass``, the mass of an infinite
    loss; the masses under the other data set are ``exp(-losses)`` times as large, and ``infinity_mass_q`` lies at the
    loss minus infinity. ``+`` and ``*`` compose runs, not laws, so that nothing is lost.

    Args:
        phases: The phases in their order, as those of a schedule.
        discretization: The step of the grid of losses on which the phases are composed; None lets the composer choose.
        assumes: Further sentences that every number of this run takes for granted.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.losses.privacy_loss import privacy_loss
    >>> loss = privacy_loss(Gaussian(noise_multiplier=2.0))
    >>> round(float(loss.above.losses @ loss.above.masses), 3)  # 1/(2 z^2)
    0.125
    >>> round((loss * 4).epsilon(delta=1e-5).value, 4), loss * 4 == loss + loss * 3
    (4.3772, True)
    """

    @cached_property
    def _curve(self) -> Curve:
        """The curve, composed once."""
        return super().curve()

    def curve(self) -> Curve:
        """Delta against epsilon of the whole run, as its answers are read."""
        return self._curve

    @cached_property
    def above(self) -> "DominatingPair":
        """The law that dominates the run, from the curve at the points of the lattice.

        Raises:
            PrecisionLimit: Losses are too large for double precision.
        """
        from privproj.composition.dominating_pairs import outline_step

        shape = outline_step(_as_profile(self.curve()), Run(), CUT_MASS)
        return shape.pairs(shape.deviation / LOSSES_PER_DEVIATION).above

    @property
    def rests_on(self) -> Result:
        """What every number of the run rests on, as a result says it; its value plays no role."""
        return build_result(self, "curve", 1.0, curve=self.curve())

    def __repr__(self) -> str:
        basis = self.rests_on
        return (
            f"<privacy loss of {basis.run['steps']} releases: {basis.bound}, {basis.status}, {basis.run['relation']}>"
        )


def _as_profile(curve: Curve) -> PrivacyProfile:
    """A curve that holds in both orders as the profile of one release."""
    if isinstance(curve, PrivacyProfile) and curve.table is not None and curve.excess is None:
        return replace(curve, resolution=LOSSES_PER_DEVIATION)
    ordinary = shallow(curve)

    # Outward by more than the rounding of epsilon and of exp (PrivacyProfile.table).
    def upper(at: "Array") -> "Array":
        import numpy as np

        logs = np.array([ordinary.log_delta(eps * (1.0 - 4e-15)).upper for eps in at.tolist()])
        return np.where(logs > -690.0, np.exp(np.maximum(logs, -700.0)) * (1.0 + 4e-15), 0.0)

    table = LazyBounds(lambda at: 0.0 * at, upper)
    return PrivacyProfile(log_delta=ordinary.log_delta, table=table, resolution=LOSSES_PER_DEVIATION)


def privacy_loss(run: Mechanism | Schedule, *, bound: str | None = None, **options: Unpack[RunOptions]) -> PrivacyLoss:
    """Return the privacy loss of a run as an object that composes, and that :func:`convert` takes.

    Args:
        run: A mechanism, or a schedule, which has its bounds and its runs.
        bound: The name of a bound of the mechanism; None takes its default.
        **options: The run of a mechanism, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        The privacy loss.

    Raises:
        InvalidParameter: A value is outside its domain, or a schedule is given options.
        Refused: The bound proves nothing for this mechanism and run.

    >>> from privproj import M2
    >>> from privproj.contrib.losses.privacy_loss import privacy_loss
    >>> loss = privacy_loss(M2(dim=64, rank=4, noise_multiplier=1.0))
    >>> loss.above.infinity_mass < 1e-14
    True
    """
    if isinstance(run, Schedule):
        require_no_options(bound, options, "a schedule")
        shared = {field.name: getattr(run, field.name) for field in fields(Schedule)}
        return run if isinstance(run, PrivacyLoss) else PrivacyLoss(**shared)
    phase = phase_of(run, getattr(run, "name", ""), bound, **options)
    phase.check()
    return PrivacyLoss((phase,))


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A run in the words of another kind of privacy.

    Attributes:
        to: What it was converted to.
        value: The number, the list of numbers, or the object.
        side: Where it lies relative to that of the mechanism: an upper bound of a privacy parameter or a loss, a lower
            bound of false negative rates. Exact where nothing was lost.
        means: What it promises, in words.
        rests_on: The bound, status, promises and assumptions, as a :class:`privproj.Result`; its value plays no role.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.losses import convert
    >>> convert(Gaussian(noise_multiplier=2.0), "rho", steps=8).means
    'the Renyi divergence of every order a > 1, in both orders of neighbours, is at most value times a (zCDP)'
    """

    to: Form
    value: Any
    side: Side
    means: str
    rests_on: Result


def convert(
    run: Mechanism | Schedule,
    to: Form,
    *,
    at: float | Sequence[float] | None = None,
    bound: str | None = None,
    **options: Unpack[RunOptions],
) -> Conversion:
    """Say what a run is in another kind of privacy, on the safe side.

    ===============  ==============================  ======================================================
    ``to``           ``at``                          ``value``
    ===============  ==============================  ======================================================
    "mu"             the slack, 1e-9 unless given    of Gaussian differential privacy, rounded up
    "rho"            nothing                         of zero-concentrated differential privacy, rounded up
    "renyi"          an order above 1, or several    the divergences there, rounded up
    "trade-off"      false positive rates            the least false negative rates, rounded down
    "dp-accounting"  nothing                         its ``PrivacyLossDistribution``, which dominates the run
    ===============  ==============================  ======================================================

    Args:
        run: A privacy loss, a schedule or a mechanism.
        to: The kind.
        at: Where, as above.
        bound: The name of a bound of the mechanism; None takes its default. Renyi divergences are those of the
            mechanism's Renyi bound where this one has none.
        **options: The run of a mechanism, as :class:`privproj.run.RunOptions` lists it.

    Returns:
        The value, its side, and what it rests on.

    Raises:
        InvalidParameter: A value is outside its domain, or a loss or a schedule is given options.
        Refused: The run has no such parameter: no finite mu without slack for rho, no Renyi curve, a refuted bound.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.losses import convert
    >>> [round(value, 9) for value in convert(Gaussian(noise_multiplier=2.0), "renyi", at=[2, 4], steps=8).value]
    [2.0, 4.0]
    >>> [round(rate, 4) for rate in convert(Gaussian(noise_multiplier=2.0), "trade-off", at=[0.01, 0.1]).value]
    [0.9661, 0.7828]
    """
    loss = privacy_loss(run, bound=bound, **options)
    if not isinstance(to, str) or to not in CONVERSIONS:
        raise unknown_name("to", to, "a kind of privacy", get_args(Form))
    if any(not phase.is_guarantee for phase in loss.phases):
        raise Refused("a refuted bound has no loss that could be converted")
    if at is not None and to in ("rho", "dp-accounting"):
        raise InvalidParameter("at", at, f"no at with to={to}")
    if to == "renyi":
        loss = _with_renyi_bounds(loss)
    several = isinstance(at, list | tuple)
    values, side = CONVERSIONS[to](loss, at if several else [at])
    # Divergences are not read from a joint curve, which Renyi bounds of several phases do not have.
    rests_on = build_result(loss, "curve", 1.0) if to == "renyi" else loss.rests_on
    value = values if several else values[0]
    return Conversion(to=to, value=value, side=side, means=MEANS[to], rests_on=rests_on)


def _to_mu(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """The mu of the run with its slack."""
    mus = [gdp_mu(loss, delta=DEFAULT_SLACK if slack is None else slack) for slack in at]
    for mu in (mu for mu in mus if not mu.usable):
        raise Refused(f"no finite mu covers this run at slack {mu.delta or 0.0:g}; expected a larger slack")
    return [float(mu) for mu in mus], mus[0].side


def _to_rho(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Rho by the mu without slack: the law of the loss is a coarsening of that of two Gaussians."""
    (mu,), side = _to_mu(loss, [0.0])
    # rho = mu^2 / 2
    return [next_up(next_up(mu * mu) / 2.0)], side


def _to_renyi(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Divergences add over the phases, each at the orders."""
    orders = [real("at", order, "an order above 1, up to 1e6", 1.0, 1e6, open_low=True) for order in at]
    totals = [0.0] * len(orders)
    for phase in loss.phases:
        curve: Any = phase.curve()
        totals = [next_up(total + curve.divergence_at(order)) for total, order in zip(totals, orders, strict=True)]
    for order, value in zip(orders, totals, strict=True):
        if not value < math.inf:
            raise Refused(f"this run has no finite Renyi divergence at order {order:g}; expected a smaller order")
    return totals, Side.UPPER


def _with_renyi_bounds(loss: PrivacyLoss) -> PrivacyLoss:
    """The loss by the Renyi bounds of its phases; raises :class:`Refused` where one has none."""
    for phase in loss.phases:
        if phase.accountant is not None:
            raise Refused(
                f"phase {phase.name} is an event of dp-accounting, whose Renyi divergences are told by that package"
            )
    phases = tuple(renyi_curve(phase)[0] for phase in loss.phases)
    return replace(loss, phases=phases)


def _to_tradeoff(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Lower bounds of false negative rates."""
    rates = [real("at", rate, "a false positive rate from 0 to 1", 0.0, 1.0) for rate in at]
    return tradeoff(loss.curve(), rates), Side.LOWER


def _to_dp_accounting(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[Any], Side]:
    """The law above as dp-accounting's distribution."""
    from privproj.integrations.dp_accounting import symmetric_distribution

    return [symmetric_distribution(loss.above)], Side.UPPER


MEANS = {
    "mu": "delta(epsilon) is at most the larger of that of two Gaussians at the distance value, and of the slack",
    "rho": "the Renyi divergence of every order a > 1, in both orders of neighbours, is at most value times a (zCDP)",
    "renyi": "the Renyi divergence of this order, in both orders of neighbours, is at most value",
    "trade-off": "an attack with this false positive rate has at least the false negative rate value",
    "dp-accounting": "its epsilons and deltas are upper bounds, but for the rounding of what dp-accounting composes",
}
"""What the value of each kind promises. Contract."""

CONVERSIONS: dict[str, Any] = dict(
    zip(MEANS, (_to_mu, _to_rho, _to_renyi, _to_tradeoff, _to_dp_accounting), strict=True)
)
"""From a privacy loss and what ``at`` lists to the values and their side, for each kind."""
