"""Phases that are events of dp-accounting: what they rest on, who composes a run that has some, and what is refused.

A run with such phases is composed by dp-accounting (:mod:`privproj.contrib.events.event_composition`). Our phases
enter as
the pairs that dominate them, on one grid of losses. Where an event has no loss distribution there, our phases enter by
their Renyi bounds, and divergences are added.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from privproj.accounting.phase import Phase, phase_for
from privproj.assumptions import EVENT_AS_RUN, NOISE_OVER_CLIP
from privproj.errors import within
from privproj.io.run_file import PhaseKind
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import Bound
from privproj.parameters import TABLE, TEXT, TRUTH
from privproj.profiles.privacy_profile import Curve
from privproj.run import RUN_PARAMETERS, Run, RunOptions
from privproj.sampling import NeighbouringRelation

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

    def over_run(self, run: Run) -> Curve:
        """The curve of the event, composed with itself: it accounts for a run in its own terms."""
        phase = _EventPhase(self, run, _bound_of(self.data["type"]), name="event")
        return phase.accountant.curve([phase])


@dataclass(frozen=True)
class _EventPhase(Phase):
    """A phase that is an event of dp-accounting."""

    @property
    def accountant(self) -> Any:
        """Who composes a run that has such a phase."""
        from privproj.contrib.events import event_composition

        return event_composition

    @property
    def run_assumes(self) -> tuple[str, ...]:
        """What the run takes for granted, and what it does of the noise of the event, in words."""
        replaces = self.run.relation is NeighbouringRelation.REPLACE
        over_clip = replaces and '"noise_multiplier"' in vars(self.mechanism)["text"]
        return (*super().run_assumes, *((NOISE_OVER_CLIP,) if over_clip else ()))

    def as_dict(self) -> dict[str, object]:
        """The phase as an entry of a run file, keys and plain values."""
        run = self.run.parameters()
        options = {key: run[key] for key in ("steps", "relation", "public_size") if run[key]}
        options |= {"planned": True} if self.planned else {}
        return {"name": self.name, **self.mechanism.parameters(), **options}


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
        representation=lambda event: event,
        groups=False,
        notes=lambda event: (COMPOSED_ELSEWHERE,),
    )


def event_from_data(event: object, where: str, run: RunOptions, name: str) -> _EventPhase:
    """The phase of an event, given as plain data or as the object, with the steps and relation of a run.

    Raises :class:`privproj.InvalidParameter` for an event that is not one of dp-accounting, or has a value outside its
    domain.
    """
    from privproj.contrib.events.event_composition import data_of, event_from, leaves_of

    plain = data_of(event) if hasattr(event, "to_named_tuple") else event  # pyright: ignore[reportArgumentType]
    parsed = event_from(plain, where)
    data = data_of(parsed)
    asked = _EventPhase(**vars(phase_for(Event(text=json.dumps(data)), _bound_of(data["type"]), run, name)))
    with within(where):
        list(leaves_of(parsed, asked.run.steps))
    return asked


def event_words(data: dict[str, Any]) -> str:
    """An event in words, as Python writes it, cut where it is long."""
    from privproj.contrib.events.event_composition import event_from

    words = repr(event_from(data))
    return words if len(words) <= MOST_SHOWN else words[: MOST_SHOWN - 3] + "..."


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
    >>> from privproj.contrib.events import event_phase
    >>> from privproj.schedule import Schedule
    >>> tree = dp_event.SingleEpochTreeAggregationDpEvent(noise_multiplier=4.0, step_counts=[8, 8])
    >>> answer = Schedule((event_phase(tree, "tree", relation="zero-out"),)).epsilon(delta=1e-5)
    >>> round(answer.value, 2), answer.numerics["composer"]
    (1.99, 'dp-accounting')
    """
    return event_from_data(event, "event", {"steps": steps, "relation": relation}, name)  # pyright: ignore[reportArgumentType]


EVENT_KIND = PhaseKind(
    keys={
        "name": TEXT,
        "event": TABLE,
        **{name: RUN_PARAMETERS[name].kind for name in ("steps", "relation", "public_size")},
        "planned": TRUTH,
    },
    read=lambda event, run, name: event_from_data(event, "event", run, name),
    text=event_words,
)
"""Phases of run files that have an ``event`` in place of a mechanism."""
