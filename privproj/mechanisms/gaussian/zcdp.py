"""Zero-concentrated DP of the Gaussian mechanism (Bun, Steinke 2016, Proposition 1.6)."""

from privproj.curves.renyi import ConcentratedCurve
from privproj.mechanisms import Gaussian
from privproj.mechanisms.bound import Bound


def representation(mechanism: Gaussian) -> ConcentratedCurve:
    """The zero-concentrated curve of one release."""
    mu = mechanism.joint_mu
    # rho = mu^2 / 2 (Bun, Steinke 2016, Proposition 1.6).
    return ConcentratedCurve(0.5 * mu * mu)


BOUND = Bound(
    name="zcdp",
    mechanism=Gaussian,
    summary="zero-concentrated DP with its closed-form conversion",
    formula="rho = mu^2/2, eps = rho + 2 sqrt(rho ln(1/delta)), mu = 1/z",
    source="Bun, Steinke 2016, Propositions 1.3 and 1.6",
    example="privproj epsilon gaussian --bound zcdp --noise-multiplier 1 --delta 1e-5",
    representation=representation,
    counts_clipped=True,
)
