"""Parse events of dp-accounting, and compose them with phases of privproj.

All parameters of an event are checked, because dp-accounting misinterprets some numbers instead of rejecting them.
dp-accounting has an accountant for privacy loss distributions (PLD) and one for Renyi divergences. Their rounding
errors are measured, not proved. This module corrects four errors of dp-accounting (C36: events of dp-accounting):

* The PLD accountant composes a repeated randomized response only once. Here it is composed as often as it is repeated.
* If noise multipliers are integers, the Renyi accountant counts several Gaussian releases on one sample as one. Here
  noise multipliers are converted to floats.
* Under replace, the Renyi accountant ignores that the sensitivity is twice the clipping norm. Here noise multipliers
  are halved.
* dp-accounting converts a Renyi divergence that is nan or negative to an epsilon of 0. Here it is rejected.
"""

import json
import logging
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import attrs
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import RdpAccountant

from privproj.accounting.batch_notes import WHOLE_BATCHES
from privproj.accounting.phase import Phase
from privproj.accounting.renyi import renyi_curve
from privproj.assumptions import Requirement
from privproj.composition.compose import releases_of
from privproj.composition.dominating_pairs import describe_coarsely
from privproj.composition.grid import LARGEST_GRID_STEP
from privproj.contrib.events import pld_curve
from privproj.contrib.events.pld_curve import GRID_POINTS_PER_DEVIATION, MOST_DEFAULT_CELLS, default_grid_step
from privproj.errors import InvalidParameterError, PrecisionError, PrivprojError, UnsupportedError, unknown_name, within
from privproj.integrations.dp_accounting import RELATIONS, Relation, distributions_of, nodes_of, parts_of, with_noise
from privproj.mechanisms import NoisyMechanism
from privproj.numerics.interval import Enclosure
from privproj.parameters import LARGEST_NOISE, NOISE, SMALLEST_NOISE, number, probability, whole_number
from privproj.profiles.privacy_profile import Curve, PrivacyProfile
from privproj.profiles.rdp import BestCurve, RenyiCurve
from privproj.run import Run

MOST_NESTED = 16  # largest depth of nested events

MOST_EVENTS = 1000  # largest number of events, or of numbers, in a list

MOST_COMPOSED = 10**8  # largest number of repetitions of an event

FINER_GRIDS = 16.0  # largest factor by which a given grid may be finer than the default

# soundness (measured, not proved): nats, absolute rounding error of dp-accounting in ``(alpha - 1) D(alpha)`` of one
# release. It was measured on sampled Gaussian releases (below 2e-13 at rates from 1e-12 to 0.9) and multiplied by 5. It
# is added for each release.
RENYI_NOISE = 1e-12

# soundness (measured): relative rounding error of the divergence; measured below 1e-16, with a factor of 100
RENYI_RTOL = 1e-14

# soundness (measured, not proved): the same error for sampling without replacement, where dp-accounting computes
# differences of a high order. It was measured below 3e-8 at rates from 0.1 to 0.9 and noise multipliers up to 200, and
# multiplied by 30.
DIFFERENCES_RTOL = 1e-6

# exceptions of dp-accounting for parameters that it does not support
ACCOUNTANT_ERRORS = (ValueError, ArithmeticError, TypeError, AttributeError, AssertionError)


def _listed(check: Callable[[str, Any], Any]) -> Callable[[str, Any], list[Any]]:
    """Return a validator for lists whose items each pass the validator ``check``."""

    def checked(name: str, value: object) -> list[Any]:
        if not isinstance(value, list | tuple) or not 1 <= len(value) <= MOST_EVENTS:
            raise InvalidParameterError(name, value, f"a list of 1 to {MOST_EVENTS} values")
        return [check(name, item) for item in value]

    return checked


# checks that several parameters share
_SIZE = whole_number("an integer from 1 to 1e+12", 1, 10**12).check
_POSITIVE = number("a number from 1e-12 to 1e+12", SMALLEST_NOISE, LARGEST_NOISE).check
_SHAPE = number("a number from 0 to 1e+06, or inf", 0.0, 1e6).check

