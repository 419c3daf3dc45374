"""Build the privacy profiles of the bounds that can be certified, in ball arithmetic."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from privproj.errors import UnsupportedError
from privproj.mechanisms.bound import Bound
from privproj.plugins import load, plugin_table

if TYPE_CHECKING:
    from privproj.contrib.certify.profiles import BallProfile


class _BallEntry(NamedTuple):
    """A builder of the privacy profile of a bound in ball arithmetic.

    Attributes:
        build: A function that takes a mechanism and a number of releases, and returns the profile.
        runs: True if ``build`` supports more than one release.
    """

    build: Callable[[Any, int], "BallProfile"]
    runs: bool = False


def _gaussian(mechanism: Any, steps: int) -> "BallProfile":
    """Return the privacy profile of ``steps`` Gaussian releases (C3: Gaussian profile)."""
    from privproj.contrib.certify.profiles import BallGaussianProfile

    return BallGaussianProfile(mechanism.z, steps)


def _laplace(mechanism: Any, steps: int) -> "BallProfile":
    from privproj.contrib.certify.profiles import BallLaplaceProfile

    return BallLaplaceProfile(mechanism.z)


def _rank_free(mechanism: Any, steps: int) -> "BallProfile":
    from privproj.contrib.certify.profiles import BallAnyRank

    return _gaussian(mechanism, 1) if mechanism.unprojected else BallAnyRank(mechanism.shape, mechanism.z)


def _exact_rank1(mechanism: Any, steps: int) -> "BallProfile":
    from privproj.contrib.certify.profiles import BallRandomSensitivity

    return _gaussian(mechanism, 1) if mechanism.unprojected else BallRandomSensitivity(mechanism.shape, mechanism.z)


def _beta_tail(sharp: bool) -> Callable[[Any, int], "BallProfile"]:
    """Return a builder of the profile of ``beta-tail-sharp`` or ``beta-tail``."""

    def build(mechanism: Any, steps: int) -> "BallProfile":
        from privproj.contrib.certify.profiles import BallBetaTail
        from privproj.mechanisms.m2.beta_tail import rank_of_difference

        dim, rank = mechanism.shape
        return BallBetaTail(dim, rank, rank_of_difference(mechanism), mechanism.z, sharp)

    return build


def _wishart(mechanism: Any, steps: int) -> "BallProfile":
    """Return the privacy profile of the Wishart mechanism for vectors of equal norm.

    Raises:
        UnsupportedError: The norms are not equal.
    """
    from privproj.contrib.certify.wishart import BallWishartProfile

    if mechanism.norm_ratio != 1.0:
        raise UnsupportedError("a certificate of wishart needs equal norms. Use norm_ratio=1")
    return BallWishartProfile(*mechanism.shape)


def _secret_sketch(mechanism: Any, steps: int) -> "BallProfile":
    """Return the privacy profile of ``steps`` releases of a secret sketch (C14)."""
    from privproj.contrib.certify.profiles import BallSecretSketch

    # The profile of one release of rank T r, where T = steps and r is the sum of the ranks of all layers (C14)
    return BallSecretSketch(steps * mechanism.needed_rank * mechanism.layer_count, mechanism.gamma_of_one_column)


def _public_rank_free(mechanism: Any, steps: int) -> "BallProfile":
    from privproj.contrib.certify.profiles import BallAnyRank

    return BallAnyRank(mechanism.needed_rank, mechanism.z)


def _public_exact_rank1(mechanism: Any, steps: int) -> "BallProfile":
    from privproj.contrib.certify.profiles import BallRandomSensitivity

    return BallRandomSensitivity(mechanism.needed_rank, mechanism.z)


_ENTRIES = {
    ("gaussian", "analytic"): _BallEntry(_gaussian, runs=True),
    ("laplace", "exact"): _BallEntry(_laplace),
    ("m2", "rank-free"): _BallEntry(_rank_free),
    ("m2", "exact-rank1"): _BallEntry(_exact_rank1),
    ("m2", "beta-tail-sharp"): _BallEntry(_beta_tail(sharp=True)),
    ("m2", "beta-tail"): _BallEntry(_beta_tail(sharp=False)),
    ("m2", "gaussian"): _BallEntry(_gaussian, runs=True),
    ("wishart", "exact"): _BallEntry(_wishart),
    ("sketch", "exact-rank1"): _BallEntry(_secret_sketch, runs=True),
    ("sketch-public", "rank-free"): _BallEntry(_public_rank_free),
    ("sketch-public", "exact-rank1"): _BallEntry(_public_exact_rank1),
}


def ball_entry(bound: Bound) -> _BallEntry | None:
    """Return the builder of the ball-arithmetic profile of a bound, or None."""
    if bound.key in _ENTRIES:
        return _ENTRIES[bound.key]
    place = plugin_table("BALL_PROFILES").get(bound.key)
    return None if place is None else _BallEntry(load(place))


def provable_names() -> list[str]:
    """Return the names ``mechanism.bound`` of all bounds that can be certified."""
    from privproj.mechanisms.registry import bound_names

    return [".".join(key) for key in bound_names() if key in _ENTRIES or key in plugin_table("BALL_PROFILES")]
