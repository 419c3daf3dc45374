"""Build phases of a run from events of dp-accounting.

dp-accounting then composes the whole run (:mod:`privproj.contrib.events.event_composition`).
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from privproj.accounting.phase import Phase, phase_for
from privproj.assumptions import Requirement
from privproj.errors import within
from privproj.io.run_file import PhaseKind
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import Bound
from privproj.parameters import TABLE, TEXT, TRUTH
from privproj.profiles.privacy_profile import Curve
from privproj.run import RUN_PARAMETERS, Run, RunOptions
from privproj.sampling import NeighboringRelation

MOST_SHOWN = 80  # characters; longest text of an event in a line of output


@dataclass(frozen=True, kw_only=True)
class Event(Mechanism):
    """An event of dp-accounting as the mechanism of a phase.

    :func:`event_from_data` builds and checks it.

    Attributes:
        text: The event as JSON. Events with equal text are equal.
    """

    text: str

    name = "dp-accounting"
    requirements = (Requirement.EVENT_MATCHES_PROGRAM,)
    remedy = "more noise"

    @property
    def data(self) -> dict[str, Any]:
        """The event as a dictionary, with the key ``type`` and its parameters."""
        return json.loads(self.text)

    def parameters(self) -> dict[str, object]:
        """Return the event as plain data under the key ``event``, as in run files."""
        return {"event": self.data}

    def over_run(self, run: Run) -> Curve:
        """Return the privacy curve of a run with the event in each step."""
        phase = _EventPhase(self, run, _bound_of(self.data["type"]), name="event")
        return phase.accountant.curve([phase])


@dataclass(frozen=True)
class _EventPhase(Phase):
    """A phase whose steps are events of dp-accounting."""

    @property
    def accountant(self) -> Any:
        """The module that composes a run with events of dp-accounting."""
        from privproj.contrib.events import event_composition

        return event_composition

    @property
    def run_requirements(self) -> tuple[str, ...]:
        """The requirements of the run. Under replace, one of them defines the noise multiplier."""
        replaces = self.run.relation is NeighboringRelation.REPLACE
        over_clip = replaces and '"noise_multiplier"' in vars(self.mechanism)["text"]
        return (*super().run_requirements, *((Requirement.NOISE_OVER_CLIP,) if over_clip else ()))

    def as_dict(self) -> dict[str, object]:
        """Return the phase as an entry of a run file."""
        run = self.run.parameters()
        options = {key: run[key] for key in ("steps", "relation", "public_size") if run[key]}
        options |= {"planned": True} if self.planned else {}
        return {"name": self.name, **self.mechanism.parameters(), **options}


@lru_cache(maxsize=64)
def _bound_of(kind: str) -> Bound:
    """Return a ``Bound`` for events of the class ``kind``, which dp-accounting analyzes."""
    from importlib.metadata import version

    return Bound(
        name=kind,
        mechanism=Event,
        summary="an event, accounted by dp-accounting",
        formula="as dp-accounting has it",
        source=f"dp-accounting {version('dp-accounting')}, {kind}",
        example="privproj run FILE",
        representation=lambda event: event,
        of_group=None,
    )


def event_from_data(event: object, where: str, run: RunOptions, name: str) -> _EventPhase:
    """Return a phase whose steps are one event of dp-accounting.

    ``event`` is a dictionary or an object of dp-accounting, and ``where`` names it in messages.

    Raises:
        InvalidParameterError: The event is not one of dp-accounting, or a value is out of range.
    """
    from privproj.contrib.events.event_composition import data_of, event_from, leaves_of

    plain = data_of(event) if hasattr(event, "to_named_tuple") else event  # pyright: ignore[reportArgumentType]
    parsed = event_from(plain, where)
    data = data_of(parsed)
    phase = _EventPhase(**vars(phase_for(Event(text=json.dumps(data)), _bound_of(data["type"]), run, name)))
    with within(where):
        list(leaves_of(parsed, phase.run.steps))
    return phase


def event_text(data: dict[str, Any]) -> str:
    """Return the Python expression that builds an event, truncated if it is long."""
    from privproj.contrib.events.event_composition import event_from

    text = repr(event_from(data))
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def event_phase(event: Any, name: str = "event", steps: int = 1, relation: str | None = None) -> Phase:
    """Return a phase of a schedule from an event of dp-accounting.

    dp-accounting composes a run with such a phase. The rounding error of dp-accounting is measured, not proved. A noise
    multiplier in the event is the standard deviation of the noise divided by the clipping norm.

    Args:
        event: An event object of dp-accounting, or a dictionary of its class name (``type``) and parameters.
        name: The name of the phase in results and messages.
        steps: The number of repetitions of the event, from 1 to 1e9.
        relation: The neighboring relation, "add-remove", "zero-out" or "replace"; add-remove by default.

    Returns:
        The phase, which is not marked as planned.

    Raises:
        InvalidParameterError: The event is not one of dp-accounting, or a value is out of range.

    >>> from dp_accounting import dp_event
    >>> from privproj.contrib.events import event_phase
    >>> from privproj.schedule import Composition
    >>> tree = dp_event.SingleEpochTreeAggregationDpEvent(noise_multiplier=4.0, step_counts=[8, 8])
    >>> result = Composition((event_phase(tree, "tree", relation="zero-out"),)).epsilon(delta=1e-5)
    >>> round(result.value, 2), result.numerics["composer"]
    (1.99, 'dp-accounting')
    """
    return event_from_data(event, "event", {"steps": steps, "relation": relation}, name)  # pyright: ignore[reportArgumentType]


# phases of run files with an ``event`` in place of a mechanism
EVENT_KIND = PhaseKind(
    keys={
        "name": TEXT,
        "event": TABLE,
        **{name: RUN_PARAMETERS[name].kind for name in ("steps", "relation", "public_size")},
        "planned": TRUTH,
    },
    read=lambda event, run, name: event_from_data(event, "event", run, name),
    text=event_text,
)
