"""The bounds, one theorem per file, and their registry.

A new bound is one file here and one line in :data:`REGISTRY`. For each mechanism the first is the default.
"""

from privproj.bound import Bound
from privproj.bounds import (
    gaussian_analytic,
    gaussian_classical,
    gaussian_classical_2,
    gaussian_gdp,
    gaussian_rdp,
    gaussian_two_sided,
    gaussian_zcdp,
    m2_beta_tail,
    m2_beta_tail_sharp,
    m2_exact_rank1,
    m2_gaussian,
    m2_good_event,
    m2_good_event_q,
    m2_mixture_rdp,
    m2_rank_free,
)
from privproj.errors import InvalidParameter
from privproj.mechanisms import Mechanism

REGISTRY: tuple[Bound, ...] = (
    gaussian_analytic.BOUND,
    gaussian_two_sided.BOUND,
    gaussian_classical.BOUND,
    gaussian_classical_2.BOUND,
    gaussian_rdp.BOUND,
    gaussian_zcdp.BOUND,
    gaussian_gdp.BOUND,
    m2_rank_free.BOUND,
    m2_exact_rank1.BOUND,
    m2_mixture_rdp.BOUND,
    m2_good_event_q.BOUND,
    m2_good_event.BOUND,
    m2_beta_tail_sharp.BOUND,
    m2_beta_tail.BOUND,
    m2_gaussian.BOUND,
)


def bounds_of(mechanism: type[Mechanism]) -> tuple[Bound, ...]:
    """The bounds of a mechanism, default first."""
    return tuple(bound for bound in REGISTRY if bound.mechanism is mechanism)


def find(mechanism: type[Mechanism], name: str | None) -> Bound:
    """The bound called ``name``, or the default; raises :class:`InvalidParameter` if there is none of that name."""
    known = bounds_of(mechanism)
    if name is None:
        return known[0]
    for bound in known:
        if bound.name == name:
            return bound
    raise InvalidParameter("bound", name, f"a bound of {mechanism.name}: " + ", ".join(b.name for b in known))
