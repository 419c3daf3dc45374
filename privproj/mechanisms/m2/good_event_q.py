"""The good-event accounting under Poisson sampling, where a failure matters only when the record is sampled."""

from privproj.composition.good_event import GoodEvent
from privproj.mechanisms import M2
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m2._beta_tail import captured_energy_radius
from privproj.mechanisms.m2.beta_tail import needs, promises
from privproj.runs.sampling import NeighbouringRelation


def representation(mechanism: M2) -> GoodEvent:
    """Good-event accounting in which a failure counts only where the record is sampled."""
    # delta = T q p + delta of the Gaussian run at mu sqrt(tau), p = k P(B > tau) (C16).
    return GoodEvent(mechanism.mu, captured_energy_radius(mechanism), sampled=True)


BOUND = Bound(
    name="good-event-q",
    mechanism=M2,
    summary="good-event accounting whose union counts sampled releases only (Poisson sampling)",
    formula="delta = T q k P(Beta(r/2, (d-r)/2) > tau) + delta of the subsampled Gaussian run at mu sqrt(tau)",
    source="privproj: arXiv 2601.21719, Appendix F.2, with the failure inside the sampled branch",
    proof="C16",
    example="privproj epsilon m2 --bound good-event-q --dim 2048 --rank 16 --change-rank 10"
    " --noise-multiplier 0.155974 --sampling-rate 0.01 --steps 2000 --delta 1e-5",
    representation=representation,
    splits=True,
    promises_of=promises,
    needs=needs,
    relations=(NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
    version=4,
)
