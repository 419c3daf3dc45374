"""Compute privacy loss distributions, and convert runs to GDP, zCDP or RDP.

The true privacy curve of a run is convex and holds in both the add and remove directions. Therefore upper bounds of the
curve at grid points define a pair of distributions that dominates the run (C18: pairs on a grid).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from privproj.accounting.gdp import DEFAULT_SLACK, gdp_mu, require_no_options
from privproj.accounting.query import build_result
from privproj.accounting.renyi import renyi_curve
from privproj.accounting.schedule import Composition, phase_of
from privproj.errors import InvalidParameterError, UnsupportedError, unknown_name
from privproj.mechanisms import Mechanism
from privproj.numerics.interval import next_up
from privproj.parameters import real
from privproj.profiles.privacy_profile import Curve, PrivacyProfile, TwoSidedTable, at_first_level
from privproj.profiles.tradeoff import tradeoff
from privproj.result import Result, Side
from privproj.run import Run, RunOptions

__all__ = ["Conversion", "PrivacyLoss", "convert", "privacy_loss"]

if TYPE_CHECKING:
    from privproj.composition.dominating_pairs import DominatingPair
    from privproj.numerics.arrays import Array

Form = Literal["mu", "rho", "renyi", "trade-off", "dp-accounting"]  # privacy definitions for conversions

CUT_MASS = 1e-15  # delta, intended mass of the truncated tails, as in dp-accounting; the truncated mass is counted

LOSSES_PER_DEVIATION = 20.0  # grid points per standard deviation of the loss


@dataclass(frozen=True)
class PrivacyLoss(Composition):
    """A run with a dominating privacy loss distribution on a grid.

    The distribution ``above`` dominates every neighboring pair in both directions, so all values computed from it are
    upper bounds. ``above`` has ``losses`` (nats), ``masses`` at these losses under one dataset, and ``infinity_mass``,
    the mass of an infinite loss. Under the other dataset, the masses are ``exp(-losses)`` times as large, and
    ``infinity_mass_q`` is the mass of a loss of minus infinity. The operators ``+`` and ``*`` compose the runs and not
    their distributions, so they add no discretization error.

    Args:
        phases: The phases in their order, as in a :class:`privproj.schedule.Composition`.
        discretization: The grid step of the composition of the phases; None lets the composer choose.
        requirements: Further assumptions of every result.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.losses import privacy_loss
    >>> loss = privacy_loss(Gaussian(noise_multiplier=2.0))
    >>> round(float(loss.above.losses @ loss.above.masses), 3)  # 1/(2 z^2)
    0.125
    >>> round((loss * 4).epsilon(delta=1e-5).value, 4), loss * 4 == loss + loss * 3
    (4.3772, True)
    """

    @cached_property
    def _curve(self) -> Curve:
        """The privacy curve of the run, composed once."""
        return super().curve()

    def curve(self) -> Curve:
        """Return the privacy curve of the whole run."""
        return self._curve

    @cached_property
    def above(self) -> "DominatingPair":
        """The dominating privacy loss distribution of the run, on a grid of losses.

        Raises:
            PrecisionError: Losses are too large for the range of doubles.
        """
        from privproj.composition.dominating_pairs import describe_coarsely

        shape = describe_coarsely(_as_profile(self.curve()), Run(), CUT_MASS)
        return shape.pairs(shape.deviation / LOSSES_PER_DEVIATION).above

    @property
    def basis(self) -> Result:
        """The bound, status and assumptions of the run, as a result; ignore its value."""
        return build_result(self, "curve", 1.0, curve=self.curve())

    def __repr__(self) -> str:
        basis = self.basis
        return (
            f"<privacy loss of {basis.run['steps']} releases: {basis.bound}, {basis.status}, {basis.run['relation']}>"
        )


def _as_profile(curve: Curve) -> PrivacyProfile:
    """Return a privacy curve as the privacy profile of one release.

    The curve must hold in both the add and remove directions.
    """
    if isinstance(curve, PrivacyProfile) and curve.table is not None and curve.excess is None:
        return replace(curve, resolution=LOSSES_PER_DEVIATION)
    ordinary = at_first_level(curve)

    # Rounded outward by more than the rounding errors of epsilon and of exp (PrivacyProfile.table).
    def upper(at: "Array") -> "Array":
        import numpy as np

        logs = np.array([ordinary.log_delta(eps * (1.0 - 4e-15)).upper for eps in at.tolist()])
        return np.where(logs > -690.0, np.exp(np.maximum(logs, -700.0)) * (1.0 + 4e-15), 0.0)

    table = TwoSidedTable(lambda at: 0.0 * at, upper)
    return PrivacyProfile(log_delta=ordinary.log_delta, table=table, resolution=LOSSES_PER_DEVIATION)


def privacy_loss(
    run: Mechanism | Composition, *, bound: str | None = None, **options: Unpack[RunOptions]
) -> PrivacyLoss:
    """Return a run with a privacy loss distribution.

    The result can be composed with ``+`` and ``*``, and converted with :func:`convert`.

    Args:
        run: A mechanism, or a composition, which has its own bounds and runs.
        bound: The name of a bound of the mechanism; None takes its default.
        **options: The run of a mechanism (:class:`privproj.run.RunOptions`).

    Returns:
        The privacy loss.

    Raises:
        InvalidParameterError: A value is out of range, or options are given with a composition.
        UnsupportedError: The bound does not support this mechanism and run.

    >>> from privproj import M2
    >>> from privproj.contrib.losses import privacy_loss
    >>> loss = privacy_loss(M2(dim=64, rank=4, noise_multiplier=1.0))
    >>> loss.above.infinity_mass < 1e-14
    True
    """
    if isinstance(run, Composition):
        require_no_options(bound, options, "a schedule")
        shared = {field.name: getattr(run, field.name) for field in fields(Composition)}
        return run if isinstance(run, PrivacyLoss) else PrivacyLoss(**shared)
    phase = phase_of(run, getattr(run, "name", ""), bound, **options)
    phase.check()
    return PrivacyLoss((phase,))


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The guarantee of a run in another privacy definition.

    Attributes:
        to: The privacy definition, one of those in :func:`convert`.
        value: The number, list of numbers or object, as in the table of :func:`convert`.
        side: "upper bound" (privacy parameters and losses), "lower bound" (false negative rates) or "exact".
        means: The meaning of the guarantee, as text.
        basis: The bound, status and assumptions, as a :class:`privproj.Result` whose value is not used.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.losses import convert
    >>> convert(Gaussian(noise_multiplier=2.0), "rho", steps=8).means
    'the Renyi divergence of every order a > 1, in both orders of neighbors, is at most value times a (zCDP)'
    """

    to: Form
    value: Any
    side: Side
    means: str
    basis: Result


