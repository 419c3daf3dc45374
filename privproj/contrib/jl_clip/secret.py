"""Compute the exact profile of random clipping with secret probes.

Claim C32 (random clipping by Gaussian probes) of docs/proofs.md proves the formulas. Each record has its own ``r``
probes, which are not released. Let ``mu`` be one over the noise multiplier, ``Phi`` the standard normal distribution
function, and ``S = mu sqrt(r / chi2_r)`` the random shift by the record. In the direction of the record's gradient, and
in standard deviations of the noise, the release is ``x = S + N(0, 1)``. Without the record it is ``N(0, 1)``. The
likelihood ratio ``w(x) = E e^(S x - S^2/2)`` increases with ``x``. With ``w(x) = e^eps`` the profile is

    delta(eps) = E Phi(S - x) - e^eps Phi(-x).

For ``eps >= 0`` the profile in the other direction is at most this one.

The expectation ``E`` is computed by a Gauss rule over ``u = ln(chi2_r / 2)``. Its relative error is at most
:data:`MEAN_RELATIVE_ERROR`, which is measured and not proved.
"""

import math
from functools import cached_property
from typing import TYPE_CHECKING

from privproj.assumptions import RequirementText
from privproj.contrib.jl_clip import JLClip
from privproj.contrib.jl_clip.exact import InverseGamma, distribution
from privproj.distributions.mixture_profile import rank_one_profile
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import OF_ONE_RECORD, Bound
from privproj.numerics.interval import Enclosure
from privproj.numerics.quadrature import gauss_nodes
from privproj.profiles.gaussian import SMALLEST_UPPER_DELTA
from privproj.profiles.privacy_profile import PrivacyProfile

if TYPE_CHECKING:
    from privproj.numerics.arrays import Array

MEAN_RELATIVE_ERROR = 1e-11  # soundness: relative error of a mean of the Gauss rule (measured: below 1e-12)
NODES = 12  # Gauss nodes of a panel
LARGEST_SHIFT = 60.0  # shift S in standard deviations of the noise from which only its probability is used
LARGEST_THRESHOLD = LARGEST_SHIFT - 12.0  # soundness: x from which the profile is that of public probes
LEAST_LOG_TAIL = -750.0  # nats, probability of chi2_r that is left out at either end, below the least double
ROWS_AT_ONCE = 64  # epsilons that are evaluated together, so that their data fit in memory
RESOLUTION = 40.0  # evaluations per standard deviation of the loss