# the check of each parameter of an event, by name, except for inner events
CHECKS: dict[str, Any] = {
    **dict.fromkeys(("source_dataset_size", "sample_size", "dataset_size", "truncated_batch_size"), _SIZE),
    **dict.fromkeys(("rho", "xi"), number("a number from 0 to 1e+09", 0.0, 1e9).check),
    **dict.fromkeys(("noise_parameter", "standard_deviation"), _POSITIVE),
    "noise_multiplier": NOISE.check,
    "num_buckets": whole_number("an integer from 2 to 1e+12", 2, 10**12).check,
    "sensitivity": _SIZE,
    "count": whole_number(f"an integer from 1 to {MOST_COMPOSED:g}", 1, MOST_COMPOSED).check,
    "sampling_probability": number("a number above 0 and at most 1", 0.0, 1.0, open_low=True).check,
    # the number of steps of one tree, or of several trees
    "step_counts": lambda name, value: (_listed(_SIZE) if isinstance(value, list | tuple) else _SIZE)(name, value),
    "mean": number("a number from 1 to 1e+09", 1.0, 1e9).check,
    # The shape of the distribution of a number of trials. JSON has no infinity, so infinity is the text "inf".
    "shape": lambda name, value: math.inf if value in ("inf", math.inf) else _SHAPE(name, value),
    "sensitivities": _listed(number("a number from 0 to 1e+12", 0.0, LARGEST_NOISE).check),
    "sampling_probs": _listed(number("a number from 0 to 1", 0.0, 1.0).check),
}

# parameters of every class of events; an event of a later version with other parameters is rejected
FIELDS = {
    name: [field.name for field in attrs.fields(kind)]
    for name, kind in vars(dp_event).items()
    if isinstance(kind, type) and issubclass(kind, dp_event.DpEvent) and kind is not dp_event.DpEvent
}


def event_from(data: object, where: str = "event", depth: int = 0) -> dp_event.DpEvent:
    """Return the dp-accounting event with the class name and parameters in ``data``.

    ``where`` names the event in messages, and ``depth`` is the number of enclosing events.

    Raises:
        InvalidParameterError: A type or key is unknown or missing, or a value is out of range.
    """
    if not isinstance(data, Mapping):
        raise InvalidParameterError(where, data, "a table with the type and the parameters of an event")
    if "type" not in data:
        raise InvalidParameterError(
            f"{where}: type", "nothing", "a type", "an event has a type, such as GaussianDpEvent"
        )
    name, expected = str(data["type"]), "dp-accounting event"
    types = [name for name, keys in FIELDS.items() if {*keys} <= {*CHECKS, "event", "events"}]
    if name not in types:
        raise unknown_name(f"{where}: type", name, expected, types)
    if depth >= MOST_NESTED:
        raise InvalidParameterError(f"{where}: type", name, f"nested at most {MOST_NESTED} deep")
    for key in (key for key in data if key not in ("type", *FIELDS[name])):
        keys = FIELDS[name] or ["type"]
        raise unknown_name(f"{where}: {key}", data[key], f"key of {name}", keys, word=str(key))
    kind: Any = getattr(dp_event, name)
    for field in attrs.fields(kind):
        if field.name not in data and field.default is attrs.NOTHING:
            raise InvalidParameterError(f"{where}: {field.name}", "nothing", "a value", f"{name} needs it")
    fields = {key: _value_of(data[key], key, where, depth) for key in FIELDS[name] if key in data}
    _check_together(fields, where)
    return kind(**fields)


def _value_of(value: object, name: str, where: str, depth: int) -> Any:
    """Return the validated value of one parameter of an event."""
    if name == "event":
        return event_from(value, f"{where}: event", depth + 1)
    with within(where):
        if name != "events":
            return CHECKS[name](name, value)
        parts = enumerate(_listed(lambda _, part: part)(name, value), 1)
    return [event_from(part, f"{where}: events {i}", depth + 1) for i, part in parts]


def _check_together(fields: Mapping[str, Any], where: str) -> None:
    """Raise :class:`InvalidParameterError` if parameters of an event are inconsistent."""
    if "num_buckets" in fields:
        with within(where):
            probability("noise_parameter", fields["noise_parameter"])
    if "sampling_probs" in fields:
        shares, shifts = fields["sampling_probs"], fields["sensitivities"]
        if len(shares) != len(shifts):
            raise InvalidParameterError(f"{where}: sampling_probs", shares, "a list as long as sensitivities")
        if abs(math.fsum(shares) - 1.0) > 1e-12:
            raise InvalidParameterError(f"{where}: sampling_probs", shares, "probabilities with the sum 1")
        if not any(share and shift for share, shift in zip(shares, shifts, strict=True)):
            raise InvalidParameterError(
                f"{where}: sensitivities", shifts, "above 0", "use NoOpDpEvent for a sensitivity of 0"
            )
    if "sample_size" in fields and fields["sample_size"] > fields["source_dataset_size"]:
        size, whole_size = fields["sample_size"], fields["source_dataset_size"]
        raise InvalidParameterError(f"{where}: sample_size", size, f"at most source_dataset_size, {whole_size}")


