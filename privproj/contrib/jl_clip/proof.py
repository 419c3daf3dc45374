"""Enclose the exact profile of random clipping in ball arithmetic.

Claim C32 (random clipping by Gaussian probes) of docs/proofs.md proves the formula.
"""

from flint import arb

from privproj.contrib.certify.distributions import BallGammaDistribution
from privproj.contrib.certify.profiles import BallMean
from privproj.contrib.jl_clip import JLClip


class _BallRandomClip(BallMean):
    """The exact profile of random clipping in ball arithmetic (C32)."""

    effort: int = 8

    def __init__(self, probes: int, noise_multiplier: float) -> None:
        self.probes, self.noise = probes, noise_multiplier

    def mean(self, eps: arb, goal: int) -> arb:
        """Return a ball around the profile at ``eps``, a mean of Gaussian deltas."""
        # E[h_eps(mu^2 r / chi2_r)] with r probes, mu = 1/noise, and the Gaussian delta h_eps(x) at the squared
        # sensitivity x
        half = arb(self.probes) / 2
        return BallGammaDistribution(half, half / arb(self.noise) ** 2, inverse=True).expected_delta(eps, goal=goal)


def ball_profile(mechanism: JLClip, steps: int) -> _BallRandomClip:
    """Return the privacy profile of one DP-SGD-JL release in ball arithmetic."""
    assert mechanism.probes is not None
    return _BallRandomClip(mechanism.probes, mechanism.z)
