"""The bounds, one theorem per file, and their registry.

A new bound is one file here and one line in :data:`LINES`. For each mechanism the first is the default. A file is
imported when its bound is asked for, so that one question pays for one bound.
"""

from functools import cache
from importlib import import_module
from typing import Literal

from privproj.bounds.bound import Bound
from privproj.errors import unknown_name
from privproj.mechanisms import Mechanism

LINES = (
    ("gaussian", "analytic"),
    ("gaussian", "two-sided"),
    ("gaussian", "classical"),
    ("gaussian", "classical-2"),
    ("gaussian", "rdp"),
    ("gaussian", "zcdp"),
    ("gaussian", "gdp"),
    ("laplace", "exact"),
    ("m1", "known-projection"),
    ("m1", "known-projection-rank1"),
    ("m1", "operator-norm"),
    ("m1", "secret-projection"),
    ("m1", "column-exact"),
    ("m1", "column"),
    ("m1", "residual"),
    ("m1", "column-published"),
    ("m2", "rank-free"),
    ("m2", "exact-rank1"),
    ("m2", "mixture-rdp"),
    ("m2", "good-event-q"),
    ("m2", "good-event"),
    ("m2", "beta-tail-sharp"),
    ("m2", "beta-tail"),
    ("m2", "gaussian"),
    ("wishart", "exact"),
    ("wishart", "quantile-sharp"),
    ("wishart", "quantile"),
    ("wishart", "early-exact-tail"),
    ("wishart", "early"),
    ("wishart", "early-corollary"),
    ("wishart", "rp-gd"),
    ("wishart-matrix", "early-matrix"),
    ("sketch", "rdp-best"),
    ("sketch", "exact-rank1"),
    ("sketch", "rdp-tight"),
    ("sketch", "rdp"),
    ("sketch", "tcdp"),
    ("sketch", "lora-one-step"),
    ("sketch", "lora-by-design"),
    ("sketch-public", "rank-free"),
    ("sketch-public", "exact-rank1"),
    ("sketch-public", "operator-norm"),
    ("mixing", "two-stage"),
    ("jl-clip", "exact"),
    ("jl-clip", "any-records"),
    ("r1smg", "published"),
)
"""The mechanism and the name of every bound; its file is ``MECHANISM/NAME.py`` with underscores."""

DEFAULTS = dict(reversed(LINES))
"""The name of the first bound of every mechanism."""

Role = Literal["baseline", "composed baseline", "renyi"]

ROLES: dict[tuple[str, str], Role] = {
    ("m1", "operator-norm"): "baseline",
    ("sketch-public", "operator-norm"): "baseline",
    ("wishart", "quantile"): "baseline",
    ("m2", "gaussian"): "baseline",
    ("m2", "beta-tail"): "baseline",
    ("m2", "good-event"): "composed baseline",
    ("m2", "mixture-rdp"): "renyi",
    ("gaussian", "rdp"): "renyi",
    ("sketch", "rdp-tight"): "renyi",
}
"""Bounds whose record has a ``baseline`` (composed: for runs only) or ``renyi``, so that only their files are read."""


@cache
def _load_bound(mechanism: str, name: str) -> Bound:
    """The record of a bound, imported from its file."""
    return import_module(f"privproj.bounds.{mechanism}.{name}".replace("-", "_")).BOUND


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
    return tuple(_load_bound(*line) for line in LINES if line[0] == mechanism.name and ROLES.get(line) in roles)


def renyi_bound(mechanism: type[Mechanism]) -> Bound | None:
    """The bound by which a mechanism enters Renyi accountants; None where it has no Renyi curve."""
    return next(iter(with_role(mechanism, "renyi")), None)
