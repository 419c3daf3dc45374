"""List the bounds of all mechanisms.

To add a bound, write its :class:`privproj.mechanisms.bound.Bound` in the module of the mechanism and add one line here.
For an optional feature, add an entry to the table ``BOUNDS`` of its plugin instead. The first bound of a mechanism is
its default. A module is imported when one of its bounds is needed.
"""

from functools import cache
from importlib import import_module
from typing import Literal, NamedTuple

from privproj.errors import unknown_name
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import Bound
from privproj.plugins import load, plugin_table

Key = tuple[str, str]  # the names of a mechanism and of a bound


# label of the published bounds of M2
OF_RANK = "the published bound, for differences of neighboring sums of rank up to {k}"


class Baseline(NamedTuple):
    """The use of a bound as a baseline, with which results are compared.

    Attributes:
        label: The name of the baseline in the text of a comparison; ``{k}`` is replaced by the rank of the difference
            between neighboring sums.
        runs: The runs for which the baseline is used: "single" (one release on the whole dataset), "composed" (all
            other runs), "unsampled" (sampling rate 1) or "any".
        split: How the published bound divides delta between two events of its proof; None if it does not.
    """

    label: str
    runs: Literal["single", "composed", "unsampled", "any"] = "any"
    split: Literal["even"] | None = None


class Line(NamedTuple):
    """The entry of a bound in the registry: the place of its definition, and its use.

    Attributes:
        place: ``"module:NAME"``. The module is relative to :mod:`privproj.mechanisms`, or has its full name if it
            belongs to an optional feature.
        role: "renyi" if Renyi accountants use the bound, a :class:`Baseline` if results are compared with it, or None.
    """

    place: str
    role: Baseline | Literal["renyi"] | None = None


_LINES: dict[Key, Line] = {
    ("gaussian", "analytic"): Line("gaussian:ANALYTIC"),
    ("gaussian", "two-sided"): Line("gaussian:TWO_SIDED"),
    ("gaussian", "classical"): Line("gaussian:CLASSICAL"),
    ("gaussian", "classical-2"): Line("gaussian:CLASSICAL_2"),
    ("gaussian", "rdp"): Line("gaussian:RDP", "renyi"),
    ("gaussian", "zcdp"): Line("gaussian:ZCDP"),
    ("gaussian", "gdp"): Line("gaussian:GDP"),
    ("laplace", "exact"): Line("laplace:EXACT"),
    ("m1", "known-projection"): Line("m1.known_projection:KNOWN_PROJECTION"),
    ("m1", "known-projection-rank1"): Line("m1.known_projection:KNOWN_PROJECTION_RANK1"),
    ("m1", "operator-norm"): Line(
        "m1.operator_norm:OPERATOR_NORM", Baseline("the published operator-norm bound", "unsampled")
    ),
    ("m1", "operator-norm-published"): Line("m1.operator_norm:OPERATOR_NORM_PUBLISHED"),
    ("m1", "secret-projection"): Line("m1.secret_projection:SECRET_PROJECTION"),
    ("m1", "column-exact"): Line("m1.column_exact:COLUMN_EXACT"),
    ("m1", "column"): Line("m1.column:COLUMN"),
    ("m1", "residual"): Line("m1.column_exact:RESIDUAL"),
    ("m1", "column-published"): Line("m1.column:COLUMN_PUBLISHED"),
    ("m1", "residual-published"): Line("m1.column:RESIDUAL_PUBLISHED"),
    ("m2", "rank-free"): Line("m2.rank_free:RANK_FREE"),
    ("m2", "exact-rank1"): Line("m2.rank_free:EXACT_RANK1"),
    ("m2", "mixture-rdp"): Line("m2.mixture_rdp:MIXTURE_RDP", "renyi"),
    ("m2", "good-event-q"): Line("m2.good_event:GOOD_EVENT_Q"),
    ("m2", "good-event"): Line("m2.good_event:GOOD_EVENT", Baseline(OF_RANK, "composed", "even")),
    ("m2", "beta-tail-sharp"): Line("m2.beta_tail:BETA_TAIL_SHARP"),
    ("m2", "beta-tail"): Line("m2.beta_tail:BETA_TAIL", Baseline(OF_RANK, "single")),
    ("m2", "gaussian"): Line("m2.gaussian:GAUSSIAN", Baseline("the bound of DP-SGD, which ignores the projection")),
    ("wishart", "exact"): Line("wishart.exact:EXACT"),
    ("wishart", "quantile-sharp"): Line("wishart.quantile:QUANTILE_SHARP"),
    ("wishart", "quantile"): Line("wishart.quantile:QUANTILE", Baseline("the published bound", "unsampled")),
    ("wishart", "early-exact-tail"): Line("wishart.early:EARLY_EXACT_TAIL"),
    ("wishart", "early"): Line("wishart.early:EARLY"),
    ("wishart", "early-corollary"): Line("refuted:EARLY_COROLLARY"),
    ("wishart", "rp-gd"): Line("refuted:RP_GD"),
    ("wishart-matrix", "early-matrix"): Line("refuted:EARLY_MATRIX"),
    ("sketch", "rdp-best"): Line("sketch.rdp:RDP_BEST"),
    ("sketch", "exact-rank1"): Line("sketch.exact_rank1:EXACT_RANK1"),
    ("sketch", "one-vector"): Line("sketch.one_vector:ONE_VECTOR"),
    ("sketch", "rdp-tight"): Line("sketch.rdp:RDP_TIGHT", "renyi"),
    ("sketch", "rdp"): Line("sketch.rdp:RDP"),
    ("sketch", "tcdp"): Line("sketch.rdp:TCDP"),
    ("sketch", "lora-one-step"): Line("sketch.rdp:LORA_ONE_STEP"),
    ("sketch", "lora-by-design"): Line("refuted:LORA_BY_DESIGN"),
    ("sketch-public", "rank-free"): Line("sketch_public:RANK_FREE"),
    ("sketch-public", "exact-rank1"): Line("sketch_public:EXACT_RANK1"),
    ("sketch-public", "operator-norm"): Line(
        "sketch_public:OPERATOR_NORM", Baseline("the operator-norm bound", "unsampled")
    ),
}


