"""M2 without its amplification: projecting is post-processing of the Gaussian mechanism."""

from privproj.mechanisms import M2
from privproj.mechanisms.bound import Baseline, Bound, in_balls
from privproj.mechanisms.gaussian.analytic import representation

BOUND = Bound(
    name="gaussian",
    mechanism=M2,
    summary="plain Gaussian mechanism, amplification ignored; holds for any projection, fixed or fresh",
    formula="delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z",
    source="post-processing; Balle, Wang 2018, Theorem 8",
    proof="C3",
    # delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), mu = 1/z (C3): projecting is post-processing (F2).
    representation=representation,
    version=5,
    ball_profile=in_balls("BallGaussianProfile", lambda mechanism, steps: (mechanism.z, steps)),
    certifies_runs=True,
    holds_for_fixed_projection=True,
    baseline=Baseline("plain Gaussian"),
    supports_adaptive_clipping=True,
)
