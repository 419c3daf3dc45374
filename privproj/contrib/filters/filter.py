"""Filters: budgets for plans whose noise, rate, rank or number of steps react to what was released (C35).

Composition covers queries that react to outputs, not parameters that do. A filter does: it has a budget that is fixed
before the first release, counts what each release costs, and refuses the one that would overspend. Costs are floats
that were rounded up and are added as exact fractions, so the sum does not depend on the order or on how steps are
split, and no rounding admits an overspend. What is quoted is the epsilon of the whole budget, whatever was spent of it.
"""

import math
import threading
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, NoReturn

from privproj.accounting.calibration import sigma
from privproj.accounting.gdp import require_no_options
from privproj.accounting.phase import Phase
from privproj.accounting.query import Schedule, composition_of, run_of_several, solve_delta, solve_epsilon
from privproj.accounting.renyi import renyi_curve
from privproj.assumptions import FILTER_FIXED_IN_ADVANCE, PLANS
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import M2, Gaussian, Mechanism
from privproj.numerics.interval import next_up
from privproj.parameters import integer, real
from privproj.profiles.conversion import floor_log_delta, meets, read_epsilon
from privproj.profiles.gaussian import gaussian_profile
from privproj.profiles.privacy_profile import Curve
from privproj.profiles.rdp import OneOrder
from privproj.result import Result, Side, round_outward
from privproj.sampling import NeighbouringRelation, RelationName, member_named
from privproj.targets import FullTarget, delta_target, epsilon_target, full_target

LEAST_ORDER = 1.001
"""Smallest order of a filter. Contract."""

LARGEST_ORDER = 1e6
"""Largest order of a filter. Contract."""

LARGEST_BUDGET = 1e9
"""Largest budget of a filter. Contract."""

LEAST_COST = 1e-300
"""A release is counted with at least this cost, since a smaller one may have come out 0. Soundness."""

MOST_STEPS = 10**15
"""Largest number of steps that is answered. Contract."""

FIXED = ("order", "budget", "relation", "group_size")
"""What a filter is made with, and keeps. Soundness."""

HOPELESS = 1e4
"""Score of an order that leaves no budget, above that of every one that leaves some, in nats. Speed only."""


@lru_cache(maxsize=256)
def _cost_of(phase: Phase, order: float | None) -> tuple[Phase, Fraction]:
    """What one release costs, rounded up, exactly as it is counted, and the phase whose bound says so.

    That is ``D(alpha)`` at an order, and ``mu^2`` of Gaussian noise on the whole data set without one. Raises
    :class:`Refused` where it is not known or not finite, or the release no such noise.
    """
    if order is not None:
        phase, curve = renyi_curve(phase)
        divergence = curve.divergence_at(order)
        if not divergence < math.inf:
            raise Refused(
                f"{phase.mechanism.name}.{phase.bound.name} has no finite divergence at order {order:g}; expected "
                "less to be released, or a smaller order, fixed before the first release"
            )
        return phase, Fraction(max(divergence, LEAST_COST))
    phase.check()
    mechanism, run = phase.for_relation()
    projects = isinstance(mechanism, M2) and not mechanism.unprojected
    if not isinstance(mechanism, Gaussian | M2) or projects or run.sampling_rate < 1.0 or run.allocates:
        raise Refused(
            "a filter without an order counts Gaussian noise on whole data sets alone; use one with an order, which "
            "Filter.for_releases finds"
        )
    # mu^2, rounded up, with the count that adapts a clip where one is released (C31)
    return phase, Fraction(max(next_up(mechanism.mu_with_count * mechanism.mu_with_count), LEAST_COST))


def _curve_of(budget: float, order: float | None) -> Curve:
    """The curve that a whole budget guarantees: ``(alpha, budget)``-RDP, converted, or one Gaussian release."""
    return gaussian_profile(next_up(math.sqrt(budget))) if order is None else OneOrder(order, budget)


