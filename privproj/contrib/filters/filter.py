"""Enforce a privacy budget for plans that depend on outputs (C35: filters).

A filter fixes a privacy budget before the first release, counts the cost of every release, and rejects a release that
would exceed the budget. So the parameters of a release may depend on earlier outputs, which ordinary composition does
not allow. Report the epsilon of the whole budget, even if a part was not spent.

Costs are rounded up and added as exact fractions. So rounding cannot cause an overspend, and the order of the releases
does not matter.
"""

import math
import threading
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NoReturn

from privproj.accounting.calibration import sigma
from privproj.accounting.gdp import require_no_options
from privproj.accounting.phase import Phase
from privproj.accounting.query import Composition, composition_of, run_of_several, solve_delta, solve_epsilon
from privproj.accounting.renyi import renyi_curve
from privproj.assumptions import FIXED_SCHEDULES, Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import M2, Gaussian, Mechanism
from privproj.numerics.interval import next_up
from privproj.parameters import integer, real
from privproj.profiles.conversion import floor_log_delta, meets, read_epsilon
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import Curve
from privproj.profiles.rdp import OneOrder
from privproj.result import Result, Side, round_outward
from privproj.sampling import NeighboringRelation, RelationName, member_named
from privproj.targets import FullTarget, delta_target, epsilon_target, full_target

LEAST_ORDER = 1.001  # smallest order of a filter

LARGEST_ORDER = 1e6  # largest order of a filter

LARGEST_BUDGET = 1e9  # largest budget of a filter

LEAST_COST = 1e-300  # soundness: smallest cost of a release, because a smaller one may have underflowed to 0

MOST_STEPS = 10**15  # largest number of steps that is returned

FIXED = ("order", "budget", "relation", "group_size")  # soundness: attributes that never change

HOPELESS = 1e4  # nats; score of an order that leaves no budget, above the score of every other order


@lru_cache(maxsize=256)
def _cost_of(phase: Phase, order: float | None) -> tuple[Phase, Fraction]:
    """Return a phase with the bound that a filter uses, and the cost of one release.

    The cost is the Renyi divergence at ``order``. If ``order`` is None, the cost is ``mu^2``, where ``mu`` is the
    sensitivity divided by the noise standard deviation. Costs are rounded up.

    Raises:
        UnsupportedError: The cost is unknown or infinite; or ``order`` is None and the release is not Gaussian noise on
            the whole dataset.
    """
    if order is not None:
        phase, curve = renyi_curve(phase)
        divergence = curve.divergence_at(order)
        if not divergence < math.inf:
            raise UnsupportedError(
                f"{phase.mechanism.name}.{phase.bound.name} has no finite divergence at order {order:g}. Use "
                "more noise, or a smaller order, fixed before the first release"
            )
        return phase, Fraction(max(divergence, LEAST_COST))
    phase.check()
    mechanism, run = phase.for_relation()
    projects = isinstance(mechanism, M2) and not mechanism.unprojected
    if not isinstance(mechanism, Gaussian | M2) or projects or run.sampling_rate < 1.0 or run.allocates:
        raise UnsupportedError(
            "a filter without an order supports Gaussian noise on whole datasets only. Use Filter.for_releases, which "
            "chooses an order"
        )
    # mu^2, rounded up, including the count of adaptive clipping (C31)
    return phase, Fraction(max(next_up(mechanism.mu_with_count * mechanism.mu_with_count), LEAST_COST))


def _curve_of(budget: float, order: float | None) -> Curve:
    """Return the privacy curve that the whole ``budget`` of a filter guarantees."""
    # the curve of Gaussian noise with sensitivity over noise sqrt(budget), or of (order, budget)-RDP
    return gaussian_profile(next_up(math.sqrt(budget))) if order is None else OneOrder(order, budget)


