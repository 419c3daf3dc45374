"""Phases that are events of dp-accounting: what they rest on, who composes a run that has some, and what is refused.

A run with such phases is composed by dp-accounting (:mod:`privproj.extensions.event_composition`). Our phases enter as
the pairs that dominate them, on one grid of losses. Where an event has no loss distribution there, our phases enter by
their Renyi bounds, and divergences are added.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from privproj.accounting.phase import Phase, phase_for
from privproj.assumptions import EVENT_AS_RUN, NOISE_OVER_CLIP, PLANS
from privproj.curves.profile import Curve, PrivacyProfile
from privproj.curves.renyi import RenyiCurve
from privproj.errors import InvalidParameter, PrivprojError, Refused, raise_within
from privproj.mechanisms import Mechanism, NoisyMechanism
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.registry import renyi_bound
from privproj.numerics.enclosure import Enclosure
from privproj.runs import Run, RunOptions
from privproj.runs.sampling import NeighbouringRelation

if TYPE_CHECKING:
    from privproj.extensions.event_composition import Leaf

COMPOSED_ELSEWHERE = "events of dp-accounting are accounted by that package, and composed with all other phases"
"""Said beside every number of a run that has one. Contract."""

MOST_SHOWN = 80
"""Characters of an event that a line of text shows. Contract."""


@dataclass(frozen=True, kw_only=True)
class Event(Mechanism):
    """An event of dp-accounting as the mechanism of a phase; :func:`event_from_data` makes one that was checked."""

    text: str
    """The event as JSON in one spelling, so that equal events are equal."""

    name = "dp-accounting"
    assumes = (EVENT_AS_RUN,)
    remedy = "more noise in its events"

    @property
    def data(self) -> dict[str, Any]:
        """The event as plain data."""
        return json.loads(self.text)

    def parameters(self) -> dict[str, object]:
        """The event as plain data, under the key of run files."""
        return {"event": self.data}


@dataclass(frozen=True)
class _EventPhase(Phase):
    """A phase that is an event of dp-accounting."""

    @property
    def accountant(self) -> "_DpAccounting":
        """Who composes a run that has such a phase."""
        return _DpAccounting()

    def as_dict(self) -> dict[str, object]:
        """The phase as an entry of a run file, keys and plain values."""
        run = self.run.parameters()
        said = {key: run[key] for key in ("steps", "relation", "public_size") if run[key]}
        return {"name": self.name, **self.mechanism.parameters(), **said, **({"planned": True} if self.planned else {})}


@lru_cache(maxsize=64)
def _bound_of(kind: str) -> Bound:
    """What accounts for events of a class: dp-accounting, in its own terms."""
    from importlib.metadata import version

    return Bound(
        name=kind,
        mechanism=Event,
        summary="an event, accounted by dp-accounting",
        formula="as dp-accounting has it",
        source=f"dp-accounting {version('dp-accounting')}, {kind}",
        example="privproj run FILE",
        representation=_EventForm,
        any_projection=False,
        groups=False,
        notes=lambda event: (COMPOSED_ELSEWHERE,),
    )


@dataclass(frozen=True)
class _EventForm:
    """An event that accounts for a run in its own terms."""

    event: Event

    def over_run(self, run: Run) -> Curve:
        """The curve of the event, composed with itself."""
        return _DpAccounting().curve([_EventPhase(self.event, run, _bound_of(self.event.data["type"]), name="event")])


def event_from_data(event: object, where: str, run: RunOptions, name: str) -> _EventPhase:
    """The phase of an event, given as plain data or as the object, with the steps and relation of a run.

    Raises :class:`privproj.InvalidParameter` for an event that is not one of dp-accounting, or has a value outside its
    domain.
    """
    from privproj.extensions.event_composition import data_of, event_from, leaves_of

    given = data_of(event) if hasattr(event, "to_named_tuple") else event  # pyright: ignore[reportArgumentType]
    found = event_from(given, where)
    data = data_of(found)
    asked = _EventPhase(**vars(phase_for(Event(text=json.dumps(data)), _bound_of(data["type"]), run, name)))
    try:
        for _ in leaves_of(found, asked.run.steps):
            pass
    except InvalidParameter as error:
        raise_within(error, where)
    return asked


def event_words(data: dict[str, Any]) -> str:
    """An event in words, as Python would write it, cut where it is long."""
    words = _call(data)
    return words if len(words) <= MOST_SHOWN else words[: MOST_SHOWN - 3] + "..."


def _call(value: Any) -> str:
    """A parameter of an event as Python would write it."""
    if isinstance(value, dict):
        return f"{value['type']}({', '.join(f'{k}={_call(v)}' for k, v in value.items() if k != 'type')})"
    if isinstance(value, list):
        return f"[{', '.join(map(_call, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


class _DpAccounting:
    """The accountant of runs that have events of dp-accounting."""

    def accounted(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """Phases, of which some are events, each by a bound that one accountant takes with all others.

        They are the same where all have a distribution of the loss. Else our phases are asked by their Renyi bounds.
        Raises :class:`privproj.Refused` where dp-accounting does not compose these events with these phases under their
        relation.
        """
        _check_scales(phases)
        without_law = _first_without(phases, renyi=False)
        if without_law is None:
            return tuple(phases)
        without_curve = _first_without(phases, renyi=True)
        if without_curve is not None:
            _refuse_unknown(phases)
            raise Refused(f"no accountant takes these phases together: {without_law} and {without_curve}")
        return tuple(_by_renyi_bound(phase, without_law) for phase in phases)

    def curve(self, phases: Sequence[Phase], step: float | None = None) -> Curve:
        """The joint curve of phases of which some are events, by dp-accounting.

        ``step`` is the distance of losses in nats. Raises :class:`privproj.Refused` as :meth:`accounted` does.
        """
        from privproj.extensions import event_composition as events

        accounted = self.accounted(phases)
        relation = events.relation_named(str(phases[0].run.relation))
        leaves = events.merged(leaf for phase in accounted for leaf in _leaves_of(phase))
        if not all(events.is_private(leaf) for leaf, _ in leaves):
            return _NoPrivacy()
        released = [phase.release() for phase in accounted if not isinstance(phase, _EventPhase)]
        curves = [form.over_run(run) for form, run in released if isinstance(form, RenyiCurve)]
        if curves or not all(events.has_loss_distribution(leaf, relation) for leaf, _ in leaves):
            return events.add_divergences(curves, leaves, relation)
        profiles = [(form, run) for form, run in released if isinstance(form, PrivacyProfile)]
        return events.compose_losses(profiles, leaves, relation, step)

    def assumes(self, assumed: tuple[str, ...], phases: Sequence[Phase]) -> tuple[str, ...]:
        """What a run takes for granted, and what it does of the noise of its events under replace, in words."""
        replaces = any(phase.run.relation is NeighbouringRelation.REPLACE for phase in phases)
        if not (replaces and any(map(_states_noise_over_clip, phases))):
            return assumed
        plan = [words for words in assumed if words in PLANS]
        return (*(words for words in assumed if words not in PLANS), NOISE_OVER_CLIP, *plan)


@dataclass(frozen=True)
class _NoPrivacy:
    """The curve of a run that releases data as they are."""

    def log_delta(self, eps: float) -> Enclosure:
        """The log of a delta of 1."""
        return Enclosure(0.0, 0.0)

    def epsilon(self, log_delta: float) -> Enclosure:
        """No finite epsilon."""
        return Enclosure(float("inf"), float("inf"))


def _leaves_of(phase: Phase) -> "list[Leaf]":
    """The events that a phase consists of; none for our own."""
    from privproj.extensions import event_composition as events

    if not isinstance(phase.mechanism, Event):
        return []
    return list(events.leaves_of(events.event_from(phase.mechanism.data), phase.run.steps))


def _check_scales(phases: Sequence[Phase]) -> None:
    """Raise :class:`privproj.Refused` where noise over the clip and over twice the clip would meet."""
    if phases[0].run.relation is not NeighbouringRelation.REPLACE:
        return
    over_both = [phase.name for phase in phases if isinstance(phase.mechanism, NoisyMechanism)]
    over_clip = [phase.name for phase in phases if _states_noise_over_clip(phase)]
    if over_clip and over_both:
        raise Refused(
            f"phase {over_clip[0]}: the noise multiplier of the event is over the clip, and that of phase "
            f"{over_both[0]} is over the sensitivity, twice the clip, so they are not mixed under relation=replace; "
            "give both as mechanisms of privproj"
        )


def _states_noise_over_clip(phase: Phase) -> bool:
    """True for an event with a noise multiplier, which is relative to the clip."""
    return isinstance(phase.mechanism, Event) and '"noise_multiplier"' in phase.mechanism.text


def _first_without(phases: Sequence[Phase], *, renyi: bool) -> str | None:
    """Which phase is the first without a distribution of the loss, or without Renyi divergences, in words."""
    from privproj.extensions import event_composition as events

    relation = events.relation_named(str(phases[0].run.relation))
    has = events.has_renyi_curve if renyi else events.has_loss_distribution
    lacks = "Renyi divergences" if renyi else "distribution of the loss"
    for phase in phases:
        name = phase.mechanism.name
        if isinstance(phase, _EventPhase):
            missing = next((type(leaf).__name__ for leaf, _ in _leaves_of(phase) if not has(leaf, relation)), None)
            if missing:
                return f"phase {phase.name} has no {lacks} ({missing})"
        elif renyi and renyi_bound(type(phase.mechanism)) is None:
            return f"phase {phase.name} has no {lacks} ({name})"
        elif not renyi and not isinstance(phase.release()[0], PrivacyProfile):
            return f"phase {phase.name} has no {lacks} ({name}.{phase.bound.name})"
    return None


def _refuse_unknown(phases: Sequence[Phase]) -> None:
    """Raise :class:`privproj.Refused` for an event that neither accountant takes under the relation."""
    from privproj.extensions import event_composition as events

    relation = events.relation_named(str(phases[0].run.relation))
    for phase in phases:
        for leaf, _ in _leaves_of(phase):
            if not events.has_loss_distribution(leaf, relation) and not events.has_renyi_curve(leaf, relation):
                raise Refused(f"phase {phase.name}: {events.why_refused(leaf, relation)}")


def _by_renyi_bound(phase: Phase, why: str) -> Phase:
    """Our phase by its Renyi bound, an event as it is.

    Raises :class:`privproj.Refused` where that bound does not answer for the run.
    """
    bound = None if isinstance(phase, _EventPhase) else renyi_bound(type(phase.mechanism))
    if bound is None:
        return phase
    asked = replace(phase, bound=bound, allow_refuted=False)
    try:
        form, run = asked.release()
        if isinstance(form, RenyiCurve) and not run.allocates:
            form.over_run(run)
            return asked
    except PrivprojError as error:
        raise Refused(f"{why}, and phase {phase.name} no Renyi divergences: {error}") from None
    raise Refused(f"{why}, and phase {phase.name} no Renyi divergences for how its batches are drawn")


def event_phase(event: Any, name: str = "event", steps: int = 1, relation: str | None = None) -> Phase:
    """Make a phase of a schedule from an event of dp-accounting.

    A run with such a phase is composed by dp-accounting, whose rounding is measured and not proved. Noise multipliers
    in the event are the noise over the clip, as that package has them.

    Args:
        event: The event, an object of dp-accounting or the same as plain data, a table with its ``type``.
        name: What the phase is called in answers and messages.
        steps: How often the event is composed with itself, from 1 to 1e9.
        relation: The neighbouring relation, "add-remove", "zero-out" or "replace"; None is add-remove.

    Returns:
        The phase, which is not merely planned.

    Raises:
        InvalidParameter: The event is not one of dp-accounting, or a value is outside its domain.

    >>> from dp_accounting import dp_event
    >>> from privproj.schedule import Schedule, event_phase
    >>> tree = dp_event.SingleEpochTreeAggregationDpEvent(noise_multiplier=4.0, step_counts=[8, 8])
    >>> answer = Schedule((event_phase(tree, "tree", relation="zero-out"),)).epsilon(delta=1e-5)
    >>> round(answer.value, 2), answer.numerics["composer"]
    (1.99, 'dp-accounting')
    """
    return event_from_data(event, "event", {"steps": steps, "relation": relation}, name)  # pyright: ignore[reportArgumentType]