def data_of(event: dp_event.DpEvent) -> dict[str, Any]:
    """Return an event as a dictionary of its class name (``type``) and its parameters.

    Raises:
        InvalidParameterError: The event is not one of dp-accounting.
    """
    name = type(event).__name__
    if type(event).__module__ != dp_event.__name__:
        raise InvalidParameterError("event", name, "a dp-accounting event")
    parts = ((field.name, getattr(event, field.name)) for field in attrs.fields(type(event)))
    return {"type": name, **{key: _plain(value) for key, value in parts if value is not None}}


def _plain(value: Any) -> Any:
    """Return a parameter of an event as data for JSON."""
    if isinstance(value, dp_event.DpEvent):
        return data_of(value)
    if isinstance(value, str | numbers.Integral):
        return value if isinstance(value, bool | str) else int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Sequence | np.ndarray):
        return [_plain(item) for item in value]
    raise InvalidParameterError("event", value, "a dp-accounting event whose parameters are numbers")


Leaf = tuple[dp_event.DpEvent, int]  # an event that is not a composition, and the number of its repetitions


def leaves_of(event: dp_event.DpEvent, count: int = 1) -> Iterator[Leaf]:
    """Yield the events that a composition consists of, each with its repetitions.

    Raises:
        InvalidParameterError: An event is repeated more than :data:`MOST_COMPOSED` times.
    """
    if count > MOST_COMPOSED:
        raise InvalidParameterError("count", count, f"at most {MOST_COMPOSED:g} repetitions in total")
    if isinstance(event, dp_event.SelfComposedDpEvent):
        yield from leaves_of(event.event, count * event.count)
    elif isinstance(event, dp_event.ComposedDpEvent):
        for part in event.events:
            yield from leaves_of(part, count)
    elif not isinstance(event, dp_event.NoOpDpEvent):
        yield event, count


def merged(leaves: Iterable[Leaf]) -> list[Leaf]:
    """Return the distinct events, each with the total number of its repetitions."""
    by_text: dict[str, Leaf] = {}
    for event, count in leaves:
        text = json.dumps(data_of(event))
        by_text[text] = (event, count + by_text.get(text, (event, 0))[1])
    return [*by_text.values()]


def is_private(leaf: dp_event.DpEvent) -> bool:
    """Return whether an event contains no ``NonPrivateDpEvent``."""
    return not isinstance(leaf, dp_event.NonPrivateDpEvent) and all(map(is_private, parts_of(leaf)))


def _relation_of(phases: Sequence[Phase]) -> Relation:
    return next(relation for relation, ours in RELATIONS.items() if ours == str(phases[0].run.relation))


def has_loss_distribution(leaf: dp_event.DpEvent, relation: Relation) -> bool:
    """Return whether dp-accounting's PLD accountant supports an event."""
    if isinstance(leaf, dp_event.SingleEpochTreeAggregationDpEvent):
        # Tree aggregation is composed as Gaussian events, under zero-out only (C36: events of dp-accounting).
        return relation is Relation.REPLACE_SPECIAL
    return PLDAccountant(relation).supports(leaf)


def has_renyi_curve(leaf: dp_event.DpEvent, relation: Relation) -> bool:
    """Return whether dp-accounting's Renyi accountant supports an event."""
    return RdpAccountant(neighboring_relation=relation).supports(leaf)


def why_unsupported(leaf: dp_event.DpEvent, relation: Relation) -> str:
    """Return why neither accountant of dp-accounting supports an event, as text."""
    name = type(leaf).__name__
    relations = [word for r, word in RELATIONS.items() if has_loss_distribution(leaf, r) or has_renyi_curve(leaf, r)]
    if relations:
        return f"dp-accounting supports {name} under relation={' or '.join(relations)} only, not {RELATIONS[relation]}"
    inside = "".join(f" of {type(part).__name__}" for part in parts_of(leaf)[:1])
    return f"dp-accounting does not support {name}{inside}"


