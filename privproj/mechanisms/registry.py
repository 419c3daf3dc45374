"""The registry of bounds.

A new bound is one file in the folder of its mechanism, or one record in a file there, and one line here. For each
mechanism the first is the default. A file is imported when its bound is asked for.
"""

from functools import cache
from importlib import import_module
from typing import Literal, NamedTuple

from privproj.errors import unknown_name
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import Bound

Role = Literal["baseline", "composed baseline", "renyi"]


class _Line(NamedTuple):
    """A bound: its mechanism, its name, its role if it has one, and its file, that of its name unless given."""

    mechanism: str
    name: str
    role: Role | None = None
    file: str = ""


_LINES = (
    _Line("gaussian", "analytic"),
    _Line("gaussian", "two-sided", file="gaussian.analytic"),
    _Line("gaussian", "classical"),
    _Line("gaussian", "classical-2", file="gaussian.classical"),
    _Line("gaussian", "rdp", "renyi"),
    _Line("gaussian", "zcdp", file="gaussian.rdp"),
    _Line("gaussian", "gdp", file="gaussian.analytic"),
    _Line("laplace", "exact"),
    _Line("m1", "known-projection"),
    _Line("m1", "known-projection-rank1", file="m1.known_projection"),
    _Line("m1", "operator-norm", "baseline"),
    _Line("m1", "secret-projection"),
    _Line("m1", "column-exact"),
    _Line("m1", "column"),
    _Line("m1", "residual", file="m1.column_exact"),
    _Line("m1", "column-published", file="m1.column"),
    _Line("m2", "rank-free"),
    _Line("m2", "exact-rank1", file="m2.rank_free"),
    _Line("m2", "mixture-rdp", "renyi"),
    _Line("m2", "good-event-q", file="m2.good_event"),
    _Line("m2", "good-event", "composed baseline"),
    _Line("m2", "beta-tail-sharp", file="m2.beta_tail"),
    _Line("m2", "beta-tail", "baseline"),
    _Line("m2", "gaussian", "baseline"),
    _Line("wishart", "exact"),
    _Line("wishart", "quantile-sharp", file="wishart.quantile"),
    _Line("wishart", "quantile", "baseline"),
    _Line("wishart", "early-exact-tail", file="wishart.early"),
    _Line("wishart", "early"),
    _Line("wishart", "early-corollary", file="refuted"),
    _Line("wishart", "rp-gd", file="refuted"),
    _Line("wishart-matrix", "early-matrix", file="refuted"),
    _Line("sketch", "rdp-best", file="sketch.rdp"),
    _Line("sketch", "exact-rank1"),
    _Line("sketch", "rdp-tight", "renyi", file="sketch.rdp"),
    _Line("sketch", "rdp"),
    _Line("sketch", "tcdp", file="sketch.rdp"),
    _Line("sketch", "lora-one-step", file="sketch.rdp"),
    _Line("sketch", "lora-by-design", file="refuted"),
    _Line("sketch-public", "rank-free"),
    _Line("sketch-public", "exact-rank1", file="sketch_public.rank_free"),
    _Line("sketch-public", "operator-norm", "baseline"),
    _Line("mixing", "two-stage", file="contrib.mixing.two_stage"),
    _Line("jl-clip", "exact", file="contrib.jl_clip.exact"),
    _Line("jl-clip", "any-records", file="contrib.jl_clip.exact"),
)
"""Every bound, the default of its mechanism first.

Bounds with a role have a ``baseline`` (composed: for runs only) or ``renyi`` in their record; by the role only their
files are read.
"""

ROLES: dict[tuple[str, str], Role] = {line[:2]: line.role for line in _LINES if line.role}
"""The role of every bound that has one."""

LINES = tuple(line[:2] for line in _LINES)
"""The mechanism and the name of every bound."""

DEFAULTS = dict(reversed(LINES))
"""The name of the first bound of every mechanism."""


@cache
def _load_bound(mechanism: str, name: str) -> Bound:
    """The record of a bound, imported from its file, in which others may stand too."""
    file = next(line.file or f"{mechanism}.{name}" for line in _LINES if line[:2] == (mechanism, name))
    file = file if file.startswith("contrib.") else f"mechanisms.{file}"
    members = vars(import_module(f"privproj.{file}".replace("-", "_"))).values()
    return next(b for b in members if isinstance(b, Bound) and (b.mechanism.name, b.name) == (mechanism, name))


def registry() -> tuple[Bound, ...]:
    """Return the records of all bounds, the bounds of one mechanism together and its default first.

    Returns:
        A record for each theorem.

    >>> from privproj import M2
    >>> from privproj.mechanisms.registry import registry
    >>> [bound.name for bound in registry() if bound.mechanism is M2][:3]
    ['rank-free', 'exact-rank1', 'mixture-rdp']
    """
    return tuple(_load_bound(*line) for line in LINES)


def bounds_of(mechanism: type[Mechanism]) -> tuple[Bound, ...]:
    """The records of the bounds of a mechanism, its default first."""
    return tuple(_load_bound(kind, name) for kind, name in LINES if kind == mechanism.name)


def find_bound(mechanism: type[Mechanism], name: str | None) -> Bound:
    """The bound of this name, or the default for None; raises :class:`InvalidParameter` if there is none."""
    if name is None:
        return _load_bound(mechanism.name, DEFAULTS[mechanism.name])
    names = [line for kind, line in LINES if kind == mechanism.name]
    if name not in names:
        raise unknown_name("bound", name, f"a bound of {mechanism.name}", names)
    return _load_bound(mechanism.name, name)


def mechanism_named(name: str) -> type[Mechanism]:
    """The type of the mechanism of this name; raises :class:`InvalidParameter` if there is none."""
    if name not in DEFAULTS:
        from privproj.mechanisms.methods import unknown_mechanism

        raise unknown_mechanism("mechanism", name, DEFAULTS)
    return _load_bound(name, DEFAULTS[name]).mechanism


def with_role(mechanism: type[Mechanism], *roles: Role) -> tuple[Bound, ...]:
    """The bounds of a mechanism that have one of these roles, in the order of the registry."""
    return tuple(_load_bound(*line) for line, role in ROLES.items() if line[0] == mechanism.name and role in roles)


def renyi_bound(mechanism: type[Mechanism]) -> Bound | None:
    """The bound by which a mechanism enters Renyi accountants; None where it has no Renyi curve."""
    return next(iter(with_role(mechanism, "renyi")), None)
