"""Define the mechanism of Gaussian mixing in two stages."""

from dataclasses import dataclass

from privproj.assumptions import RequirementText
from privproj.mechanisms.base import Mechanism
from privproj.parameters import number, parameter, real, whole_number

NOISE_SIZE = number(low=0.01, high=1e12)


class _MixingRequirement(RequirementText):
    """Requirements on both stages of Gaussian mixing."""

    CLIPPED_ROWS = (
        "clipped-rows",
        "Every record is one row of the data matrix X. Each row is clipped to the norm B before anything else is "
        "computed from it.",
    )
    NOISE_BY_EIGENVALUE = (
        "noise-by-eigenvalue",
        "The rows of the matrix X are the records, clipped to norm B. In the first stage, the program adds Gaussian "
        "noise of standard deviation --eigen-noise times B^2 to the least eigenvalue of X^T X, and releases the sum l. "
        "In the second stage, the program multiplies X by a random matrix, adds Gaussian noise of variance "
        "max(0, g B^2 - l), and releases the result. The factor g is the value of --gamma.",
    )
    SECRET_STAGES = (
        "secret-stages",
        "The random matrix S and all noise are secret, freshly sampled for each release, and used once. The only "
        "releases are the least eigenvalue of X^T X plus noise, and the product S X plus noise. The rows of the matrix "
        "X are the records.",
    )


@dataclass(frozen=True, kw_only=True)
class Mixing(Mechanism):
    """Gaussian mixing, which releases a noisy eigenvalue and then a secret sketch.

    The rows of ``X`` are records, each clipped to the norm ``B``. The first stage releases the noisy least eigenvalue
    ``l = lambda_min(X^T X) + N(0, (eigen_noise B^2)^2)``. The second stage releases ``S X + sigma N`` with
    ``sigma^2 = max(0, gamma B^2 - l)`` (:meth:`noise_variance`), where ``S`` and ``N`` have ``rank`` rows and
    independent standard normal entries, and ``S`` is secret. There is no assumption on the records.

    Args:
        rank: The number of rows of ``S``, from 1 to 1e9; None only for the rank query.
        gamma: The target for the released eigenvalue plus the variance of the noise, in units of ``B^2``, from 0.01 to
            1e12.
        eigen_noise: The ratio of the standard deviation of the noise on the eigenvalue to its sensitivity ``B^2``, from
            0.01 to 1e12.

    Raises:
        InvalidParameterError: A value is outside its range.

    >>> from privproj import epsilon
    >>> from privproj.contrib.mixing import Mixing
    >>> round(epsilon(Mixing(rank=100, gamma=65.0, eigen_noise=7.0), delta=1e-6).value, 4)
    0.9824
    """

    name = "mixing"
    summary = "Sketch the records; the noise depends on a private estimate of an eigenvalue."
    example = "rank=100 gamma=65 eigen_noise=7"
    finds_rank = True
    can_be_sampled = False
    requirements = tuple(_MixingRequirement)
    default_relation = "add-remove"
    poisson = False
    remedy = "more noise (a larger gamma or eigen_noise)"
    rank: int | None = parameter(whole_number(high=10**9), "Rows of the sketching matrix.", "R")
    gamma: float = parameter(
        NOISE_SIZE,
        "Target of (least eigenvalue of X^T X + noise variance) / B^2. The rows of X are records, clipped to norm B.",
        "G",
        is_needed=True,
    )
    eigen_noise: float = parameter(
        NOISE_SIZE,
        "Standard deviation of the noise on the eigenvalue, divided by B^2.",
        "Z",
        is_needed=True,
    )

    def noise_variance(self, released: float, norm: float) -> float:
        """Return the variance ``sigma^2`` of the noise of the second stage.

        The variance is ``max(0, gamma B^2 - l)``.

        Args:
            released: ``l``, the eigenvalue that the first stage released, in units of the records squared.
            norm: ``B``, the clipping norm of the records, above 0.

        Returns:
            The variance, at least 0, in units of the records squared.

        Raises:
            InvalidParameterError: A value is outside its range.

        >>> from privproj.contrib.mixing import Mixing
        >>> Mixing(rank=100, gamma=65.0, eigen_noise=7.0).noise_variance(20.0, 2.0)
        240.0
        """
        released = real("released", released, "a number from -1e300 to 1e300", -1e300, 1e300)
        norm = real("norm", norm, "a number above 0 and at most 1e100", 0.0, 1e100, open_low=True)
        return max(0.0, self.gamma * norm**2 - released)
