"""Bound Gaussian mixing by an integral over the noise of the eigenvalue.

Claim C33 (a sketch whose noise follows a private least eigenvalue) of docs/proofs.md proves the bound.
"""

from privproj.contrib.mixing import Mixing
from privproj.mechanisms.bound import OF_ONE_RECORD, Bound
from privproj.numerics.interval import Enclosure
from privproj.profiles.privacy_profile import PrivacyProfile

VALUES_PER_DEVIATION = 24.0  # values of the profile per standard deviation of the loss


def representation(mechanism: Mixing) -> PrivacyProfile:
    """Return the privacy profile of one release of Gaussian mixing in both directions."""
    from privproj.contrib.mixing.enforced_sketch import EnforcedSketch

    distribution = EnforcedSketch(float(mechanism.needed_rank), mechanism.gamma, mechanism.eigen_noise)

    def log_delta(eps: float) -> Enclosure:
        import numpy as np

        orders = [distribution.log_delta_ends(np.array([eps]), present) for present in (True, False)]
        return Enclosure(*(max(float(ends[i][0]) for ends in orders) for i in (0, 1)))

    return PrivacyProfile(
        log_delta,
        excess=distribution.excess,
        resolution=VALUES_PER_DEVIATION,
        can_be_subsampled=False,
    )


TWO_STAGE = Bound(
    name="two-stage",
    mechanism=Mixing,
    summary="bound for the two releases: a noisy eigenvalue and a noisy sketch of the records",
    formula="with the record against without: int phi(u) R h(eps - ln R; nu) du, nu = 1/(G - Z u), R the largest of "
    "e^(s u - s^2/2) over 0 <= s <= 1/Z, h the profile of exact-rank1 of `sketch` in this order, and 1 beyond u = G/Z; "
    "or int phi(u) h(eps + ln R; nu) du in the other order, R the smallest; whichever is larger",
    source="privproj: the noise of the eigenvalue is integrated out",
    proof="C33",
    representation=representation,
    version=4,
    **OF_ONE_RECORD,
)