class SecretShift:
    """The privacy profile of a release with secret probes, from its random shift.

    One record shifts the release by the square root of the random variable ``squared``, in standard deviations of the
    noise.
    """

    def __init__(self, squared: InverseGamma) -> None:
        self.squared = squared

    @cached_property
    def nodes(self) -> "tuple[Array, Array, float]":
        """The Gauss nodes of the shift, their log weights, and the log of the mass beyond.

        The mass beyond is the probability of a shift above all nodes.
        """
        import numpy as np
        from scipy import special

        a, scale = self.squared.a, self.squared.scale
        # P(U < e^u) is at most e^(a u) / Gamma(a + 1), and P(U > e^u) about the density there
        first = max((LEAST_LOG_TAIL + math.lgamma(a + 1.0)) / a, math.log(scale / LARGEST_SHIFT**2))
        edges = [first]
        while edges[-1] < math.log(a) or a * edges[-1] - math.exp(edges[-1]) - math.lgamma(a) > LEAST_LOG_TAIL:
            # a half of the width of the density, and at most half a standard deviation of the noise
            shift = math.sqrt(scale) * math.exp(-0.5 * edges[-1])
            edges.append(edges[-1] + min(0.25, 0.5 / math.sqrt(a), 1.0 / shift))
        at, share = gauss_nodes(NODES)
        widths = np.diff(edges)[:, None]
        u = np.array(edges[:-1])[:, None] + widths * at
        log_weights = a * u - np.exp(u) - special.gammaln(a) + np.log(widths * share)
        beyond = self.squared.log_tail(scale * math.exp(-first))
        return math.sqrt(scale) * np.exp(-0.5 * u.ravel()), log_weights.ravel(), beyond

    def thresholds(self, eps: "Array") -> "Array":
        """Return, for each epsilon, the output of the release with this privacy loss.

        An output is nan if it exceeds :data:`LARGEST_THRESHOLD` or if the search does not converge.
        """
        import numpy as np

        shifts, weights, _ = self.nodes
        rest = weights - 0.5 * shifts**2
        # ln w is convex and at least every one of its terms: Newton's method from the right of its root
        x = np.min((eps[:, None] - rest) / shifts, axis=1)
        gap = np.full(len(eps), math.inf)
        for _ in range(100):
            logs = rest + shifts * x[:, None]
            top = np.max(logs, axis=1, keepdims=True)
            terms = np.exp(logs - top)
            total = terms.sum(axis=1)
            gap = top[:, 0] + np.log(total) - eps
            x = x - gap * total / (terms @ shifts)
            if np.all(np.abs(gap) <= 1e-9):
                break
        return np.where((np.abs(gap) <= 1e-9) & (x <= LARGEST_THRESHOLD), x, math.nan)

    def log_deltas(self, eps: "Array") -> "tuple[Array, Array]":
        """Return lower and upper bounds of ``ln delta`` for secret probes.

        Each of ``eps`` must be at least 0. Unknown bounds are ``-inf`` and 0.
        """
        import numpy as np

        ends = [self._log_deltas(eps[i : i + ROWS_AT_ONCE]) for i in range(0, len(eps), ROWS_AT_ONCE)]
        lower, upper = (np.concatenate(end) for end in zip(*ends, strict=True))
        return lower, upper

    def _log_deltas(self, eps: "Array") -> "tuple[Array, Array]":
        """Return the bounds of :meth:`log_deltas` for a few epsilons at once."""
        import numpy as np
        from scipy import special

        shifts, weights, beyond = self.nodes
        x = self.thresholds(eps)
        logs = weights + special.log_ndtr(shifts - x[:, None])
        with_record = np.logaddexp(special.logsumexp(logs, axis=1), beyond)
        # an error of x changes delta to second order only
        # E Phi(S - x) - e^eps Phi(-x), over its first term
        ratio, error = np.exp(eps + special.log_ndtr(-x) - with_record), MEAN_RELATIVE_ERROR
        with np.errstate(divide="ignore"):
            lower = with_record + np.log(np.maximum((1.0 - error) - (1.0 + error) * ratio, 0.0))
            upper = with_record + np.log(np.maximum((1.0 + error) - (1.0 - error) * ratio, 0.0))
        return np.where(np.isnan(x), -math.inf, lower), np.where(np.isnan(x), 0.0, np.minimum(upper, 0.0))


def secret_profile(mechanism: JLClip) -> PrivacyProfile:
    """Return the privacy profile of one DP-SGD-JL release with secret probes."""
    squared = distribution(mechanism)
    secret, public = SecretShift(squared), rank_one_profile(squared)

    def log_delta(eps: float) -> Enclosure:
        import numpy as np

        lower, upper = (float(end[0]) for end in secret.log_deltas(np.array([eps])))
        # The profile is at most the profile for probes that are not secret.
        upper = min(upper, public.log_delta(eps).upper)
        return Enclosure(min(lower, upper), upper)

    def table(eps: "Array") -> "tuple[Array, Array]":
        import numpy as np

        assert public.table is not None
        upper = np.maximum(np.exp(secret.log_deltas(eps)[1]), SMALLEST_UPPER_DELTA)
        # A composition takes the larger order for both, so its lower end would bound nothing.
        return np.zeros(len(eps)), np.minimum(upper, public.table(eps)[1])

    return PrivacyProfile(log_delta, table=table, resolution=RESOLUTION)


class _SecretProbesRequirement(RequirementText):
    """The requirement that probes, which estimate gradient norms, are secret."""

    SECRET_PROBES_PER_RECORD = (
        "secret-probes-per-record",
        "Probes are random vectors that estimate gradient norms. In each release, each record has its own new probes, "
        "independent of all other probes. Nobody learns the probes or the estimated norms.",
    )


class _BoundOfSecretProbes(Bound):
    def requirements(self, mechanism: type[Mechanism]) -> tuple[str, ...]:
        """Return the requirements on the program, including secret probes."""
        return *super().requirements(mechanism), _SecretProbesRequirement.SECRET_PROBES_PER_RECORD


SECRET_PROBES = _BoundOfSecretProbes(
    name="secret-probes",
    mechanism=JLClip,
    summary="exact for one record per user, if each record has its own secret probes",
    formula="delta(eps) = E[Phi(S - x)] - e^eps Phi(-x), S = mu sqrt(r / chi2_r), E[e^(S x - S^2/2)] = e^eps",
    source="privproj: a mixture of normal distributions against one, for the algorithm of arXiv 2102.03013",
    proof="C32",
    # delta(eps) = E[Phi(S - x)] - e^eps Phi(-x) (C32).
    representation=secret_profile,
    exact=True,
    **OF_ONE_RECORD,
)
