"""Use releases of privproj as events of dp-accounting.

The accountants in this module support the events of both packages.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import attrs
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import PLDAccountant, pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant

from privproj.accounting.phase import Phase, phase_for
from privproj.accounting.schedule import Composition, phase_of
from privproj.assumptions import Requirement
from privproj.composition.compose import releases_of
from privproj.composition.dominating_pairs import CoarseDescription, DominatingPair, describe_coarsely
from privproj.errors import InvalidParameterError, PrecisionError, PrivprojError, UnsupportedError
from privproj.io.ledger import Account
from privproj.mechanisms import Gaussian, Laplace, Mechanism, NoisyMechanism
from privproj.mechanisms.registry import find_bound, renyi_bound
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.profiles.rdp import RenyiCurve
from privproj.run import Run, RunOptions
from privproj.sampling import NeighboringRelation, RelationName

__all__ = ["BallsInBinsDpEvent", "ProjectionPLDAccountant", "ProjectionRdpAccountant", "ReleaseDpEvent", "event_of"]

Relation = privacy_accountant.NeighboringRelation  # neighboring relations of dp-accounting

# soundness: the relations that both packages have; each pair means the same neighboring datasets
RELATIONS: dict[Relation, RelationName] = {
    Relation.ADD_OR_REMOVE_ONE: "add-remove",
    Relation.REPLACE_ONE: "replace",
    Relation.REPLACE_SPECIAL: "zero-out",
}

# the return value of an accountant of dp-accounting for an event that it does not support
Problem = privacy_accountant.PrivacyAccountant.CompositionErrorDetails


# remedy in errors of compositions by dp-accounting
COMPOSITION_REMEDY = "Use a larger delta, more noise, or a Renyi bound."

MOST_GRID_CELLS = 2**23  # largest number of cells of a grid

# a dense privacy loss distribution of one release, and the number of its repetitions
Part = tuple[PrivacyLossDistribution, int]


@attrs.frozen
class ReleaseDpEvent(dp_event.DpEvent):
    """One release of a mechanism of privproj, as an event of dp-accounting.

    The noise multiplier of the mechanism is the standard deviation of the noise over the sensitivity under
    ``relation``. For Laplace noise it is the scale of the noise over the sensitivity.

    Args:
        mechanism: The released mechanism, with its noise multiplier, rank and assumptions on the data.
        bound: The name of a bound of the mechanism. None uses the default bound, or the Renyi bound in the Renyi
            accountant.
        relation: The neighboring relation, "add-remove", "zero-out" or "replace". An accountant with another relation
            rejects the event. None uses the relation of the accountant, with a warning under replace.

    >>> from privproj import M2
    >>> from privproj.integrations.dp_accounting import ReleaseDpEvent
    >>> event = ReleaseDpEvent(M2(dim=64, rank=8, noise_multiplier=2.0), relation="add-remove")
    >>> event.mechanism.rank
    8
    """

    mechanism: Mechanism
    bound: str | None = None
    relation: RelationName | None = None


@attrs.frozen
class BallsInBinsDpEvent(dp_event.DpEvent):
    """One epoch of balls-in-bins: each record is in ``batches_per_record`` random batches.

    :class:`ProjectionPLDAccountant` supports this event if the inner event is a :class:`ReleaseDpEvent`. All other
    accountants reject this event.

    Args:
        event: The release of a batch.
        batches: The number of batches in the epoch, at least 1.
        batches_per_record: The number of different batches of each record, at least 1.

    >>> from dp_accounting import dp_event
    >>> from privproj import Gaussian
    >>> from privproj.integrations.dp_accounting import BallsInBinsDpEvent, ReleaseDpEvent
    >>> epoch = BallsInBinsDpEvent(ReleaseDpEvent(Gaussian(noise_multiplier=1.0)), batches=100)
    >>> dp_event.SelfComposedDpEvent(epoch, 20).event.batches
    100
    """

    event: dp_event.DpEvent
    batches: int
    batches_per_record: int = 1

    @property
    def options(self) -> RunOptions:
        """The epoch as keyword arguments for a run (:class:`privproj.run.RunOptions`)."""
        return {"sampling": "balls-in-bins", "batches": self.batches, "batches_per_record": self.batches_per_record}


def parts_of(event: Any) -> list[dp_event.DpEvent]:
    """Return the direct inner events of an event."""
    return [*getattr(event, "events", ()), *([event.event] if hasattr(event, "event") else [])]


def with_noise(event: Any, change: Callable[[float], float]) -> dp_event.DpEvent:
    """Return the event with ``change`` applied to each noise multiplier inside it."""
    changed: dict[str, Any] = {}
    if hasattr(event, "noise_multiplier"):
        changed["noise_multiplier"] = change(event.noise_multiplier)
    if hasattr(event, "event"):
        changed["event"] = with_noise(event.event, change)
    if hasattr(event, "events"):
        changed["events"] = [with_noise(part, change) for part in event.events]
    return attrs.evolve(event, **changed)


def nodes_of(tree: dp_event.SingleEpochTreeAggregationDpEvent) -> int:
    """Return the largest number of tree nodes that contain the same record.

    Each node is a Gaussian release (C36: events of dp-accounting).
    """
    steps = tree.step_counts if isinstance(tree.step_counts, Sequence) else [tree.step_counts]
    # ceil(log2(n + 1)) for a tree of n leaves
    return max(map(int, steps)).bit_length()


def _scales_of(event: dp_event.DpEvent) -> Iterator[str]:
    """Yield "sensitivity" or "clip" for each noise multiplier in an event.

    The noise multiplier is the standard deviation of the noise over this scale.
    """
    if isinstance(event, ReleaseDpEvent):
        if isinstance(event.mechanism, NoisyMechanism):
            yield "sensitivity"  # the convention of privproj
    elif hasattr(event, "noise_multiplier"):
        yield "clip"  # the convention of dp-accounting
    for part in parts_of(event):
        yield from _scales_of(part)


def _mixes_scales(event: dp_event.DpEvent, accountant: PLDAccountant) -> Problem | None:
    """Return a problem if noise multipliers have different scales, else None.

    Under replace, dp-accounting divides the noise by the clipping norm, and privproj by the sensitivity.
    """
    under_replace = accountant.neighboring_relation is Relation.REPLACE_ONE
    if not under_replace or len({*_scales_of(event), *_scales_of(accountant.ledger)}) < 2:
        return None
    return Problem(
        event,
        "noise multipliers over the clip (dp-accounting's events) and over the sensitivity, twice the clip "
        "(ReleaseDpEvent), are mixed under REPLACE_ONE; use ReleaseDpEvent(Gaussian(...)) for both",
    )


def distributions_of(shapes: list[CoarseDescription], step: float) -> list[Part]:
    """Return each release's dominating privacy loss distribution and number of repetitions.

    All distributions are on a grid with this ``step`` in nats, and dominate in both the add and remove directions (C18:
    pairs on a grid).

    Raises:
        PrecisionError: A grid is too large.
    """
    pairs = [(shape, shape.pairs(step).above) for shape in shapes]
    orders = [(pair, pair.mirrored()) if shape.needs_both_directions else (pair,) for shape, pair in pairs]
    return [
        (PrivacyLossDistribution(*map(_mass_function, o)), s.run.steps) for s, o in zip(shapes, orders, strict=True)
    ]


def _mass_function(pair: DominatingPair) -> pld_pmf.PLDPmf:
    """Return a dominating pair as a dense probability mass function of dp-accounting."""
    check_cell_count(int(pair.cells[-1] - pair.cells[0]) + 1, pair.step)
    cells = dict(zip(pair.cells.tolist(), pair.masses.tolist(), strict=True))
    return pld_pmf.create_pmf(cells, pair.step, pair.infinity_mass, pessimistic_estimate=True).to_dense_pmf()


def symmetric_distribution(pair: DominatingPair) -> PrivacyLossDistribution:
    """Return a symmetric dominating pair as a distribution of dp-accounting."""
    return PrivacyLossDistribution(
        # rounding errors are added to the mass at infinity
        _mass_function(replace(pair, infinity_mass=pair.infinity_mass + 2.0 * pair.rounding))
    )


def check_cell_count(cells: float, step: float) -> None:
    """Raise :class:`PrecisionError` if a grid has too many cells.

    ``step`` is the width of a cell, in nats.
    """
    if not cells <= MOST_GRID_CELLS:
        grid = f"discretization={step:.3g} with {cells:.2g} cells"
        raise PrecisionError(
            f"the discretization grid needs {grid}, more than {MOST_GRID_CELLS:.2g} cells. {COMPOSITION_REMEDY}"
        )


def _without_sampling(event: dp_event.DpEvent) -> tuple[ReleaseDpEvent | None, RunOptions]:
    """Return the release inside a sampled event, and the sampling as run options.

    The release is None for dp-accounting's own events.
    """
    sampling: RunOptions = {}
    if isinstance(event, BallsInBinsDpEvent):
        event, sampling = event.event, event.options
    elif isinstance(event, dp_event.PoissonSampledDpEvent):
        event, sampling = event.event, {"sampling_rate": float(event.sampling_probability)}
    return (event, sampling) if isinstance(event, ReleaseDpEvent) else (None, {})


def _phase_of_event(
    event: ReleaseDpEvent, sampling: RunOptions, relation: Relation, bound: str | None, count: int = 1
) -> Phase:
    """Return a phase of privproj with ``count`` repetitions of a sampled release.

    ``bound`` is used if the event names no bound.

    Raises:
        InvalidParameterError: The event states another relation than ``relation``.
        UnsupportedError: The mechanism reuses its projection, and the accountant cannot see the other releases.
    """
    ours = RELATIONS[relation]
    if event.relation not in (None, ours):
        raise InvalidParameterError("relation", event.relation, f"{ours}, as in the accountant")
    record = find_bound(type(event.mechanism), event.bound or bound)
    run: RunOptions = {**sampling, "steps": max(count, 1), "relation": ours}
    phase = phase_for(event.mechanism, record, run)
    if phase.reuses_projection:
        raise UnsupportedError(
            f"the bound {record.name} needs a fresh projection for each release, which an accountant cannot check"
        )
    return phase


def _warn_of_scale(event: ReleaseDpEvent, relation: Relation) -> None:
    """Warn if an event does not state its relation and the accountant uses replace."""
    if event.relation is None and relation is Relation.REPLACE_ONE and isinstance(event.mechanism, NoisyMechanism):
        warnings.warn(f"{Requirement.REPLACE_SENSITIVITY} Set ReleaseDpEvent(..., relation='replace').", stacklevel=2)


class ProjectionPLDAccountant(PLDAccountant):
    """dp-accounting's PLD accountant with support for :class:`ReleaseDpEvent`.

    A :class:`ReleaseDpEvent` may be alone, Poisson sampled, or in an epoch of balls-in-bins. The rounding error of
    dp-accounting's composition has no proved bound. Tree aggregation is also supported, as repeated Gaussian releases:
    one for each node that contains a record.

    Args:
        neighboring_relation: dp-accounting's neighboring relation; add-or-remove-one by default.
        value_discretization_interval: Grid step of the privacy loss, in nats, above 0; 1e-4 by default. A larger step
            is faster and gives a larger epsilon.

    >>> from dp_accounting import dp_event
    >>> from privproj import M2
    >>> from privproj.integrations.dp_accounting import ProjectionPLDAccountant, ReleaseDpEvent
    >>> release = ReleaseDpEvent(M2(dim=64, rank=8, noise_multiplier=2.0))
    >>> accountant = ProjectionPLDAccountant(value_discretization_interval=1e-2)
    >>> _ = accountant.compose(dp_event.SelfComposedDpEvent(release, 10))
    >>> round(float(accountant.compose(dp_event.GaussianDpEvent(4.0)).get_epsilon(1e-5)), 1)
    2.6
    """

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Problem | None:
        problem = _mixes_scales(event, self)
        if problem is not None:
            return problem
        ours, sampling = _without_sampling(event)
        if ours is None:
            is_tree = isinstance(event, dp_event.SingleEpochTreeAggregationDpEvent)
            # The nodes of a tree that contain a record are Gaussian releases (C36: events of dp-accounting).
            if is_tree and self.neighboring_relation is Relation.REPLACE_SPECIAL:
                event, count = dp_event.GaussianDpEvent(event.noise_multiplier), count * nodes_of(event)
            if not isinstance(event, dp_event.RandomizedResponseDpEvent) or not do_compose:
                return super()._maybe_compose(event, count, do_compose)
            # dp-accounting composes a repeated randomized response only once, so it is composed separately.
            alone = PLDAccountant(self.neighboring_relation, self._value_discretization_interval).compose(event)
            self._pld = self._pld.compose(alone._pld.self_compose(count))
            return None
        try:
            phase = _phase_of_event(ours, sampling, self.neighboring_relation, None, count)
            release, run = phase.release()
            if not isinstance(release, PrivacyProfile) or (run.in_batches and not release.can_be_subsampled):
                return Problem(event, f"{phase.bound.name} has no privacy profile to compose here")
            if do_compose and count:
                _warn_of_scale(ours, self.neighboring_relation)
                # The dominating pairs of each release in both directions (C18: pairs on a grid); their products
                # dominate the run (C2: domination composes).
                shapes = [describe_coarsely(*one) for one in releases_of(release, run)]
                for part, steps in distributions_of(shapes, self._value_discretization_interval):
                    self._pld = self._pld.compose(part.self_compose(steps))
        except PrivprojError as error:
            return Problem(event, str(error))
        return None


class ProjectionRdpAccountant(RdpAccountant):
    """dp-accounting's Renyi accountant with support for :class:`ReleaseDpEvent`.

    The mechanism of the event needs a bound with a Renyi curve.

    Args:
        orders: The Renyi orders, each above 1; None for dp-accounting's default.
        neighboring_relation: dp-accounting's neighboring relation; add-or-remove-one by default.

    >>> from dp_accounting import dp_event
    >>> from privproj import M2
    >>> from privproj.integrations.dp_accounting import ProjectionRdpAccountant, ReleaseDpEvent
    >>> release = ReleaseDpEvent(M2(dim=64, rank=8, noise_multiplier=2.0))
    >>> accountant = ProjectionRdpAccountant().compose(dp_event.SelfComposedDpEvent(release, 10))
    >>> round(float(accountant.get_epsilon(1e-5)), 1)
    2.6
    """

    def _maybe_compose(self, event: dp_event.DpEvent, count: int, do_compose: bool) -> Problem | None:
        if self.neighboring_relation is Relation.REPLACE_ONE and "clip" in _scales_of(event):
            return Problem(
                event,
                "dp-accounting's Renyi accountant leaves the sensitivity at the clip under REPLACE_ONE; use "
                "ReleaseDpEvent(Gaussian(...)), whose noise multiplier is over twice the clip",
            )
        ours, sampling = _without_sampling(event)
        if ours is None or isinstance(event, BallsInBinsDpEvent):
            return super()._maybe_compose(with_noise(event, float), count, do_compose)
        try:
            renyi = renyi_bound(type(ours.mechanism))
            phase = _phase_of_event(ours, sampling, self.neighboring_relation, renyi.name if renyi else None, count)
            form, run = phase.release()
            if not isinstance(form, RenyiCurve):
                return Problem(event, f"{phase.bound.name} has no Renyi curve; use ProjectionPLDAccountant")
            curve = form.over_run(run)
            if do_compose and count:
                _warn_of_scale(ours, self.neighboring_relation)
                self._rdp = self._rdp + [curve.at(float(order)) for order in self._orders]
        except PrivprojError as error:
            return Problem(event, str(error))
        return None


def event_of(
    run: Composition | Account | Phase | Mechanism, *, plain: bool = False, **options: Any
) -> dp_event.ComposedDpEvent:
    """Return a run as one event of dp-accounting, with its phases in order.

    With :class:`ProjectionPLDAccountant` the event has the epsilon of the run, up to the rounding of the accountant. An
    epoch of a partition or of shuffled batches is one release, because it is accounted as one release.

    Args:
        run: A schedule, the account of a ledger, one phase, or a mechanism.
        plain: True to write Gaussian and Laplace phases as dp-accounting's own events, for any of its accountants.
            Their noise multiplier is relative to the clipping norm, so under replace it is twice that of privproj.
        **options: The run of a mechanism (:class:`privproj.run.RunOptions`).

    Returns:
        The event, a ``ComposedDpEvent`` with one part for each phase.

    Raises:
        InvalidParameterError: ``options`` are given although ``run`` is not a mechanism, or the ledger has no release.
        UnsupportedError: No event describes the batches or the group size of a phase, or the plan of the ledger is
            adaptive.

    >>> from privproj import Gaussian
    >>> from privproj.integrations.dp_accounting import event_of
    >>> event_of(Gaussian(noise_multiplier=2.0), steps=10, sampling_rate=0.5, plain=True).events[0].event
    PoissonSampledDpEvent(sampling_probability=0.5, event=GaussianDpEvent(noise_multiplier=2.0))
    """
    if isinstance(run, Mechanism):
        run = phase_of(run, **options)
    elif options:
        raise InvalidParameterError(
            next(iter(options)), next(iter(options.values())), "omitted", "the run already has its options"
        )
    if isinstance(run, Account) and run.is_adaptive:
        raise UnsupportedError(
            "dp-accounting has no event for a run with adaptively chosen parameters. Report the epsilon of the budget "
            "of the ledger"
        )
    schedule = Composition(tuple(run.released_phases())) if isinstance(run, Account) else run
    phases = schedule.phases if isinstance(schedule, Composition) else (schedule,)
    parts = [(_step_event_of(phase, plain=plain), phase.run.steps) for phase in phases]
    repeated = [event if count == 1 else dp_event.SelfComposedDpEvent(event, count) for event, count in parts]
    return dp_event.ComposedDpEvent(repeated)


def _group_event(phase: Phase) -> dp_event.DpEvent:
    """Return a Poisson-sampled Gaussian step, for a group of records, as an event."""
    run, mechanism = phase.run, phase.mechanism
    if not isinstance(mechanism, Gaussian) or not run.scheme.draws_records_apart or mechanism.adaptive_count_shift:
        raise UnsupportedError(f"{phase.place}: no dp-accounting event supports group_size={run.group_size} here")
    from privproj.composition.group_privacy import poisson_weights

    # a mixture over the number of the group's records in the batch (C37: users with several records)
    shares = [math.exp(log_weight) for log_weight in poisson_weights(run.sampling_rate, run.group_size)]
    sizes = [float(size) for size in range(run.group_size + 1)]
    return dp_event.MixtureOfGaussiansDpEvent(mechanism.z, sizes, shares)


def _step_event_of(phase: Phase, *, plain: bool = False) -> dp_event.DpEvent:
    """Return the dp-accounting event of one step of a phase.

    If ``plain``, Gaussian and Laplace releases are dp-accounting's own events. Raises :class:`UnsupportedError` if no
    event describes the step.
    """
    run, mechanism = phase.run, phase.mechanism
    if phase.accountant is not None:
        return phase.accountant.event_of(phase)
    if run.group_size > 1:
        return _group_event(phase)
    if run.max_batch_size is not None or str(run.sampling) == "fixed" or run.split is not None:
        missing = (
            "split of delta"
            if run.split is not None
            else "batches of fixed size"
            if run.max_batch_size is None
            else "maximum batch size"
        )
        raise UnsupportedError(
            f"{phase.place}: no dp-accounting event describes its {missing}. Save a run file instead"
        )
    release: dp_event.DpEvent
    if plain and isinstance(mechanism, Gaussian | Laplace):
        release = _plain_event(mechanism, run, phase.place)
    else:
        relation: Any = str(run.relation)
        release = ReleaseDpEvent(mechanism, phase.bound.name, relation)
    if run.allocates and run.batches is not None:
        return BallsInBinsDpEvent(release, run.batches, run.batches_per_record)
    return release if run.sampling_rate == 1.0 else dp_event.PoissonSampledDpEvent(run.sampling_rate, release)


def _plain_event(mechanism: Gaussian | Laplace, run: Run, place: str) -> dp_event.DpEvent:
    """Return a Gaussian or Laplace release as dp-accounting's own event.

    The noise multiplier of the event is relative to the clipping norm. ``place`` names the phase in messages.

    Raises:
        UnsupportedError: The release is Laplace noise under replace, or an epoch.
    """
    if run.allocates:
        raise UnsupportedError(f"{place}: dp-accounting has no event for balls-in-bins batches. Omit plain")
    doubled = run.relation is NeighboringRelation.REPLACE
    if isinstance(mechanism, Laplace) and doubled:
        raise UnsupportedError(
            f"{place}: dp-accounting scales Laplace noise differently under relation=replace. Use relation=add-remove"
        )
    if isinstance(mechanism, Laplace):
        return dp_event.LaplaceDpEvent(mechanism.z)
    used: Any = mechanism.for_replacement() if doubled else mechanism
    # The noise over the clipping norm, z = 1/mu; with adaptive clipping rounded down (C31: adaptive clipping).
    noise = used.z if used.adaptive_clipping_sigma is None else math.nextafter(1.0 / used.mu_with_count, 0.0)
    return dp_event.GaussianDpEvent(noise * (2.0 if doubled else 1.0))