def convert(
    run: Mechanism | Composition,
    to: Form,
    *,
    at: float | Sequence[float] | None = None,
    bound: str | None = None,
    **options: Unpack[RunOptions],
) -> Conversion:
    """Convert the guarantee of a run to another privacy definition.

    Numbers are rounded to the safe side. The table has the argument ``at`` and the value for each definition. With a
    slack, delta(epsilon) of the run is at most the larger of the slack and the delta of ``mu``-GDP at every epsilon.

    ===============  ==============================  ======================================================
    ``to``           ``at``                          ``value``
    ===============  ==============================  ======================================================
    "mu"             the slack, 1e-9 by default      mu of Gaussian differential privacy, rounded up
    "rho"            None                            rho of zero-concentrated DP, rounded up
    "renyi"          an order above 1, or several    the Renyi divergences at these orders, rounded up
    "trade-off"      false positive rates            the least false negative rates, rounded down
    "dp-accounting"  None                            a ``PrivacyLossDistribution`` that dominates the run
    ===============  ==============================  ======================================================

    Args:
        run: A privacy loss, a composition or a mechanism.
        to: The privacy definition.
        at: The argument in the table; a list gives a list of values.
        bound: The name of a bound of the mechanism; None takes its default. If this bound has no Renyi curve, Renyi
            divergences come from the Renyi bound of the mechanism.
        **options: The run of a mechanism (:class:`privproj.run.RunOptions`).

    Returns:
        The value with its side, bound and assumptions.

    Raises:
        InvalidParameterError: A value is out of range, or options are given with a privacy loss or a composition.
        UnsupportedError: No finite ``mu`` holds ("rho" needs one without slack), a phase has no Renyi curve, or a
            bound is refuted.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.losses import convert
    >>> [round(value, 9) for value in convert(Gaussian(noise_multiplier=2.0), "renyi", at=[2, 4], steps=8).value]
    [2.0, 4.0]
    >>> [round(rate, 4) for rate in convert(Gaussian(noise_multiplier=2.0), "trade-off", at=[0.01, 0.1]).value]
    [0.9661, 0.7828]
    """
    loss = privacy_loss(run, bound=bound, **options)
    if not isinstance(to, str) or to not in CONVERSIONS:
        raise unknown_name("to", to, "kind of privacy definition", get_args(Form))
    if any(not phase.bound.guarantees(phase.mechanism) for phase in loss.phases):
        raise UnsupportedError("a refuted bound cannot be converted")
    if at is not None and to in ("rho", "dp-accounting"):
        raise InvalidParameterError("at", at, f"omitted with to={to}")
    if to == "renyi":
        loss = _with_renyi_bounds(loss)
    several = isinstance(at, list | tuple)
    values, side = CONVERSIONS[to](loss, at if several else [at])
    # Renyi bounds of several phases have no joint curve, so divergences are added.
    basis = build_result(loss, "curve", 1.0) if to == "renyi" else loss.basis
    value = values if several else values[0]
    return Conversion(to=to, value=value, side=side, means=MEANS[to], basis=basis)