def _guess_budget(target: FullTarget, order: float | None) -> float:
    """About the largest budget that meets a target; at most 0 for none."""
    if order is not None:
        # B = eps - (ln(1/delta) - ln(alpha))/(alpha - 1) - ln(1 - 1/alpha)
        return target.epsilon - OneOrder(order, 0.0).price(floor_log_delta(target))
    noise: Any = sigma(Gaussian(), epsilon=target.epsilon, delta=target.delta).value
    return 0.0 if noise is None else noise**-2.0


def best_order(phase: Phase, target: FullTarget) -> float:
    """The order at which most releases like this one fit into the budget that meets a target, four digits of it.

    Every order is sound. It does not depend on the number of steps. Raises :class:`Refused` where no order leaves
    any budget, or where there is no Renyi curve.
    """
    curve = renyi_curve(_one_release(phase))[1]
    tried: dict[float, float] = {}

    def score(alpha: float) -> float:
        """The least is at the largest ``B(alpha)/D(alpha)``."""
        if not LEAST_ORDER <= alpha <= LARGEST_ORDER:
            return 2.0 * HOPELESS
        order = float(f"{alpha:.4g}")
        budget, cost = _guess_budget(target, order), curve.divergence_at(order)
        is_finite = 0.0 < cost < math.inf
        excess = math.log(cost) - math.log(budget) if is_finite and budget > 0.0 else HOPELESS + max(0.0, -budget)
        tried[order] = excess
        return excess

    if curve.least_over_orders(score) >= HOPELESS:
        raise Refused(f"no order leaves a budget for epsilon {target.epsilon:g} at delta {target.delta:g}")
    return min(tried, key=tried.__getitem__)


def _one_release(phase: Phase) -> Phase:
    """The phase of one release, checked for what no filter counts."""
    if phase.allow_refuted:
        raise InvalidParameter("allow_refuted", True, "bounds that hold, in a filter")
    if phase.run.scheme.is_shuffled:
        raise Refused("a filter does not count shuffled batches; use sampling=partition or poisson")
    if phase.reuses_projection:
        raise Refused(f"a filter counts fresh projections only, and {phase.mechanism.name} says that its is fixed")
    return replace(phase.with_run(steps=1), name="", planned=False)


