"""The residual of one changed column (2601.21719, Lemma 2), which is the whole loss where no other column is known."""

from privproj.curves.profile import PrivacyProfile
from privproj.errors import InvalidParameter
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m1._one_column import promises, residual_profile
from privproj.numerics.enclosure import LOG_OF_ZERO_FROM_ABOVE, Enclosure
from privproj.result import Status


def representation(mechanism: M1) -> PrivacyProfile:
    """The profile of the residual; without one nothing is lost."""
    # A vector Wishart release with (d, r) -> (d - k, r - k) (C13), whose profile is exact (C9).
    return residual_profile(mechanism) or PrivacyProfile(lambda eps: Enclosure(-float("inf"), LOG_OF_ZERO_FROM_ABOVE))


def refuses(mechanism: M1) -> str | None:
    """Why the residual alone is no bound on the release: there is a correlated part, or several columns change."""
    if mechanism.span_residual[0] > 0:
        return (
            "the residual is one of two parts of the loss where other columns are there (span_dim > 0): use "
            "column-exact or column, which add the correlated part"
        )
    if mechanism.changed_columns > 1:
        raise InvalidParameter("changed_columns", mechanism.changed_columns, "1 for residual; column chains several")
    return None


BOUND = Bound(
    name="residual",
    mechanism=M1,
    summary="the residual of one changed column, exact; noise ignored, so it stays finite without any",
    formula="L = p ln A - q ln tau + (W/2)(tau/A - 1), p = (d+1-r)/2, q = (d+r-2k-1)/2, A = rho + sqrt(1-rho^2) T_(r-k)"
    "/sqrt(r-k), W ~ chi2_2q",
    source="arXiv 2601.21719, Lemma 2, averaged exactly",
    proof="C9",
    example="privproj epsilon m1 --bound residual --dim 1000 --rank 64 --span-dim 0 --residual-misalignment 8e-6 "
    "--noise-multiplier 20 --delta 1e-5",
    representation=representation,
    groups=False,
    status=Status.CONDITIONAL,
    promises_of=promises,
    refuses=refuses,
    version=3,
)