def _loss_reach(leaf: dp_event.DpEvent) -> float:
    """Estimate the largest privacy loss of an event that dp-accounting keeps, in nats."""
    if isinstance(leaf, dp_event.PoissonSampledDpEvent):
        return _loss_reach(leaf.event)
    if isinstance(leaf, dp_event.LaplaceDpEvent):
        return 1.0 / leaf.noise_multiplier
    if isinstance(leaf, dp_event.DiscreteLaplaceDpEvent):
        return leaf.noise_parameter * leaf.sensitivity
    if isinstance(leaf, dp_event.RandomizedResponseDpEvent):
        return math.log(leaf.num_buckets / leaf.noise_parameter)
    if isinstance(leaf, dp_event.MixtureOfGaussiansDpEvent):
        mu = max(leaf.sensitivities) / leaf.standard_deviation
    else:
        mu = 2.0 / leaf.noise_multiplier  # pyright: ignore[reportAttributeAccessIssue]
    # Largest loss of N(mu, 1) against N(0, 1) within t = 10.5 standard deviations, mu^2/2 + mu t: dp-accounting
    # truncates a tail of mass e^-50.
    return 0.5 * mu * mu + 10.5 * mu


def _grid_steps(leaf: dp_event.DpEvent, count: int) -> tuple[float, float]:
    """Return the least and the preferred grid step of an event's losses, in nats."""
    reach, cells = _loss_reach(leaf), MOST_DEFAULT_CELLS
    if isinstance(leaf, dp_event.MixtureOfGaussiansDpEvent):
        # Fewer cells, because dp-accounting solves an equation for each cell of a mixture of Gaussians.
        cells = 2.0**14 / max(1.0, len(leaf.sensitivities) / 16.0)
    # The grid of dp-accounting is wide for many repetitions (pld_curve.default_grid_step).
    window = min(count, 24.0 * math.sqrt(count) + 0.5 * count) / MOST_DEFAULT_CELLS
    return 2.0 * reach / cells, reach * max(1.0 / GRID_POINTS_PER_DEVIATION, window)


def _alone(leaf: Leaf) -> Leaf:
    """Replace a repeated Gaussian or tree event by one equivalent Gaussian event.

    Other events are returned unchanged.
    """
    one_event, count = leaf
    if isinstance(one_event, dp_event.SingleEpochTreeAggregationDpEvent):
        return _alone((dp_event.GaussianDpEvent(one_event.noise_multiplier), count * nodes_of(one_event)))
    if isinstance(one_event, dp_event.GaussianDpEvent):
        return dp_event.GaussianDpEvent(one_event.noise_multiplier / math.sqrt(count)), 1
    return leaf


def compose_losses(
    phases: Sequence[tuple[PrivacyProfile, Run]], leaves: Sequence[Leaf], relation: Relation, step: float | None
) -> pld_curve.PldCurve:
    """Return the privacy curve of phases and events, composed by dp-accounting.

    The curve is an upper bound up to rounding errors that are measured, not proved (C2: domination composes).
    ``leaves`` are the events with their repetitions. ``step`` is the grid step in nats, or None for the default.

    Raises:
        PrecisionError: The grid is too large.
    """
    shapes = [describe_coarsely(*release) for phase in phases for release in releases_of(*phase)]
    single = [_alone(leaf) for leaf in leaves]
    # 1e-4 nats is dp-accounting's default grid step; any step is sound.
    ends = [(0.0, 1e-4), *(_grid_steps(*leaf) for leaf in single)]
    least, preferred = max(finest for finest, _ in ends), min(follows for _, follows in ends)
    step = step or max(least, default_grid_step(shapes, preferred))
    if not least / FINER_GRIDS <= step <= LARGEST_GRID_STEP:
        expected = f"from {least / FINER_GRIDS:.2g} to {LARGEST_GRID_STEP:g} nats for these events"
        raise PrecisionError(
            f"the grid step must be {expected}, got {step:.3g}. Use more noise, or another discretization"
        )
    # dp-accounting's distributions of the events, and dominating pairs of the phases on the same grid (C18: pairs on a
    # grid)
    events = [(_distribution_of(json.dumps(data_of(event)), relation, step), count) for event, count in single]
    return pld_curve.compose([*distributions_of(shapes, step), *events], step)


