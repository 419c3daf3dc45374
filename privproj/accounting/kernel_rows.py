"""List the bounds that array queries evaluate by compiled kernels.

A kernel is a compiled function of an epsilon (or a log delta) and of a row: the tuple of all other parameters. For each
bound, a function of a mechanism and its ratio of sensitivity to noise returns the kernels and the row. It returns None
if no kernel supports the mechanism. If the ratio is an array, so are the entries of the row.
"""
# All fields of a result except its values must be independent of the noise, because many rows share one result.

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from privproj.mechanisms.bound import Bound

if TYPE_CHECKING:
    from privproj.profiles.privacy_profile import KernelRow


def _gaussian_row(mechanism: Any, mu: Any) -> "KernelRow":
    from privproj.profiles.gaussian import GAUSSIAN_KERNELS

    return GAUSSIAN_KERNELS, (mechanism.mus_with_count(mu),)


def _projection_row(mechanism: Any, mu: Any, any_rank: float) -> "KernelRow | None":
    """Return the kernels and parameters of a bound of M2, or None.

    ``any_rank`` is 1 if the difference between neighboring sums may have any rank, and 0 for rank one.
    """
    # No kernel supports layers of several shapes or the noisy count of adaptive clipping.
    from privproj.distributions.beta_gamma_kernels import BETA_GAMMA_KERNELS

    if mechanism.unprojected:
        return _gaussian_row(mechanism, mu)
    if mechanism.alike.layers or mechanism.adaptive_count_shift:
        return None
    return BETA_GAMMA_KERNELS, (*mechanism.alike.beta_shape, mu**2, any_rank)


def _beta_tail_row(mechanism: Any, mu: Any, sharp: bool) -> "KernelRow | None":
    """Return the kernels and parameters of a Beta-tail bound, or None if ``mechanism`` has none (C16)."""
    from privproj.mechanisms.m2.beta_tail import BETA_TAIL_KERNELS, beta_tail_row

    if mechanism.unprojected or mechanism.layers:
        return None
    return BETA_TAIL_KERNELS, beta_tail_row(mechanism, mu, sharp)


def _public_sketch_row(mechanism: Any, mu: Any, any_rank: float) -> "KernelRow":
    from privproj.distributions.beta_gamma_kernels import BETA_GAMMA_KERNELS
    from privproj.mechanisms.sketch_public import squared_sensitivity

    dist = squared_sensitivity(mechanism, mu)
    return BETA_GAMMA_KERNELS, (dist.a, dist.b, dist.scale, any_rank)


_ROWS: dict[tuple[str, str], Callable[[Any, Any], "KernelRow | None"]] = {
    ("gaussian", "analytic"): _gaussian_row,
    ("m2", "rank-free"): partial(_projection_row, any_rank=1.0),
    ("m2", "exact-rank1"): partial(_projection_row, any_rank=0.0),
    ("m2", "beta-tail"): partial(_beta_tail_row, sharp=False),
    ("m2", "beta-tail-sharp"): partial(_beta_tail_row, sharp=True),
    ("sketch-public", "rank-free"): partial(_public_sketch_row, any_rank=1.0),
    ("sketch-public", "exact-rank1"): partial(_public_sketch_row, any_rank=0.0),
}


def row_function(bound: Bound) -> Callable[[Any, Any], "KernelRow | None"] | None:
    """Return a function that selects the compiled kernels for a bound, or None if there are none."""
    return _ROWS.get(bound.key)
