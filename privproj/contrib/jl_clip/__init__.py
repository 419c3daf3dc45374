"""Define DP-SGD-JL, which clips gradients by estimates of their norms."""

from dataclasses import dataclass

from privproj.assumptions import RequirementText
from privproj.mechanisms.base import NoisyMechanism
from privproj.parameters import NOISE, parameter, whole_number

__all__ = ["JLClip"]


class _ProbeRequirement(RequirementText):
    """Requirements on the probes, random vectors that estimate gradient norms."""

    FRESH_PROBES = (
        "fresh-probes",
        "Probes are random vectors that estimate gradient norms. Each release uses new probes that are independent of "
        "the data, earlier releases and all other random numbers.",
    )
    FULL_GRADIENT_NORM = (
        "full-gradient-norm",
        "For clipping, the program estimates the norm of each record's whole gradient, over all parameters whose "
        "gradients are released.",
    )
    SECRET_PROBE_SEED = (
        "secret-probe-seed",
        "Until probes (random vectors that estimate gradient norms) are used, nobody who can influence the data can "
        "guess their seed.",
    )


@dataclass(frozen=True, kw_only=True)
class JLClip(NoisyMechanism):
    """Gaussian noise on gradients that are clipped by estimates of their norms (DP-SGD-JL).

    The gradient ``g`` of a record enters the sum as ``g min(1, C/M)``, where ``C`` is the clipping norm. The estimate
    ``M = sqrt(mean of <g, v_j>^2)`` of the norm of ``g`` uses ``probes`` standard Gaussian vectors ``v_j`` (arXiv
    2102.03013). The noise has the standard deviation ``z C``.

    Args:
        noise_multiplier: ``z``, the ratio of the standard deviation of the noise to the clipping norm ``C``, from 1e-12
            to 1e12; None only for the sigma query.
        probes: The number of Gaussian vectors ``v_j`` of one estimate, from 1 to 1e6.

    Raises:
        InvalidParameterError: A value is outside its range, or ``probes`` is missing.

    >>> from privproj import epsilon
    >>> from privproj.contrib.jl_clip import JLClip
    >>> round(epsilon(JLClip(probes=30, noise_multiplier=1.0), delta=1e-5).value, 3)
    5.585
    """

    name = "jl-clip"
    summary = "Clip gradients by estimated norms, and add Gaussian noise (DP-SGD-JL)."
    example = "probes=30 noise_multiplier=2"
    requirements = tuple(_ProbeRequirement)
    remedy = "more noise or more probes"
    probes: int | None = parameter(
        whole_number(high=10**6), "Number of Gaussian vectors that estimate one norm.", "R", is_needed=True
    )
    noise_multiplier: float | None = parameter(
        NOISE, "z = noise standard deviation / clipping norm.", "Z", is_needed=True, is_found=True
    )
