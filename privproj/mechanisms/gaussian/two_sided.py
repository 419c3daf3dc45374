"""The probability that the absolute privacy loss exceeds eps (2601.21719, Equation 10)."""

from privproj.curves.profile import PrivacyProfile
from privproj.mechanisms import Gaussian
from privproj.mechanisms.bound import Bound
from privproj.numerics import kernels
from privproj.numerics.enclosure import Enclosure, widen_outward


def representation(mechanism: Gaussian) -> PrivacyProfile:
    """The probability that the absolute privacy loss exceeds eps, which is an upper bound of delta."""
    mu = mechanism.joint_mu

    def log_delta(eps: float) -> Enclosure:
        if eps == 0.0:
            return Enclosure(0.0, 0.0)
        # T(eps; mu) = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2) (C3); at eps = 0 it is 1.
        return widen_outward(kernels.log_two_sided(eps, mu), steepness=mu * mu)

    return PrivacyProfile(log_delta)


BOUND = Bound(
    name="two-sided",
    mechanism=Gaussian,
    summary="tail of the absolute privacy loss; loose",
    formula="T(eps) = Phi(-eps/mu + mu/2) + Phi(-eps/mu - mu/2), mu = 1/z",
    source="arXiv 2601.21719, Equation 10",
    example="privproj epsilon gaussian --bound two-sided --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    version=3,
    counts_clipped=True,
)