def _guess_budget(target: FullTarget, order: float | None) -> float:
    """Estimate the largest budget of a filter that meets an epsilon and a delta.

    The result is at most 0 if no budget meets them.
    """
    if order is not None:
        # B = eps - (ln(1/delta) - ln(alpha))/(alpha - 1) - ln(1 - 1/alpha)
        return target.epsilon - OneOrder(order, 0.0).price(floor_log_delta(target))
    noise: Any = sigma(Gaussian(), epsilon=target.epsilon, delta=target.delta).value
    return 0.0 if noise is None else noise**-2.0


def best_order(phase: Phase, target: FullTarget) -> float:
    """Return the Renyi order at which the most releases fit into an epsilon and delta.

    Every order is sound. The number of steps of ``phase`` does not matter.

    Raises:
        UnsupportedError: No order leaves a budget, or there is no Renyi curve.
    """
    curve = renyi_curve(_one_release(phase))[1]
    tried: dict[float, float] = {}

    # ln(cost / budget) at an order, to be minimized; a large number without a budget
    def score(alpha: float) -> float:
        if not LEAST_ORDER <= alpha <= LARGEST_ORDER:
            return 2.0 * HOPELESS
        order = float(f"{alpha:.4g}")
        budget, cost = _guess_budget(target, order), curve.divergence_at(order)
        is_finite = 0.0 < cost < math.inf
        excess = math.log(cost) - math.log(budget) if is_finite and budget > 0.0 else HOPELESS + max(0.0, -budget)
        tried[order] = excess
        return excess

    if curve.least_over_orders(score) >= HOPELESS:
        raise UnsupportedError(
            f"no order leaves a budget for epsilon {target.epsilon:g} at delta "
            f"{target.delta:g}. Use a larger epsilon or delta"
        )
    return min(tried, key=tried.__getitem__)


def _one_release(phase: Phase) -> Phase:
    """Return a phase with one step, to compute the cost of one release.

    Raises:
        InvalidParameterError: The phase allows refuted bounds.
        UnsupportedError: A filter cannot count the release, because batches are shuffled or a projection is reused.
    """
    if phase.allow_refuted:
        raise InvalidParameterError("allow_refuted", True, "false in a filter")
    if phase.run.scheme.is_shuffled:
        raise UnsupportedError("a filter does not support shuffled batches. Use sampling=partition or poisson")
    if phase.reuses_projection:
        raise UnsupportedError(
            f"a filter does not support {phase.mechanism.name} with a fixed "
            f"projection. Use a fresh projection for each release"
        )
    return replace(phase.with_run(steps=1), name="", planned=False)


