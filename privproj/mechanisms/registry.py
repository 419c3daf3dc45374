"""The registry of bounds.

A new bound is one file in the folder of its mechanism and one line here. For each mechanism the first is the default.
A file is imported when its bound is asked for, so that one question pays for one bound.
"""

from functools import cache
from importlib import import_module
from typing import Literal

from privproj.errors import unknown_name
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import Bound

Role = Literal["baseline", "composed baseline", "renyi"]

_LINES: tuple[tuple[str, str, Role | None], ...] = (
    ("gaussian", "analytic", None),
    ("gaussian", "two-sided", None),
    ("gaussian", "classical", None),
    ("gaussian", "classical-2", None),
    ("gaussian", "rdp", "renyi"),
    ("gaussian", "zcdp", None),
    ("gaussian", "gdp", None),
    ("laplace", "exact", None),
    ("m1", "known-projection", None),
    ("m1", "known-projection-rank1", None),
    ("m1", "operator-norm", "baseline"),
    ("m1", "secret-projection", None),
    ("m1", "column-exact", None),
    ("m1", "column", None),
    ("m1", "residual", None),
    ("m1", "column-published", None),
    ("m2", "rank-free", None),
    ("m2", "exact-rank1", None),
    ("m2", "mixture-rdp", "renyi"),
    ("m2", "good-event-q", None),
    ("m2", "good-event", "composed baseline"),
    ("m2", "beta-tail-sharp", None),
    ("m2", "beta-tail", "baseline"),
    ("m2", "gaussian", "baseline"),
    ("wishart", "exact", None),
    ("wishart", "quantile-sharp", None),
    ("wishart", "quantile", "baseline"),
    ("wishart", "early-exact-tail", None),
    ("wishart", "early", None),
    ("wishart", "early-corollary", None),
    ("wishart", "rp-gd", None),
    ("wishart-matrix", "early-matrix", None),
    ("sketch", "rdp-best", None),
    ("sketch", "exact-rank1", None),
    ("sketch", "rdp-tight", "renyi"),
    ("sketch", "rdp", None),
    ("sketch", "tcdp", None),
    ("sketch", "lora-one-step", None),
    ("sketch", "lora-by-design", None),
    ("sketch-public", "rank-free", None),
    ("sketch-public", "exact-rank1", None),
    ("sketch-public", "operator-norm", "baseline"),
    ("mixing", "two-stage", None),
    ("jl-clip", "exact", None),
    ("jl-clip", "any-records", None),
    ("r1smg", "published", None),
)
"""The mechanism, the name and the role of every bound; its file is ``MECHANISM/NAME.py`` with underscores.

Bounds with a role have a ``baseline`` (composed: for runs only) or ``renyi`` in their record; by the role only their
files are read.
"""

ROLES: dict[tuple[str, str], Role] = {(mechanism, name): role for mechanism, name, role in _LINES if role}
"""The role of every bound that has one."""

LINES = tuple((mechanism, name) for mechanism, name, _ in _LINES)
"""The mechanism and the name of every bound."""

DEFAULTS = dict(reversed(LINES))
"""The name of the first bound of every mechanism."""


@cache
def _load_bound(mechanism: str, name: str) -> Bound:
    """The record of a bound, imported from its file."""
    return import_module(f"privproj.mechanisms.{mechanism}.{name}".replace("-", "_")).BOUND


def registry() -> tuple[Bound, ...]:
    """Return the records of all bounds, the bounds of one mechanism together and its default first.

    Returns:
        A record for each theorem.

    >>> from privproj import M2, registry
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
    known = [line for kind, line in LINES if kind == mechanism.name]
    if name not in known:
        raise unknown_name("bound", name, f"a bound of {mechanism.name}", known)
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
