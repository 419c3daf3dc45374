"""The Laplace mechanism."""

from dataclasses import dataclass

from privproj.mechanisms.base import NoisyMechanism


@dataclass(frozen=True, kw_only=True)
class Laplace(NoisyMechanism):
    """The Laplace mechanism: noise of scale ``z`` times the sensitivity in the 1-norm (``noise_multiplier = z``)."""

    name = "laplace"