@lru_cache(maxsize=32)
def _distribution_of(text: str, relation: Relation, step: float) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one event, given as JSON."""
    event = event_from(json.loads(text))
    if isinstance(event, dp_event.DiscreteLaplaceDpEvent):
        # nats; the part of the tail of discrete Laplace noise that dp-accounting represents
        width = 2.0 * 40.0 / event.noise_parameter + event.sensitivity
        if width > MOST_DEFAULT_CELLS:
            raise PrecisionError(
                f"discrete Laplace noise on about {width:.2g} integers is not "
                f"supported (at most {MOST_DEFAULT_CELLS:.2g}). "
                "Use LaplaceDpEvent with the same scale"
            )
    with _converted_errors(event):
        pld = PLDAccountant(relation, step).compose(event)._pld
    orders = (pld._pmf_remove,) if pld._symmetric else (pld._pmf_remove, pld._pmf_add)
    return PrivacyLossDistribution(*(distribution.to_dense_pmf() for distribution in orders))


def add_divergences(
    curves: Sequence[RenyiCurve | BestCurve],
    leaves: Sequence[Leaf],
    relation: Relation,
    orders: Sequence[float] | None = None,
) -> RenyiCurve:
    """Return the sum of the Renyi divergences of phases and of events.

    ``curves`` are the Renyi curves of whole phases, and ``leaves`` are the events with their repetitions. ``orders`` is
    None for the default orders of dp-accounting.

    Raises:
        UnsupportedError: dp-accounting cannot compute the divergences of an event.
    """
    tried = RdpAccountant(orders).orders
    total = np.array([math.fsum(curve.divergence_at(float(order)) for curve in curves) for order in tried])
    releases = 0.0
    for event, count in leaves:
        text = json.dumps(data_of(event))
        one, parts = _divergences_of(text, relation, tuple(map(float, tried)))
        total = total + count * np.array(one) * (1.0 + (DIFFERENCES_RTOL if "WithoutReplacement" in text else 0.0))
        releases += count * parts
    # D(alpha) + (noise of each release) / (alpha - 1)
    total = total * (1.0 + RENYI_RTOL) + releases * RENYI_NOISE / (tried - 1.0)
    numerics: dict[str, object] = {"composer": "dp-accounting", "orders": len(tried)}
    numerics |= {"added_to_divergence": releases * RENYI_NOISE, "rounding": "measured, not proved"}
    by_order = dict(zip(map(float, tried), map(float, total), strict=True))
    return RenyiCurve(by_order.__getitem__, orders=tuple(by_order), numerics=numerics)


@lru_cache(maxsize=64)
def _divergences_of(text: str, relation: Relation, orders: tuple[float, ...]) -> tuple[tuple[float, ...], float]:
    """Return the Renyi divergences of one event, given as JSON, at some orders.

    The second result is the rounding error to be added, in multiples of :data:`RENYI_NOISE`.
    """
    event = event_from(json.loads(text))
    parts = 1.0
    if isinstance(event, dp_event.RepeatAndSelectDpEvent):
        # The rounding error of the inner event counts 2 + shape or 1 + mean times. An inner nan must be rejected.
        times = 1.0 + event.mean if event.shape == math.inf else 2.0 + event.shape
        inner = (
            count * _divergences_of(json.dumps(data_of(part)), relation, orders)[1]
            for part, count in leaves_of(event.event)
        )
        parts += times * sum(inner)
    # relative to twice the clipping norm
    scaled = with_noise(event, lambda z: z / 2.0) if relation is Relation.REPLACE_ONE else event
    with _converted_errors(event):
        divergences = RdpAccountant(orders, relation).compose(scaled).rdp
    # D(alpha) >= 0, up to the measured rounding error
    if not np.all(divergences >= -RENYI_NOISE / (np.array(orders) - 1.0)):
        raise UnsupportedError(f"dp-accounting has no valid Renyi divergence for {type(event).__name__}")
    return tuple(map(float, np.maximum(divergences, 0.0))), parts


@contextmanager
def _converted_errors(event: dp_event.DpEvent) -> Iterator[None]:
    """Convert errors of dp-accounting to :class:`UnsupportedError`."""
    # dp-accounting logs which orders it omits
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        with np.errstate(all="ignore"):
            yield
    except ACCOUNTANT_ERRORS as error:
        raise UnsupportedError(f"dp-accounting cannot compute {type(event).__name__}: {error}") from None
    finally:
        logger.disabled = before


# --- the accountant of phases (Phase.accountant) -----------------------------------------------------


def accounted(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Return the phases, with Renyi bounds if the PLD accountant does not support all phases.

    Phases that are events are never changed.

    Raises:
        UnsupportedError: No accountant supports these events and phases together under their relation.
    """
    _check_scales(phases)
    relation = _relation_of(phases)
    unsupported = [(phase, *_unsupported_parts(phase, relation)) for phase in phases]
    no_distribution = [
        f"{phase.place} has no distribution of the loss ({name})" for phase, name, _ in unsupported if name
    ]
    no_curve = [f"{phase.place} has no Renyi divergences ({curve})" for phase, _, curve in unsupported if curve]
    if no_distribution and no_curve:
        raise UnsupportedError(f"no accountant supports these phases together: {no_distribution[0]} and {no_curve[0]}")
    return tuple(_with_renyi_bound(phase, no_distribution[0]) for phase in phases) if no_distribution else tuple(phases)