def _to_mu(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Return the parameter mu of Gaussian DP of the run, for each slack in ``at``.

    At every epsilon, delta(epsilon) of the run is at most the larger of the slack and the delta of ``mu``-GDP.
    """
    mus = [gdp_mu(loss, delta=DEFAULT_SLACK if slack is None else slack) for slack in at]
    for mu in (mu for mu in mus if not mu.usable):
        raise UnsupportedError(f"no finite mu holds for this run at slack {mu.delta or 0.0:g}. Use a larger slack")
    return [float(mu) for mu in mus], mus[0].side


def _to_rho(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Return the parameter rho of zero-concentrated DP, from mu of Gaussian DP."""
    # mu-GDP must hold at every epsilon, without slack
    (mu,), side = _to_mu(loss, [0.0])
    # rho = mu^2 / 2
    return [next_up(next_up(mu * mu) / 2.0)], side


def _to_renyi(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Return upper bounds on the Renyi divergences of the run at the orders ``at``."""
    orders = [real("at", order, "a number above 1 and at most 1e6", 1.0, 1e6, open_low=True) for order in at]
    totals = [0.0] * len(orders)
    for phase in loss.phases:
        curve: Any = phase.curve()
        totals = [next_up(total + curve.divergence_at(order)) for total, order in zip(totals, orders, strict=True)]
    for order, value in zip(orders, totals, strict=True):
        if not value < math.inf:
            raise UnsupportedError(
                f"the Renyi divergence of this run at order {order:g} is not finite. Use a smaller order"
            )
    return totals, Side.UPPER


def _with_renyi_bounds(loss: PrivacyLoss) -> PrivacyLoss:
    """Replace the bound of each phase by a Renyi bound of its mechanism.

    Raises:
        UnsupportedError: A phase has no Renyi bound.
    """
    for phase in loss.phases:
        if phase.accountant is not None:
            raise UnsupportedError(
                f"{phase.place} uses another accountant. Compute its Renyi divergence with that accountant"
            )
    phases = tuple(renyi_curve(phase)[0] for phase in loss.phases)
    return replace(loss, phases=phases)


def _to_tradeoff(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[float], Side]:
    """Return lower bounds on false negative rates at false positive rates ``at``."""
    rates = [real("at", rate, "a number from 0 to 1", 0.0, 1.0) for rate in at]
    return tradeoff(loss.curve(), rates), Side.LOWER


def _to_dp_accounting(loss: PrivacyLoss, at: Sequence[Any]) -> tuple[list[Any], Side]:
    """Return the dominating distribution as a list of one ``PrivacyLossDistribution``."""
    from privproj.integrations.dp_accounting import symmetric_distribution

    return [symmetric_distribution(loss.above)], Side.UPPER


# the meaning of ``value`` for each privacy definition
MEANS = {
    "mu": "delta(epsilon) is at most the larger of that of two Gaussians at the distance value, and of the slack",
    "rho": "the Renyi divergence of every order a > 1, in both orders of neighbors, is at most value times a (zCDP)",
    "renyi": "the Renyi divergence of this order, in both orders of neighbors, is at most value",
    "trade-off": "an attack with this false positive rate has at least the false negative rate value",
    "dp-accounting": "its epsilons and deltas are upper bounds up to the rounding of dp-accounting's composition",
}

# for each privacy definition, the function from a privacy loss and a list ``at`` to the values and their side
CONVERSIONS: dict[str, Any] = dict(
    zip(MEANS, (_to_mu, _to_rho, _to_renyi, _to_tradeoff, _to_dp_accounting), strict=True)
)
