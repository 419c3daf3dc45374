"""The Gaussian mechanism."""

from dataclasses import dataclass

from privproj.mechanisms.base import NoisyMechanism


@dataclass(frozen=True, kw_only=True)
class Gaussian(NoisyMechanism):
    """The Gaussian mechanism: ``V + E``, ``E`` i.i.d. ``N(0, sigma^2)``."""

    name = "gaussian"
