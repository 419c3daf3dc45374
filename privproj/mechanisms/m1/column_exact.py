"""Compute exact bounds of M1 for one changed column and a secret projection (C13).

The privacy loss is the sum of a residual part and a correlated part, which :mod:`privproj.mechanisms.m1.column`
defines. If all other columns are zero, there is no correlated part (arXiv 2601.21719, Lemma 2).
"""

from functools import partial

from privproj.composition.compose import compose_phases
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound, OverRun
from privproj.mechanisms.m1.column import OF_COLUMN, correlated_profile, is_distinguished, residual_profile
from privproj.numerics.interval import LOG_OF_ZERO_FROM_ABOVE, Enclosure
from privproj.profiles.privacy_profile import Curve, PrivacyProfile
from privproj.run import Run

NOTHING_LOST = PrivacyProfile(lambda eps: Enclosure(-float("inf"), LOG_OF_ZERO_FROM_ABOVE))  # delta = 0


def _parts_over_run(parts: tuple[PrivacyProfile, ...], run: Run) -> Curve:
    """Return the privacy curve of a run whose privacy loss is a sum of independent parts.

    ``parts`` has the privacy profiles of these parts for one release (C13).

    Raises:
        UnsupportedError: The run is subsampled.
    """
    if run.sampling_rate < 1.0:
        raise UnsupportedError("the bound column-exact does not support subsampling. Use the bound known-projection")
    if not parts:
        return NOTHING_LOST
    # delta(eps) = E[delta_gauss(eps - L_R; |C x|/sigma)]: the losses are independent (C13) and compose (C2).
    return compose_phases([(part, run) for part in parts], run.discretization)


def _column_exact_of(mechanism: M1) -> OverRun | PrivacyProfile:
    if mechanism.changed_columns > 1:
        raise InvalidParameterError(
            "changed_columns", mechanism.changed_columns, "1 for the bound column-exact", "use the bound column"
        )
    if is_distinguished(mechanism):
        return PrivacyProfile(lambda eps: Enclosure(0.0, 0.0))
    parts = (residual_profile(mechanism), correlated_profile(mechanism))
    return OverRun(partial(_parts_over_run, tuple(part for part in parts if part is not None)))


COLUMN_EXACT = Bound(
    name="column-exact",
    summary="bound for records that change one column of the query matrix",
    formula="delta(eps) = E[delta_gauss(eps - L_R; |C x|/sigma)], L_R as in residual, |C x|^2 = |x|^2 X_k (X_k + "
    "Y_(d+r-k-1))/r^2 orthogonal to the span, |x|^2 X_r (X_r + Y_(d-1))/r^2 within it",
    source="privproj: exact distribution of the correlated part, instead of arXiv 2601.21719, Lemma 14",
    proof="C13",
    example="--dim 1000 --rank 64 --span-dim 4 --residual-misalignment 8e-6 --noise-multiplier 20",
    representation=_column_exact_of,
    version=7,
    **OF_COLUMN,
)


def _check_residual(mechanism: M1) -> None:
    if mechanism.span_residual[0] > 0:
        raise UnsupportedError(
            "the bound residual needs span_dim=0, because it omits the correlated part of the loss. Use the bound "
            "column-exact or column"
        )
    if mechanism.changed_columns > 1:
        raise InvalidParameterError(
            "changed_columns", mechanism.changed_columns, "1 for the bound residual", "use the bound column"
        )


RESIDUAL = Bound(
    name="residual",
    summary="bound for records that change one column of the query matrix, if all other columns are zero",
    formula="L = p ln A - q ln tau + (W/2)(tau/A - 1), p = (d+1-r)/2, q = (d+r-2k-1)/2, A = rho + sqrt(1-rho^2) T_(r-k)"
    "/sqrt(r-k), W ~ chi2_2q",
    source="arXiv 2601.21719, Lemma 2, averaged exactly",
    proof="C9",
    example="--dim 1000 --rank 64 --span-dim 0 --residual-misalignment 8e-6 --noise-multiplier 20",
    # A vector Wishart release with (d, r) -> (d - k, r - k) (C13), whose profile is exact (C9).
    representation=lambda mechanism: residual_profile(mechanism) or NOTHING_LOST,
    check=_check_residual,
    version=7,
    **OF_COLUMN,
)
