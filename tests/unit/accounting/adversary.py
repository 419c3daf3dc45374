"""Adversaries that choose the next release by looking at the losses so far, and what the best of them gains.

The state of a game is how often each move was made. ``value`` works backwards from its end: ``H_x`` of what is left is
the largest, over the moves that are admitted, of the mean of ``H_{x - loss}`` after the move; to stop is a move too.
"""

import math
from functools import cache

import numpy as np
from scipy.stats import norm

EPSILONS = np.linspace(-12.0, 12.0, 801)
"""Grid of log thresholds; values between are interpolated, from above where the profile is convex in epsilon."""


def losses(mu, rate, order):
    """The loss of one Gaussian release of shift ``mu`` on a Poisson sampled batch, with its law under the first arm."""
    y = np.linspace(-9.0, 9.0 + mu, 601)
    without, shifted = norm.pdf(y) * (y[1] - y[0]), norm.pdf(y - mu) * (y[1] - y[0])
    without_log = math.log1p(-rate) if rate < 1.0 else -math.inf
    loss = np.logaddexp(without_log, math.log(rate) + mu * y - 0.5 * mu * mu)
    return (loss, (1.0 - rate) * without + rate * shifted) if order == "remove" else (-loss, without)


def after(values, move, order):
    """``H`` before a move, of ``H`` after it."""
    loss, weight = losses(*move, order)
    return np.interp(EPSILONS[:, None] - loss, EPSILONS, values, left=1.0, right=0.0) @ weight


def stopped():
    """``H`` where nothing more is released."""
    return np.maximum(0.0, -np.expm1(EPSILONS))


def value(moves, admits, order):
    """Return ``H`` of the game for the best adversary on the grid; ``admits`` returns the allowed states."""

    @cache
    def best(state):
        found = stopped()
        for i, move in enumerate(moves):
            reached = tuple(n + (i == j) for j, n in enumerate(state))
            if admits(reached):
                found = np.maximum(found, after(best(reached), move, order))
        return found

    return best((0,) * len(moves))


def composed(moves, order):
    """``H`` of a plan: these moves, whatever happens."""
    values = stopped()
    for move in moves:
        values = after(values, move, order)
    return values


def at(values, epsilon):
    """The delta at an epsilon."""
    return float(np.interp(epsilon, EPSILONS, values))
