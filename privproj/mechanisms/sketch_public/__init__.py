"""A Gaussian sketch that is public, with noise, and its bounds, one theorem per file."""

from dataclasses import dataclass

from privproj.mechanisms.base import Lift, NoisyMechanism
from privproj.parameters import flag, parameter, whole_number


@dataclass(frozen=True, kw_only=True)
class PublicSketch(NoisyMechanism):
    """A public Gaussian sketch with noise: release ``Q A^T + N`` together with ``A``, which is fresh for each release.

    ``A`` has ``rank`` rows and independent entries ``N(0, 1/rank)``.

    Args:
        noise_multiplier: ``z``, the standard deviation of ``N`` over the sensitivity ``max |Q - Q'|_F``, from 1e-12 to
            1e12; left out (None) only for the sigma query.
        rank: The number of rows of ``A``, from 1 to 1e6; left out only for the rank query.
        dim: The number of columns of ``A``, at least 1; it plays no role.
        fixed_projection: True if one ``A`` serves all releases.

    Raises:
        InvalidParameter: A value is outside its range.

    >>> from privproj import PublicSketch, epsilon
    >>> round(epsilon(PublicSketch(rank=16, noise_multiplier=1.0), delta=1e-5).value, 4)
    5.5039
    """

    name = "sketch-public"
    summary = "Gaussian sketch known to all, noise after."
    example = "rank=16 noise_multiplier=5"
    finds_rank = True
    assumes = (
        "the sketching matrix is drawn afresh for each release, independently of the data and of all that shaped the "
        "query",
        "the norm is clipped before sketching",
        "the seed of the sketch cannot be guessed by anyone who can shape the data",
    )
    with_rank = "falls"
    rank: int | None = parameter(whole_number(high=10**6), "Rows of the sketching matrix.", "R")
    dim: int | None = parameter(whole_number(high=10**12), "Columns of the sketching matrix; plays no role.", "D")
    fixed_projection: bool = flag("One sketching matrix for all steps.")

    def lift(self) -> Lift | None:
        """Return the effective noise and the projection factor of ``Y A``, whose mean is ``Q``; None without ``dim``.

        As in C38: ``E A^T A = I`` and ``E|N A|^2 = E|N|^2 d/r``, the energy of ``n d`` numbers.
        """
        if self.dim is None:
            return None
        return Lift(1.0, 1.0 + (self.dim + 1) / self.needed_rank)