@cache
def _all_lines() -> dict[Key, Line]:
    return {**_LINES, **{key: Line(*line) for key, line in plugin_table("BOUNDS").items()}}


def lines_of(mechanism: str) -> dict[Key, Line]:
    """Return the registry entries of a mechanism, the default bound first."""
    of_core = {key: line for key, line in _LINES.items() if key[0] == mechanism}
    return of_core or {key: line for key, line in _all_lines().items() if key[0] == mechanism}


def bound_names() -> tuple[Key, ...]:
    """Return the pairs of names ``(mechanism, bound)`` of all bounds."""
    return tuple(_all_lines())


def mechanism_names() -> tuple[str, ...]:
    """Return the names of all mechanisms."""
    return tuple(dict.fromkeys(mechanism for mechanism, _ in _all_lines()))


@cache
def _load_bound(key: Key) -> Bound:
    place = lines_of(key[0])[key].place
    if place.startswith("privproj."):
        return load(place)
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"privproj.mechanisms.{module}"), attribute)


def registry() -> tuple[Bound, ...]:
    """Return all bounds, grouped by mechanism, the default bound first.

    >>> from privproj import M2
    >>> from privproj.mechanisms.registry import registry
    >>> [bound.name for bound in registry() if bound.mechanism is M2][:3]
    ['rank-free', 'exact-rank1', 'mixture-rdp']
    """
    return tuple(map(_load_bound, _all_lines()))


def bounds_of(mechanism: type[Mechanism]) -> tuple[Bound, ...]:
    """Return the bounds of a mechanism, the default bound first."""
    return tuple(map(_load_bound, lines_of(mechanism.name)))


def find_bound(mechanism: type[Mechanism], name: str | None) -> Bound:
    """Return a bound of a mechanism by its name; for None, the default bound.

    Raises:
        InvalidParameterError: The mechanism has no bound of this name.
    """
    keys = lines_of(mechanism.name)
    if name is None:
        return _load_bound(next(iter(keys)))
    if (mechanism.name, name) not in keys:
        raise unknown_name("bound", name, f"bound of {mechanism.name}", [bound for _, bound in keys])
    return _load_bound((mechanism.name, name))


def mechanism_named(name: str) -> type[Mechanism]:
    """Return the class of the mechanism with this name.

    Raises:
        InvalidParameterError: There is no mechanism of this name.
        UnsupportedError: The name is a published method whose privacy claim is refuted.
    """
    keys = lines_of(name) if isinstance(name, str) else {}
    if not keys:
        from privproj.mechanisms.methods import unknown_mechanism

        raise unknown_mechanism("mechanism", name, mechanism_names())
    return _load_bound(next(iter(keys))).mechanism


def baselines_of(mechanism: str) -> dict[str, Baseline]:
    """Return the bounds with which results of a mechanism are compared, by name."""
    roles = {name: line.role for (_, name), line in lines_of(mechanism).items()}
    return {name: role for name, role in roles.items() if isinstance(role, Baseline)}


def renyi_bound(mechanism: type[Mechanism]) -> Bound | None:
    """Return the bound of a mechanism that Renyi accountants use; None if none."""
    keys = [key for key, line in lines_of(mechanism.name).items() if line.role == "renyi"]
    return _load_bound(keys[0]) if keys else None


def is_renyi(bound: Bound) -> bool:
    """Return whether Renyi accountants use this bound for its mechanism."""
    line = lines_of(bound.mechanism.name).get(bound.key)
    return line is not None and line.role == "renyi"