def curve(phases: Sequence[Phase], step: float | None = None) -> Curve:
    """Return the privacy curve of a run that contains events of dp-accounting.

    ``step`` is the grid step of the privacy loss in nats; None for the default.

    Raises:
        UnsupportedError: No accountant supports these events and phases together under their relation.
    """
    by_one, relation = accounted(phases), _relation_of(phases)
    leaves = merged(leaf for phase in by_one for leaf in _leaves_of(phase))
    if not all(is_private(leaf) for leaf, _ in leaves):
        return NO_PRIVACY
    released: list[Any] = [phase.release() for phase in by_one if phase.accountant is None]
    curves = [form.over_run(run) for form, run in released if not isinstance(form, PrivacyProfile)]
    if curves or not all(has_loss_distribution(leaf, relation) for leaf, _ in leaves):
        return add_divergences(curves, leaves, relation)
    return compose_losses(released, leaves, relation, step)


# curve of a run that releases data without noise: delta is 1 at every epsilon
NO_PRIVACY = PrivacyProfile(lambda eps: Enclosure(0.0, 0.0))


def event_of(phase: Phase) -> dp_event.DpEvent:
    """Return the dp-accounting event of one step of a phase."""
    return event_from(json.loads(vars(phase.mechanism)["text"]))


def _leaves_of(phase: Phase) -> list[Leaf]:
    """Return the dp-accounting events of a phase, with repetitions; empty for a mechanism of privproj."""
    data = vars(phase.mechanism).get("text")
    return [] if data is None else list(leaves_of(event_from(json.loads(data)), phase.run.steps))


def _check_scales(phases: Sequence[Phase]) -> None:
    """Raise :class:`UnsupportedError` if phases define noise multipliers differently.

    Under replace, dp-accounting divides the noise by the clipping norm, and privproj by twice this norm.
    """
    over_both = [phase.name for phase in phases if isinstance(phase.mechanism, NoisyMechanism)]
    over_clip = [phase.name for phase in phases if Requirement.NOISE_OVER_CLIP in phase.run_requirements]
    if over_clip and over_both:
        raise UnsupportedError(
            f"phases {over_clip[0]} and {over_both[0]} define the noise multiplier differently under relation=replace. "
            "Describe both by mechanisms of privproj"
        )


def _unsupported_parts(phase: Phase, relation: Relation) -> tuple[str, str]:
    """Return which part of a phase has no PLD, and which part has no Renyi curve.

    Each result is the name of an event or bound, or empty if there is no such part.

    Raises:
        UnsupportedError: An event has no privacy loss distribution and no Renyi curve.
    """
    if phase.accountant is None:
        has_distribution = isinstance(phase.release()[0], PrivacyProfile)
        return "" if has_distribution else f"{phase.mechanism.name}.{phase.bound.name}", ""
    leaves = [leaf for leaf, _ in _leaves_of(phase)]
    no_distribution = [leaf for leaf in leaves if not has_loss_distribution(leaf, relation)]
    no_curve = [leaf for leaf in leaves if not has_renyi_curve(leaf, relation)]
    for leaf in (leaf for leaf in no_distribution if leaf in no_curve):
        raise UnsupportedError(f"{phase.place}: {why_unsupported(leaf, relation)}")
    distribution_name, curve = (type(lacks[0]).__name__ if lacks else "" for lacks in (no_distribution, no_curve))
    return distribution_name, curve


def _with_renyi_bound(phase: Phase, why: str) -> Phase:
    """Give a phase the Renyi bound of its mechanism, unless the phase is an event.

    ``why`` explains in messages why a Renyi bound is needed.

    Raises:
        UnsupportedError: The Renyi bound does not support the run.
    """
    if phase.accountant is not None:
        return phase
    try:
        renyi_phase = replace(renyi_curve(phase.with_run(**WHOLE_BATCHES))[0], run=phase.run)
        renyi_phase.check()
        return renyi_phase
    except PrivprojError as error:
        raise UnsupportedError(f"{why}, and {phase.place} has no Renyi divergences: {error}") from None
