"""One changed column, secret projection: quantiles of the residual, and a radius of the correlated part.

Once with the second lemma corrected, and once as published (2601.21719, Theorem 4 with Lemma 14 as reconstructed),
which is refuted where the rank exceeds the dimension of the span.
"""

import math
from dataclasses import dataclass

from privproj.curves.epsilon_delta import ComposedRule, EpsilonDeltaRule
from privproj.errors import InvalidParameter
from privproj.mechanisms import M1
from privproj.mechanisms.bound import Bound
from privproj.mechanisms.m1._one_column import ANSWER_SPACING, ColumnBound, has_residual, promises, residual_loss
from privproj.result import Status
from privproj.runs import Run

COLUMN = Bound(
    name="column",
    mechanism=M1,
    summary="the published bound on changed columns, its second lemma corrected",
    formula="eps_R + eps_C: eps_R the largest residual loss within quantiles, eps_C the Gaussian epsilon at |C x| <= "
    "(1/r)(sqrt(d+r-k) + sqrt k + t1)(alpha(sqrt r + t2) + beta(sqrt k + t3))/sigma; c columns: a chain",
    source="arXiv 2601.21719, Theorems 3 and 4, with Lemma 14 corrected by privproj",
    proof="C13",
    example="privproj epsilon m1 --bound column --dim 1000 --rank 64 --span-dim 4 --residual-misalignment 8e-6 "
    "--noise-multiplier 20 --delta 1e-5",
    # eps_R + eps_C (C13): the largest residual loss within quantiles, and the Gaussian epsilon at a bound on |C x|.
    representation=ColumnBound,
    groups=False,
    splits=True,
    status=Status.CONDITIONAL,
    promises_of=promises,
    version=2,
)


@dataclass(frozen=True)
class _PublishedColumnBound:
    """The published rule, with delta divided in equal parts among its events."""

    mechanism: M1

    def over_run(self, run: Run) -> EpsilonDeltaRule | ComposedRule:
        """The rule of the run; its delta is searched for."""
        return EpsilonDeltaRule(self.epsilon, margin=1.0, inverse_spacing=ANSWER_SPACING).over_run(run)

    def epsilon(self, log_delta: float) -> float:
        """Epsilon at this log delta.

        Without a residual it is ``inf`` where the Gaussian term exceeds 1, up to which the textbook rule is proved.
        """
        if self.mechanism.changed_columns > 1:
            raise InvalidParameter("changed_columns", self.mechanism.changed_columns, "1 for column-published")
        k = self.mechanism.span_residual[0]
        dim, rank = self.mechanism.shape
        there = has_residual(self.mechanism)
        # delta = delta_T + delta_W + delta_C + 2 d0 in equal parts; without a residual delta = delta_C + 2 d0.
        part = log_delta - math.log(4.0 if there else 2.0)
        # t = sqrt(2 ln(1/d0)), m = min(k, r).
        t, m = math.sqrt(-2.0 * (part - math.log(2.0))), math.sqrt(min(k, rank))
        # shift = (s/sigma) (sqrt d + sqrt m + t)(sqrt m + t)/r, and sqrt(2 ln(1.25/delta_C)) shift
        # (2601.21719, Theorem 4 and Lemma 14, as reconstructed; refuted for r > k, see C13).
        shift = self.mechanism.mu * (math.sqrt(dim) + m + t) * (m + t) / rank
        gauss = math.sqrt(2.0 * (math.log(1.25) - part)) * shift
        loss = residual_loss(self.mechanism, part, part) if there else 0.0
        return loss + gauss if gauss <= 1.0 or there else math.inf


def status_of(mechanism: M1) -> Status:
    """Refuted, but for ``r <= k``: without a residual the radius is right (C13)."""
    return Status.CONDITIONAL if mechanism.shape[1] <= mechanism.span_residual[0] else Status.REFUTED


COLUMN_PUBLISHED = Bound(
    name="column-published",
    mechanism=M1,
    summary="the published bound on one changed column; false where the rank exceeds the span of the other columns",
    formula="eps_R + sqrt(2 ln(1.25/delta_C)) (1/r)(sqrt d + sqrt(min(k,r)) + t)(sqrt(min(k,r)) + t) s/sigma, "
    "delta = delta_R + delta_C + 2 d0, t = sqrt(2 ln(1/d0))",
    source="arXiv 2601.21719, Theorem 4 and Lemma 14, reconstructed from their proofs",
    example="privproj epsilon m1 --bound column-published --dim 40 --rank 2 --span-dim 4 --residual-misalignment 1e-6 "
    "--noise-multiplier 1e4 --delta 1e-5",
    representation=_PublishedColumnBound,
    groups=False,
    status=Status.REFUTED,
    status_of=status_of,
    promises_of=promises,
    reason="it treats rows that depend on the data as independent. Let the rank grow: M tends to the identity, so M1 "
    "becomes the plain Gaussian mechanism at the full sensitivity, yet the claimed sensitivity tends to 0 (dim 40, "
    "span 2, rank 1000: it claims epsilon 0.459 at delta 3e-6 where delta is at least 0.248). Use column-exact or "
    "column, or known-projection, which asks nothing of the data",
    version=2,
)