class Filter:
    """A privacy budget for a plan that reacts to outputs: noise, rate, rank and the end may be chosen as one goes.

    The budget is fixed before the first release. A filter with an order counts the Renyi divergence of every release at
    one order ``alpha`` that is fixed too, and keeps ``sum_t D_t(alpha) <= B``; then all releases together are
    ``(alpha, B)``-RDP (claim C35). One without an order keeps ``sum_t mu_t^2 <= B`` for Gaussian noise on whole
    data sets, and loses nothing against a plan that is fixed in advance.

    Ask before the release: :meth:`spend` counts it, or refuses it and changes nothing. Threads may share a filter. It
    is neither copied nor pickled; a ledger whose target has an order keeps one on the disk.

    Args:
        epsilon: The epsilon to be met, above 0 and at most 1e9; with ``delta``, in place of ``budget``.
        delta: The delta to be met, above 0 and below 1.
        order: The order ``alpha``, from 1.001 to 1e6, or None for Gaussian noise on whole data sets. Sampled releases
            count at the next whole order. :meth:`for_releases` finds the one that suits a plan.
        budget: ``B``, above 0 and at most 1e9: nats at the order, or the sum of ``mu^2``.
        relation: Which data sets are neighbours, the same for all releases.
        group_size: The number of records of one person, the same for all releases.

    Attributes:
        order: The order, or None.
        budget: ``B``. From an epsilon and a delta it is the largest that meets both.
        relation: Which data sets are neighbours.
        group_size: The number of records of one person.

    Raises:
        InvalidParameter: An argument is outside its range, missing, or contradicts another.
        Refused: The order leaves no budget for ``epsilon`` and ``delta``.

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
        expected = "an order from 1.001 to 1e6, fixed before the first release (Filter.for_releases finds one)"
        self.order = None if order is None else real("order", order, expected, LEAST_ORDER, LARGEST_ORDER)
        self.relation = str(member_named(NeighbouringRelation, "relation", relation))
        self.group_size = integer("group_size", group_size, "a whole number of records >= 1", 1, 10**6)
        if budget is None and epsilon is not None and delta is not None:
            self.budget = self._largest_budget(full_target(epsilon, delta, None, zero=False))
        elif epsilon is not None or delta is not None:
            raise InvalidParameter("budget", budget or "nothing", "either a budget, or epsilon and delta")
        else:
            expected = "a budget above 0 and at most 1e9, or epsilon and delta"
            self.budget = real("budget", budget, expected, 0.0, LARGEST_BUDGET, open_low=True)
        self._steps: dict[Phase, int] = {}
        self._spent = Fraction(0)
        self._lock = threading.Lock()

    def __setattr__(self, name: str, value: object) -> None:
        if name in FIXED and name in vars(self):
            raise InvalidParameter(
                name, value, "a new filter", "what a filter was made with is fixed before any output"
            )
        super().__setattr__(name, value)

    def __reduce__(self) -> NoReturn:
        raise Refused(
            "a filter is neither copied nor pickled, for each copy would spend the whole budget: hand on the filter "
            "itself, or keep a ledger whose target has an order"
        )

    def __repr__(self) -> str:
        return f"Filter(order={self.order}, budget={self.budget!r}, spent={self.spent!r})"

    @classmethod
    def for_releases(
        cls, release: Mechanism | Phase, *, epsilon: float, delta: float, bound: str | None = None, **run: Any
    ) -> "Filter":
        """Make a filter at the order that suits a plan: most releases like this one fit.

        Call it before anything is released: the order must not depend on an output.

        Args:
            release: What will mainly be released, a mechanism or a phase of a schedule; nothing is spent yet.
            epsilon: The epsilon to be met, above 0 and at most 1e9.
            delta: The delta to be met, above 0 and below 1.
            bound: The name of a Renyi bound of the mechanism; None takes its own.
            **run: The run, as :class:`privproj.run.RunOptions` lists it; the number of steps plays no role.

        Returns:
            The filter, with nothing spent.

        Raises:
            InvalidParameter: A value is outside its domain.
            Refused: There is no Renyi curve for such releases, or no order leaves a budget.

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
        """What is spent of the budget, rounded up."""
        return _round_up(self._spent)

    @property
    def left(self) -> float:
        """What is left of the budget, rounded down."""
        return -_round_up(self._spent - Fraction(self.budget))

    def spend(self, release: Mechanism | Phase, *, bound: str | None = None, **run: Any) -> None:
        """Count releases, before they are made; where they do not all fit, none is counted.

        Args:
            release: What is to be released: a mechanism, or a phase of a schedule in place of the other arguments.
            bound: The name of a Renyi bound of the mechanism; None takes its own.
            **run: The run, as :class:`privproj.run.RunOptions` lists it, with the number of ``steps``.

        Raises:
            InvalidParameter: A value is outside its domain, or the relation is not that of the filter.
            Refused: The releases would overspend the budget, or their cost is not known. Nothing has changed.

        >>> from privproj import Gaussian, Refused
        >>> from privproj.contrib.filters import Filter
        >>> budget = Filter(epsilon=1.0, delta=1e-5)
        >>> budget.spend(Gaussian(noise_multiplier=10.0), steps=7)
        >>> try:
        ...     budget.spend(Gaussian(noise_multiplier=2.0))
        ... except Refused:
        ...     print(budget.most_steps(Gaussian(noise_multiplier=10.0)))
        0
        """
        phase = _phase_of(release, bound, run, self)
        one, cost = self._cost(phase)
        with self._lock:
            fit = self._fitting(cost)
            if phase.run.steps > fit:
                raise Refused(
                    f"{phase.run.steps} more of these releases would overspend the budget that was fixed in "
                    f"advance: {round_outward(self.left, up=False)} of {self.budget:.4g} is left and each costs "
                    f"{round_outward(_round_up(cost))}, so {fit} fit and none was counted"
                )
            self._spent += cost * phase.run.steps
            self._steps[one] = self._steps.get(one, 0) + phase.run.steps

    def fits(self, release: Mechanism | Phase, *, bound: str | None = None, **run: Any) -> bool:
        """Return True if :meth:`spend` with the same arguments would count the releases.

        Args:
            release: What is to be released: a mechanism, or a phase of a schedule in place of the other arguments.
            bound: The name of a Renyi bound of the mechanism; None takes its own.
            **run: The run, as :class:`privproj.run.RunOptions` lists it, with the number of ``steps``.

        Returns:
            True if all of them fit.

        Raises:
            InvalidParameter: A value is outside its domain, or the relation is not that of the filter.
            Refused: The cost of such a release is not known.

        >>> from privproj import Gaussian
        >>> from privproj.contrib.filters import Filter
        >>> Filter(epsilon=1.0, delta=1e-5, order=20).fits(Gaussian(noise_multiplier=10.0), steps=3)
        True
        """
        phase = _phase_of(release, bound, run, self)
        return phase.run.steps <= self._fitting(self._cost(phase)[1])

    def most_steps(self, release: Mechanism | Phase, *, bound: str | None = None, **run: Any) -> int:
        """Return how many releases like this one still fit.

        Args:
            release: What is to be released: a mechanism, or a phase of a schedule in place of the other arguments.
            bound: The name of a Renyi bound of the mechanism; None takes its own.
            **run: The run, as :class:`privproj.run.RunOptions` lists it; the number of steps plays no role.

        Returns:
            A number of steps up to 1e15; 0 if none fits.

        Raises:
            InvalidParameter: A value is outside its domain, or the relation is not that of the filter.
            Refused: The cost of such a release is not known.

        >>> from privproj import Gaussian
        >>> from privproj.contrib.filters import Filter
        >>> Filter(epsilon=1.0, delta=1e-5, order=20).most_steps(Gaussian(noise_multiplier=10.0))
        6
        """
        return self._fitting(self._cost(_phase_of(release, bound, run, self))[1])

    def epsilon(self, delta: float) -> Result:
        """Return the epsilon of the whole budget at a delta, rounded up; it is what may be quoted at any time.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.

        Returns:
            A result whose ``value`` is epsilon.

        Raises:
            InvalidParameter: ``delta`` is outside its range.

        >>> from privproj.contrib.filters import Filter
        >>> round(Filter(order=16, budget=0.5).epsilon(1e-6).value, 4)
        1.1717
        """
        return solve_epsilon(_BudgetQuestion(self.phases, budget=self), delta_target(delta, None))

    def delta(self, epsilon: float) -> Result:
        """Return the delta of the whole budget at an epsilon, rounded up.

        Args:
            epsilon: The epsilon of the guarantee, from 0 to 1e9.

        Returns:
            A result whose ``value`` is delta.

        Raises:
            InvalidParameter: ``epsilon`` is outside its range.

        >>> from privproj.contrib.filters import Filter
        >>> Filter(order=16, budget=0.5).delta(1.2).value < 1e-6
        True
        """
        return solve_delta(_BudgetQuestion(self.phases, budget=self), epsilon_target(epsilon))

    def epsilon_of_spent(self, delta: float) -> float:
        """Return the epsilon of a budget that is just what was spent: what a plan fixed in advance pays at this order.

        It is no guarantee for a plan that reacts to outputs; :meth:`epsilon` is.

        Args:
            delta: The delta, above 0 and below 1.

        Returns:
            Epsilon, rounded up; 0 where nothing was spent.

        Raises:
            InvalidParameter: ``delta`` is outside its range.

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
        """Return the filter as plain values.

        Returns:
            ``order`` (or None), ``budget``, and ``spent``, rounded up.
        """
        return {"order": self.order, "budget": self.budget, "spent": self.spent}

    def curve(self) -> Curve:
        """Return the curve of the whole budget, delta against epsilon."""
        return _curve_of(self.budget, self.order)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The releases that were counted, numbered, with their numbers of steps."""
        counted = enumerate(self._steps.items(), 1)
        return tuple(replace(one.with_run(steps=steps), name=str(i)) for i, (one, steps) in counted)

    def _cost(self, phase: Phase) -> tuple[Phase, Fraction]:
        """What one release like this costs, and the phase whose bound says so, under the relation of the filter."""
        one = _one_release(phase)
        if (str(one.run.relation), one.run.group_size) != (self.relation, self.group_size):
            pair = f"{one.run.relation} for groups of {one.run.group_size}"
            expected = f"{self.relation} for groups of {self.group_size}, as the filter was made"
            raise InvalidParameter("relation", pair, expected)
        return _cost_of(one, self.order)

    def _fitting(self, cost: Fraction) -> int:
        """How many releases of this cost fit, up to 1e15."""
        return min(MOST_STEPS, int((Fraction(self.budget) - self._spent) // cost))

    def _largest_budget(self, target: FullTarget) -> float:
        """The largest budget that meets a target, but for a few roundings; what is returned was seen to meet it."""
        budget, step = _guess_budget(target, self.order), 1e-15
        while budget > 0.0 and not meets(_curve_of(budget, self.order), target):
            # A conversion rounds by units of epsilon, a squared shift by units of itself.
            budget, step = budget - step * (budget if self.order is None else 1.0 + budget), 4.0 * step
        if budget <= 0.0:
            kind, more = ("noise up to 1e12", "") if self.order is None else (f"order {self.order:.7g}", "order, ")
            raise Refused(
                f"{kind} leaves no budget for epsilon {target.epsilon:g} at delta {target.delta:g}; expected a larger "
                f"{more}epsilon or delta"
            )
        return budget


@dataclass(frozen=True)
class _BudgetQuestion(Schedule):
    """A question about the whole budget of a filter; its phases are the releases that were counted."""

    budget: Filter = field(kw_only=True)
    is_plain: ClassVar[bool] = False  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        """Allow a filter without releases."""

    @property
    def remedy(self) -> str:
        """What makes epsilon smaller, in words for a message."""
        return "a smaller budget, fixed before the first release"

    def curve(self) -> Curve:
        """The curve of the whole budget."""
        return self.budget.curve()

    @property
    def run_assumes(self) -> tuple[str, ...]:
        """What phases take for granted but for a plan of them, and that the filter was fixed in advance."""
        return (*(words for words in super().run_assumes if words not in PLANS), FILTER_FIXED_IN_ADVANCE)

    def side(self, curve: Curve) -> Side:
        """Always an upper bound: the whole budget is quoted, whatever was spent of it."""
        return Side.UPPER

    def named(self) -> dict[str, Any]:
        """The filter, and all releases that were counted."""
        budget, fields = self.budget, super().named()
        fields["mechanism"]["filter"] = budget.parameters()
        shared = {"relation": budget.relation, "group_size": budget.group_size, "assumes": self.run_assumes}
        kind = "gaussian-filter" if budget.order is None else "renyi-filter"
        bound = f"{kind} ({fields['bound']})" if fields["bound"] else kind
        run = {**run_of_several(self.phases), **shared}
        return {**fields, "run": run, "bound": bound, "source": SOURCES[budget.order is None]}


SOURCES = (
    "Feldman, Zrnic 2021 (arXiv 2008.11193); conversion Canonne, Kamath, Steinke 2020 (docs/proofs.md, C35)",
    "Smith, Thakurta 2022 (arXiv 2210.17520); profile Balle, Wang 2018 (docs/proofs.md, C35)",
)
"""What a filter rests on: with an order, without one."""


def _phase_of(
    release: Mechanism | Phase, bound: str | None, run: dict[str, Any], budget: Filter | None = None
) -> Phase:
    """The phase that a release and the options of a run make; the relation of a filter is that of its releases."""
    if isinstance(release, Phase):
        require_no_options(bound, run, "a phase")
        return release
    shared = {} if budget is None else {"relation": budget.relation, "group_size": budget.group_size}
    return composition_of(release, bound, {**shared, **run}).only  # pyright: ignore[reportArgumentType]


def _round_up(exact: Fraction) -> float:
    """The least double that is not below an exact number."""
    near = float(exact)
    return near if near >= exact else math.nextafter(near, math.inf)
