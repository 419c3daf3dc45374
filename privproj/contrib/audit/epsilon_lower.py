"""Compute lower bounds on epsilon from the scores of attacks.

An attack scores runs with a canary record and runs without it. A threshold is chosen on one half of the scores, and
errors are counted on the other half. Clopper-Pearson intervals of the two error rates hold jointly with the stated
confidence, and give the lower bound on epsilon.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privproj.errors import InvalidParameterError, PrivprojError
from privproj.numerics.root_finding import find_crossing
from privproj.parameters import privacy_epsilon, probability
from privproj.profiles.privacy_profile import Curve
from privproj.profiles.tradeoff import tradeoff

Array = NDArray[np.floating]


def clopper_pearson_lower(successes: int, trials: int, error: float) -> float:
    """Return the Clopper-Pearson lower bound on a success probability.

    The bound exceeds the probability with probability at most ``error``.
    """
    # The quantile at ``error`` of Beta(k, n - k + 1).
    return float(special.betaincinv(successes, trials - successes + 1, error)) if successes else 0.0


def clopper_pearson_upper(successes: int, trials: int, error: float) -> float:
    """Return the Clopper-Pearson upper bound on a success probability.

    The bound is below the probability with probability at most ``error``.
    """
    # The quantile at 1 - ``error`` of Beta(k + 1, n - k).
    return float(special.betaincinv(successes + 1, trials - successes, 1.0 - error)) if successes < trials else 1.0


@dataclass(frozen=True)
class Counts:
    """The numbers of runs whose attack score is at or above a threshold.

    The threshold must be chosen on other runs.

    Attributes:
        true_positives: The number of runs with the canary at or above the threshold.
        members: The number of runs with the canary.
        false_positives: The number of runs without the canary at or above the threshold.
        others: The number of runs without the canary.
    """

    true_positives: int
    members: int
    false_positives: int
    others: int

    @classmethod
    def above(cls, threshold: float, inside: Array, outside: Array) -> "Counts":
        """Count the attack scores at or above a threshold.

        ``inside`` are the scores of runs with the canary, and ``outside`` the scores of runs without it.
        """
        return cls(int((inside >= threshold).sum()), len(inside), int((outside >= threshold).sum()), len(outside))

    def rates(self, confidence: float) -> tuple[float, float, float, float]:
        """Return joint confidence bounds on the success and error rates of an attack.

        The bounds are a lower bound on the true positive rate, an upper bound on the false positive rate, a lower bound
        on the true negative rate and an upper bound on the false negative rate.
        """
        error = 0.5 * (1.0 - confidence)
        tpr = clopper_pearson_lower(self.true_positives, self.members, error)
        fpr = clopper_pearson_upper(self.false_positives, self.others, error)
        return tpr, fpr, 1.0 - fpr, 1.0 - tpr

    def epsilon(self, delta: float, confidence: float) -> float:
        """Return a lower bound on epsilon at ``delta``, with this confidence."""
        tpr, fpr, tnr, fnr = self.rates(confidence)
        # _L and _U mark lower and upper confidence bounds on the rates:
        # max(0, ln((TPR_L - delta)/FPR_U), ln((TNR_L - delta)/FNR_U)).
        ratios = [(tpr - delta) / fpr if fpr else math.inf, (tnr - delta) / fnr if fnr else math.inf]
        return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0.0)])


def ceiling(members: int, others: int, delta: float, confidence: float) -> float:
    """Return the lower bound on epsilon that an attack without errors would prove.

    The attack classifies ``members`` runs with the canary and ``others`` runs without it.
    """
    return Counts(members, members, 0, others).epsilon(delta, confidence)


def counts_on_second_half(inside: Array, outside: Array, value_of: Callable[[list[Counts]], Sequence[float]]) -> Counts:
    """Choose a threshold on half of an attack's scores, and count errors on the rest.

    Args:
        inside: Scores of runs with the canary.
        outside: Scores of runs without it.
        value_of: A function that maps the counts at all candidate thresholds to one value for each threshold. The
            threshold with the largest value is chosen.

    Raises:
        InvalidParameterError: There are fewer than four scores in ``inside`` or in ``outside``.
    """
    if min(len(inside), len(outside)) < 4:
        raise InvalidParameterError("trials", min(len(inside), len(outside)), "at least 4 in each arm")
    (chosen_in, counted_in), (chosen_out, counted_out) = (np.split(arm, [len(arm) // 2]) for arm in (inside, outside))
    # soundness: candidates for the threshold come from the first halves only. Any number of them gives a valid bound.
    tried = np.quantile(np.concatenate([chosen_in, chosen_out]), np.linspace(0.0, 1.0, 201))
    threshold = tried[int(np.argmax(value_of([Counts.above(at, chosen_in, chosen_out) for at in tried])))]
    return Counts.above(threshold, counted_in, counted_out)


def auc(inside: Array, outside: Array) -> float:
    """Return the area under the ROC curve of an attack (Mann-Whitney statistic).

    The area is the fraction of pairs in which the run with the canary scores higher than the run without it. Ties count
    half.
    """
    ordered = np.sort(outside)
    # P(OUT < IN) + P(OUT = IN)/2.
    below = np.searchsorted(ordered, inside, "left") + np.searchsorted(ordered, inside, "right")
    return float(below.mean() / (2.0 * len(outside)))


def balanced_accuracy(inside: Array, outside: Array) -> float:
    """Return the largest balanced accuracy ``(TPR + TNR)/2`` over all thresholds.

    The value is biased upward, because the threshold is chosen on the scores that are counted.
    """
    cuts = np.unique(np.concatenate([inside, outside]))
    tpr = 1.0 - np.searchsorted(np.sort(inside), cuts, "left") / len(inside)
    tnr = np.searchsorted(np.sort(outside), cuts, "left") / len(outside)
    return float(np.max(0.5 * (tpr + tnr), initial=0.5))


@dataclass(frozen=True, kw_only=True)
class AuditVerdict:
    """The verdict of an audit, which can refute a claim but never confirms it.

    Attributes:
        auc: The area under the ROC curve of the attack, from 0 to 1 (0.5: random guessing).
        epsilon_lower: A lower bound on epsilon at ``delta``, with the stated confidence.
        confidence: The probability that a true claim is not refuted, above 0 and below 1.
        ceiling: The largest epsilon that this number of runs can detect, an upper limit of ``epsilon_lower``.
        trials: The number of runs with and without the canary together.
        claimed_epsilon: The epsilon that was claimed at ``delta``; None without a claim.
        delta: The delta of ``epsilon_lower`` and ``claimed_epsilon``.
        profile_refuted: True if the error rates contradict the claimed profile as a whole.
        contradiction: One point of the profile that the error rates contradict: epsilon, the claimed delta, and a
            larger lower bound on delta; None if no such point was found.

    >>> from privproj.contrib.audit import AuditVerdict
    >>> verdict = AuditVerdict(
    ...     auc=0.9, epsilon_lower=1.5, confidence=0.999, ceiling=4.0, trials=2000, claimed_epsilon=1.0, delta=1e-5
    ... )
    >>> verdict.verdict
    'refuted'
    """

    auc: float
    epsilon_lower: float
    confidence: float
    ceiling: float
    trials: int
    claimed_epsilon: float | None = None
    delta: float | None = None
    profile_refuted: bool = False
    contradiction: tuple[float, float, float] | None = None

    @property
    def refuted(self) -> bool:
        """True if the claim is refuted, at the stated confidence."""
        claim = self.claimed_epsilon
        return self.profile_refuted or (claim is not None and self.epsilon_lower > claim)

    @property
    def verdict(self) -> str:
        """The verdict as text: "refuted" or "not refuted".

        An audit never states that a mechanism is private.
        """
        return "refuted" if self.refuted else "not refuted"


def assess_claim(
    inside: Sequence[float] | Array,
    outside: Sequence[float] | Array,
    *,
    delta: float,
    confidence: float = 0.999,
    claim: float | None = None,
    curve: Curve | None = None,
) -> AuditVerdict:
    """Return the verdict on a claimed epsilon from the scores of an attack.

    Args:
        inside: Scores of runs with the canary, at least four.
        outside: Scores of runs without it, at least four.
        delta: The delta of the claim, above 0 and below 1.
        confidence: The probability that a true claim is not refuted, above 0 and below 1.
        claim: The claimed epsilon at ``delta``, at least 0; None for no claim.
        curve: The claimed privacy profile, which is tested too; None for no profile. With a profile, each of the two
            tests gets half of the error probability, so that both hold jointly.

    Raises:
        InvalidParameterError: A number is out of range, or there are fewer than four scores with or without the canary.
    """
    level, target = probability("confidence", confidence), probability("delta", delta)
    a, b = np.asarray(inside, float), np.asarray(outside, float)
    # Two tests share the error: 1 - c = (1 - c)/2 + (1 - c)/2.
    level_of_test = level if curve is None else 1.0 - 0.5 * (1.0 - level)
    counts = counts_on_second_half(a, b, lambda tried: [counts.epsilon(target, level_of_test) for counts in tried])
    margin, point = (0.0, None) if curve is None else _breach_of_profile(a, b, curve, level_of_test)
    return AuditVerdict(
        auc=auc(a, b),
        epsilon_lower=counts.epsilon(target, level_of_test),
        confidence=level,
        ceiling=ceiling(counts.members, counts.others, target, level_of_test),
        trials=len(a) + len(b),
        claimed_epsilon=None if claim is None else privacy_epsilon(claim, zero=True),
        delta=target,
        profile_refuted=margin > 0.0,
        contradiction=point,
    )


def _breach_of_profile(
    inside: Array, outside: Array, curve: Curve, confidence: float
) -> tuple[float, tuple[float, float, float] | None]:
    """Test whether the scores of an attack contradict a claimed privacy profile.

    Returns:
        A margin, which is above 0 if the scores contradict the profile, and the point of the profile that is
        contradicted most. The point has an epsilon, the claimed delta and the proved lower bound on delta. It is None
        if no point was found.
    """

    def margins(tried: list[Counts]) -> list[float]:
        # f(FPR_U) - FNR_U, with f the trade-off function of the profile.
        rates = [counts.rates(confidence) for counts in tried]
        bounds = tradeoff(curve, [fpr for _, fpr, _, _ in rates])
        return [bound - fnr for bound, (_, _, _, fnr) in zip(bounds, rates, strict=True)]

    counts = counts_on_second_half(inside, outside, margins)
    margin, points = margins([counts])[0], list[tuple[float, float, float]]()
    if margin > 0.0:
        _, fpr, _, fnr = counts.rates(confidence)
        for epsilon in map(float, np.linspace(0.0, 10.0, 201)):
            with suppress(PrivprojError):
                # delta(eps) >= 1 - FNR - e^eps FPR, in both directions
                least = 1.0 - min(fnr + math.exp(epsilon) * fpr, fpr + math.exp(epsilon) * fnr)
                points.append((epsilon, math.exp(curve.log_delta(epsilon).upper), least))
    point = max(points, key=lambda one: one[2] - one[1], default=None)
    return margin, point if point is not None and point[2] > point[1] else None


# --- one run ----------------------------------------------------------------------------------------


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the p-value of guesses about the canaries of one run.

    The null hypothesis is that the run is ``(epsilon, delta)``-DP (Steinke, Nasr, Jagielski 2023).

    Args:
        canaries: The number of canaries, each of which is in the run with probability 1/2.
        guesses: The number of guesses whether a canary is in the run.
        correct: The number of right guesses.
        epsilon: The epsilon of the null hypothesis.
        delta: The delta of the null hypothesis.
    """
    # m canaries, g guesses and v right guesses
    # W ~ Binomial(g, e^eps/(1 + e^eps)).
    rate = 1.0 / (1.0 + math.exp(-epsilon))
    # P(W >= v) for v = 0, ..., correct.
    tail = special.bdtrc(np.arange(correct + 1) - 1, guesses, rate)
    reached = float(tail[correct])
    if not correct or not delta:
        return reached
    # P(v - i <= W < v)/i for i = v, ..., 1.
    shares = (tail[:correct] - reached) / np.arange(correct, 0, -1)
    # P(W >= v) + 2 m delta max_{1 <= i <= v} P(v - i <= W < v)/i.
    return min(1.0, reached + 2.0 * canaries * delta * float(shares.max()))


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon at ``delta`` that the guesses of one run refute.

    The probability that a true epsilon is refuted is at most ``1 - confidence``. The result is 0 if no epsilon is
    refuted, and at most 50.
    """

    def excess(epsilon: float) -> float:
        return 1.0 - confidence - one_run_p_value(canaries, guesses, correct, epsilon, delta)

    # soundness: the search ends at epsilon 50, and every smaller epsilon is a valid lower bound too.
    return find_crossing(excess, 1.0, low=1e-9, high=50.0).lower
