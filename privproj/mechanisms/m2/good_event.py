"""The published accounting of many M2 releases (2601.21719, Appendix F.2): a good event, then a Gaussian run."""

from privproj.composition.good_event import GoodEvent
from privproj.mechanisms import M2
from privproj.mechanisms.bound import Baseline, Bound
from privproj.mechanisms.m2._beta_tail import captured_energy_radius
from privproj.mechanisms.m2.beta_tail import needs, promises


def representation(mechanism: M2) -> GoodEvent:
    """Good-event accounting with the union bound over all releases, as published."""
    # delta = T p + delta of the Gaussian run at mu sqrt(tau), p = k P(B > tau) (C16).
    return GoodEvent(mechanism.mu, captured_energy_radius(mechanism))


BOUND = Bound(
    name="good-event",
    mechanism=M2,
    summary="published accounting of many releases: a good event with tau, then a Gaussian run at mu sqrt(tau)",
    formula="delta = T k P(Beta(r/2, (d-r)/2) > tau) + delta of the subsampled Gaussian run at mu sqrt(tau)",
    source="arXiv 2601.21719, Appendix F.2",
    proof="C16",
    example="privproj epsilon m2 --bound good-event --dim 2048 --rank 16 --change-rank 10 --noise-multiplier 0.155974"
    " --sampling-rate 0.01 --steps 2000 --delta 1e-5",
    representation=representation,
    splits=True,
    promises_of=promises,
    needs=needs,
    baseline=Baseline("published (k={k})", "composed", "even"),
    version=4,
)
