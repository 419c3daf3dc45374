"""Bound a run of M2 by a Gaussian run, except for unlikely projections (C16).

This is the published accounting (arXiv 2601.21719, Appendix F.2). With a small probability, the projection of a release
keeps more than a fraction ``tau`` of the squared norm of the difference between neighboring sums. A union bound adds
these probabilities to delta. Otherwise, the privacy loss is at most that of a Gaussian run with the sensitivity times
``sqrt(tau)``. Under Poisson sampling, such a projection matters only if the record is sampled; the bound
``good-event-q`` uses this.
"""

from privproj.composition.good_event import GoodEvent
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m2.beta_tail import OF_CHANGE_RANK, captured_energy_radius
from privproj.sampling import NeighboringRelation

# fields of both bounds
OF_GOOD_EVENT = {
    "proof": "C16",
    "example": "--dim 2048 --rank 16 --change-rank 10 --noise-multiplier 0.155974 --sampling-rate 0.01 --steps 2000",
    "supports": ("split", "shared-projection"),
    "version": 6,
    **OF_CHANGE_RANK,
}


GOOD_EVENT = Bound(
    name="good-event",
    summary="published bound for several releases, by a high-probability bound on the sensitivity after projection",
    formula="delta = T k P(Beta(r/2, (d-r)/2) > tau) + delta of the subsampled Gaussian run at mu sqrt(tau)",
    source="arXiv 2601.21719, Appendix F.2",
    # delta = T p + delta of the Gaussian run at mu sqrt(tau), p = k P(B > tau) (C16).
    representation=lambda mechanism: GoodEvent(mechanism.mu, captured_energy_radius(mechanism)),
    **OF_GOOD_EVENT,
)


GOOD_EVENT_Q = Bound(
    name="good-event-q",
    summary="version of good-event that gives a smaller epsilon under Poisson sampling",
    formula="delta = T q k P(Beta(r/2, (d-r)/2) > tau) + delta of the subsampled Gaussian run at mu sqrt(tau)",
    source="privproj: arXiv 2601.21719, Appendix F.2, with the failure inside the sampled branch",
    # delta = T q p + delta of the Gaussian run at mu sqrt(tau), p = k P(B > tau) (C16).
    representation=lambda mechanism: GoodEvent(mechanism.mu, captured_energy_radius(mechanism), sampled=True),
    relations=(NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT),
    **OF_GOOD_EVENT,
)