class Filter:
    """A privacy budget for a plan whose parameters may depend on earlier outputs.

    These parameters are noise, sampling rate, rank and number of steps. The budget ``B`` is fixed before the first
    release. A filter with an order enforces ``sum_t D_t(alpha) <= B``, where ``D_t(alpha)`` is the Renyi divergence of
    release ``t`` at one fixed order ``alpha``. Then all releases together are ``(alpha, B)``-RDP (Feldman, Zrnic 2021,
    arXiv 2008.11193; claim C35). A filter without an order enforces ``sum_t mu_t^2 <= B`` for Gaussian noise on the
    whole dataset, where ``mu_t`` is the sensitivity divided by the noise standard deviation (Smith, Thakurta 2022,
    arXiv 2210.17520).

    Call :meth:`spend` before each release. This method counts the release, or rejects it and changes nothing. Threads
    may share a filter. A filter cannot be copied or pickled, because each copy could spend the whole budget. To store a
    filter, use a ledger whose target has an order.

    Args:
        epsilon: The target epsilon, above 0 and at most 1e9. Give ``epsilon`` and ``delta``, or ``budget``.
        delta: The target delta, above 0 and below 1.
        order: The order ``alpha``, from 1.001 to 1e6, or None for Gaussian noise on the whole dataset. Sampled releases
            are counted at the next integer order. :meth:`for_releases` chooses an order for a plan.
        budget: ``B``, above 0 and at most 1e9. With an order, the unit is nats; without one, ``B`` limits a sum of
            ``mu_t^2``.
        relation: The neighboring relation of all releases.
        group_size: The number of records of one user, the same for all releases.

    Attributes:
        order: The order, or None.
        budget: ``B``; for a target epsilon and delta, the largest budget that meets the target.
        relation: The neighboring relation.
        group_size: The number of records of one user.

    Raises:
        InvalidParameterError: An argument is out of range, missing, or contradicts another.
        UnsupportedError: The order leaves no budget for ``epsilon`` and ``delta``.

    >>> from privproj import M2, Gaussian
    >>> from privproj.contrib.filters import Filter
    >>> budget = Filter(epsilon=3.0, delta=1e-5, order=8)
    >>> budget.spend(Gaussian(noise_multiplier=1.0), sampling_rate=0.01, steps=500)
    >>> adapters = M2(dim=2048, rank=16, noise_multiplier=0.2)
    >>> budget.most_steps(adapters, sampling_rate=0.01)
    15058
    >>> round(budget.epsilon(delta=1e-5).value, 6)
    3.0
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        order: float | None = None,
        budget: float | None = None,
        relation: RelationName = "add-remove",
        group_size: int = 1,
    ) -> None:
        expected = "a number from 1.001 to 1e6"
        self.order = None if order is None else real("order", order, expected, LEAST_ORDER, LARGEST_ORDER)
        self.relation = str(member_named(NeighboringRelation, "relation", relation))
        self.group_size = integer("group_size", group_size, "an integer >= 1", 1, 10**6)
        if budget is None and epsilon is not None and delta is not None:
            self.budget = self._largest_budget(full_target(epsilon, delta, None, zero=False))
        elif budget is None:
            missing = "budget" if epsilon is delta is None else "delta" if delta is None else "epsilon"
            raise InvalidParameterError(missing, "nothing", "a number", "give epsilon and delta, or a budget")
        elif epsilon is not None or delta is not None:
            raise InvalidParameterError("budget", budget, "omitted if epsilon or delta is given")
        else:
            expected = "a number above 0 and at most 1e9"
            self.budget = real("budget", budget, expected, 0.0, LARGEST_BUDGET, open_low=True)
        self._steps: dict[Phase, int] = {}
        self._spent = Fraction(0)
        self._lock = threading.Lock()

    def __setattr__(self, name: str, value: object) -> None:
        if name in FIXED and name in vars(self):
            raise InvalidParameterError(
                name, value, "unchanged", "create a new filter, because these values are fixed before the first release"
            )
        super().__setattr__(name, value)

    def __reduce__(self) -> NoReturn:
        raise UnsupportedError(
            "a filter cannot be copied or pickled, because each copy would spend the whole budget. Pass the filter "
            "itself, or keep a ledger whose target has an order"
        )

    def __repr__(self) -> str:
        return f"Filter(order={self.order}, budget={self.budget!r}, spent={self.spent!r})"

    @classmethod
    def for_releases(
        cls, release: Mechanism | Phase, *, epsilon: float, delta: float, bound: str | None = None, **run: Any
    ) -> "Filter":
        """Return a filter with the Renyi order at which the most releases fit.

        Call this method before the first release, because the order must not depend on an output.

        Args:
            release: A typical release, as a mechanism or a phase of a schedule; it is not counted.
            epsilon: The target epsilon, above 0 and at most 1e9.
            delta: The target delta, above 0 and below 1.
            bound: The name of a Renyi bound of the mechanism; None takes the default one.
            **run: The run (:class:`privproj.run.RunOptions`); its number of steps is ignored.

        Returns:
            The filter, with nothing spent.

        Raises:
            InvalidParameterError: A value is out of range.
            UnsupportedError: There is no Renyi curve for such releases, or no order leaves a budget.

        >>> from privproj import Gaussian
        >>> from privproj.contrib.filters import Filter
        >>> Filter.for_releases(Gaussian(noise_multiplier=1.0), epsilon=3.0, delta=1e-5, sampling_rate=0.01).order
        7.0
        """
        phase = _phase_of(release, bound, run)
        order = best_order(phase, full_target(epsilon, delta, None, zero=False))
        relation, size = phase.run.relation, phase.run.group_size
        return cls(epsilon=epsilon, delta=delta, order=order, relation=str(relation), group_size=size)  # pyright: ignore

    @property
    def spent(self) -> float:
        """The spent part of the budget, rounded up.

        With an order, the unit is nats. Without an order, the value is a sum of ``mu^2``, where ``mu`` is the
        sensitivity divided by the noise standard deviation.
        """
        return _round_up(self._spent)

    @property
    def left(self) -> float:
        """The remaining part of the budget, rounded down; in the unit of :attr:`spent`."""
        return -_round_up(self._spent - Fraction(self.budget))

    def spend(self, release: Mechanism | Phase, *, bound: str | None = None, **run: Any) -> None:
        """Count releases before they are made, or raise an error if they do not fit.

        If not all of the releases fit into the budget, none of them is counted.

        Args:
            release: A mechanism; or a phase of a schedule, which needs no other arguments.
            bound: The name of a Renyi bound of the mechanism; None takes the default one.
            **run: The run (:class:`privproj.run.RunOptions`), with the number of ``steps``.

        Raises:
            InvalidParameterError: A value is out of range, or the relation is not that of the filter.
            UnsupportedError: The releases would exceed the budget, or their cost is unknown. Nothing has changed.

        >>> from privproj import Gaussian, UnsupportedError
        >>> from privproj.contrib.filters import Filter
        >>> budget = Filter(epsilon=1.0, delta=1e-5)
        >>> budget.spend(Gaussian(noise_multiplier=10.0), steps=7)
        >>> try:
        ...     budget.spend(Gaussian(noise_multiplier=2.0))
        ... except UnsupportedError:
        ...     print(budget.most_steps(Gaussian(noise_multiplier=10.0)))
        0
        """
        phase = _phase_of(release, bound, run, self)
        one, cost = self._cost(phase)
        with self._lock:
            fit = self._fitting(cost)
            if phase.run.steps > fit:
                releases = "1 more release" if phase.run.steps == 1 else f"{phase.run.steps} more releases"
                raise UnsupportedError(
                    f"{releases} would exceed the budget: {round_outward(self.left, up=False)} of "
                    f"{self.budget:.4g} is left and each release costs {round_outward(_round_up(cost))}. Nothing was "
                    f"counted; {fit} releases fit. Use {phase.mechanism.remedy}, or stop"
                )
            self._spent += cost * phase.run.steps
            self._steps[one] = self._steps.get(one, 0) + phase.run.steps

    def fits(self, release: Mechanism | Phase, *, bound: str | None = None, **run: Any) -> bool:
        """Return whether :meth:`spend` with the same arguments would count the releases.

        Args:
            release: A mechanism; or a phase of a schedule, which needs no other arguments.
            bound: The name of a Renyi bound of the mechanism; None takes the default one.
            **run: The run (:class:`privproj.run.RunOptions`), with the number of ``steps``.

        Returns:
            True if all of the releases fit.

        Raises:
            InvalidParameterError: A value is out of range, or the relation is not that of the filter.
            UnsupportedError: The cost of such a release is unknown.

        >>> from privproj import Gaussian
        >>> from privproj.contrib.filters import Filter
        >>> Filter(epsilon=1.0, delta=1e-5, order=20).fits(Gaussian(noise_multiplier=10.0), steps=3)
        True
        """
        phase = _phase_of(release, bound, run, self)
        return phase.run.steps <= self._fitting(self._cost(phase)[1])

    def most_steps(self, release: Mechanism | Phase, *, bound: str | None = None, **run: Any) -> int:
        """Return the number of releases of this kind that still fit into the budget.

        Args:
            release: A mechanism; or a phase of a schedule, which needs no other arguments.
            bound: The name of a Renyi bound of the mechanism; None takes the default one.
            **run: The run (:class:`privproj.run.RunOptions`); its number of steps is ignored.

        Returns:
            A number of releases up to 1e15; 0 if none fits.

        Raises:
            InvalidParameterError: A value is out of range, or the relation is not that of the filter.
            UnsupportedError: The cost of such a release is unknown.

        >>> from privproj import Gaussian
        >>> from privproj.contrib.filters import Filter
        >>> Filter(epsilon=1.0, delta=1e-5, order=20).most_steps(Gaussian(noise_multiplier=10.0))
        6
        """
        return self._fitting(self._cost(_phase_of(release, bound, run, self))[1])

    def epsilon(self, delta: float) -> Result:
        """Return the epsilon that the whole budget guarantees, rounded up.

        You may report this epsilon at any time.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            A result whose ``value`` is epsilon.

        Raises:
            InvalidParameterError: ``delta`` is out of range.

        >>> from privproj.contrib.filters import Filter
        >>> round(Filter(order=16, budget=0.5).epsilon(1e-6).value, 4)
        1.1717
        """
        return solve_epsilon(_BudgetQuery(self.phases, budget=self), delta_target(delta, None))

    def delta(self, epsilon: float) -> Result:
        """Return the delta that the whole budget guarantees, rounded up.

        Args:
            epsilon: The epsilon of the guarantee, from 0 to 1e9.

        Returns:
            A result whose ``value`` is delta.

        Raises:
            InvalidParameterError: ``epsilon`` is out of range.

        >>> from privproj.contrib.filters import Filter
        >>> Filter(order=16, budget=0.5).delta(1.2).value < 1e-6
        True
        """
        return solve_delta(_BudgetQuery(self.phases, budget=self), epsilon_target(epsilon))

    def epsilon_of_spent(self, delta: float) -> float:
        """Return the epsilon of the spent part of the budget, rounded up.

        This epsilon is a guarantee only for a plan that is fixed in advance. For a plan that depends on earlier
        outputs, use :meth:`epsilon`.

        Args:
            delta: The delta, above 0 and below 1.

        Returns:
            Epsilon, rounded up; 0 if nothing was spent.

        Raises:
            InvalidParameterError: ``delta`` is out of range.

        >>> from privproj import Gaussian
        >>> from privproj.contrib.filters import Filter
        >>> budget = Filter(epsilon=1.0, delta=1e-5, order=20)
        >>> budget.spend(Gaussian(noise_multiplier=10.0), steps=3)
        >>> round(budget.epsilon_of_spent(1e-5), 4)
        0.697
        """
        target = delta_target(delta, None)
        return read_epsilon(_curve_of(self.spent, self.order), target).upper if self._spent else 0.0

    def parameters(self) -> dict[str, float | None]:
        """Return the order and the budget of the filter as plain values.

        Returns:
            ``order`` (or None), ``budget``, and ``spent``, rounded up.
        """
        return {"order": self.order, "budget": self.budget, "spent": self.spent}

    def curve(self) -> Curve:
        """Return the privacy curve of the whole budget."""
        return _curve_of(self.budget, self.order)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The counted releases as phases; equal releases form one phase."""
        counted = enumerate(self._steps.items(), 1)
        return tuple(replace(one.with_run(steps=steps), name=str(i)) for i, (one, steps) in counted)

    def _cost(self, phase: Phase) -> tuple[Phase, Fraction]:
        """Return one release of a phase with the bound that the filter uses, and its cost."""
        one = _one_release(phase)
        if (str(one.run.relation), one.run.group_size) != (self.relation, self.group_size):
            actual = f"{one.run.relation} for groups of {one.run.group_size}"
            expected = f"{self.relation} with group_size {self.group_size}, as in the filter"
            raise InvalidParameterError("relation", actual, expected)
        return _cost_of(one, self.order)

    def _fitting(self, cost: Fraction) -> int:
        """Return the number of releases of this cost that fit into the budget, up to 1e15."""
        return min(MOST_STEPS, int((Fraction(self.budget) - self._spent) // cost))

    def _largest_budget(self, target: FullTarget) -> float:
        """Return nearly the largest budget that meets an epsilon and a delta.

        Raises:
            UnsupportedError: No budget above 0 meets the target.
        """
        budget, step = _guess_budget(target, self.order), 1e-15
        while budget > 0.0 and not meets(_curve_of(budget, self.order), target):
            # The conversion of an order has an absolute rounding error; mu^2 has a relative one.
            budget, step = budget - step * (budget if self.order is None else 1.0 + budget), 4.0 * step
        if budget <= 0.0:
            kind, more = ("noise up to 1e12", "") if self.order is None else (f"order {self.order:.7g}", "order, ")
            raise UnsupportedError(
                f"{kind} leaves no budget for epsilon {target.epsilon:g} at delta {target.delta:g}. Use a larger "
                f"{more}epsilon or delta"
            )
        return budget


@dataclass(frozen=True)
class _BudgetQuery(Composition):
    """The query for epsilon or delta of the whole budget of a filter.

    Its phases are the releases counted so far.
    """

    budget: Filter = field(kw_only=True)

    @property
    def is_plain(self) -> bool:
        """False, because a filter is never reported as a single mechanism."""
        return False

    def __post_init__(self) -> None:
        """Skip the checks of the base class, because a filter may have no releases yet."""

    @property
    def remedy(self) -> str:
        return "a smaller budget, fixed before the first release"

    def curve(self) -> Curve:
        return self.budget.curve()

    @property
    def run_requirements(self) -> tuple[str, ...]:
        """The requirements of the phases, but the budget is fixed instead of the schedule."""
        return (
            *(requirement for requirement in super().run_requirements if requirement not in FIXED_SCHEDULES),
            Requirement.FIXED_FILTER,
        )

    def side(self, curve: Curve) -> Side:
        """Return "upper bound", because the result covers the whole budget."""
        return Side.UPPER

    def named(self) -> dict[str, Any]:
        """Return the fields of a result that describe the filter and the counted releases."""
        budget, fields = self.budget, super().named()
        fields["mechanism"]["filter"] = budget.parameters()
        shared = {"relation": budget.relation, "group_size": budget.group_size, "requirements": self.run_requirements}
        kind = "gaussian-filter" if budget.order is None else "renyi-filter"
        bound = f"{kind} ({fields['bound']})" if fields["bound"] else kind
        run = {**run_of_several(self.phases), **shared}
        return {**fields, "run": run, "bound": bound, "source": SOURCES[budget.order is None]}


# sources of filters with an order, and of those without one
SOURCES = (
    "Feldman, Zrnic 2021 (arXiv 2008.11193); conversion Canonne, Kamath, Steinke 2020 (docs/proofs.md, C35)",
    "Smith, Thakurta 2022 (arXiv 2210.17520); profile Balle, Wang 2018 (docs/proofs.md, C35)",
)


def _phase_of(
    release: Mechanism | Phase, bound: str | None, run: dict[str, Any], budget: Filter | None = None
) -> Phase:
    """Return a release as a phase, with the options of its run.

    The relation and the group size default to those of the filter ``budget``.

    Raises:
        InvalidParameterError: Options are given with a phase, or a value is out of range.
    """
    if isinstance(release, Phase):
        require_no_options(bound, run, "a phase")
        return release
    shared = {} if budget is None else {"relation": budget.relation, "group_size": budget.group_size}
    return composition_of(release, bound, {**shared, **run}).only  # pyright: ignore[reportArgumentType]


def _round_up(exact: Fraction) -> float:
    """Round an exact number up to a double."""
    near = float(exact)
    return near if near >= exact else math.nextafter(near, math.inf)
