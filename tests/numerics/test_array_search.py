"""Many inverses at once: what is returned was evaluated, and nothing closer was known to do."""

import math

import numpy as np
import pytest

from privproj.numerics.array_search import falling_inverses

WIDTH = 1e-12
"""Width of the enclosures below."""


def invert(functions, levels, guess=1.0):
    """The ends for some functions, each enclosed within :data:`WIDTH`, and all places that were looked at."""
    looks = []

    def ends(x, rows):
        values = np.array([functions[i](float(e)) for e, i in zip(x, rows, strict=True)])
        looks.extend(zip(rows.tolist(), x.tolist(), strict=True))
        return values - 0.5 * WIDTH, values + 0.5 * WIDTH

    found = falling_inverses(ends, np.array(levels), np.full(len(levels), guess), 1e-200, 1e18)
    return found, looks


FALLING = [
    (lambda x: -x, -3.0, 3.0),
    (lambda x: -x * x, -1e-4, 1e-2),
    (lambda x: -math.log1p(x), -30.0, math.expm1(30.0)),
    (lambda x: -math.sqrt(x), -1e-9, 1e-18),
    (lambda x: -1.0 if x < 7.0 else -2.0, -1.5, 7.0),
    (lambda x: -math.inf if x > 0.3 else -x, -5.0, 0.3),
]


@pytest.mark.parametrize("guess", [1e-30, 0.5, 1e12])
def test_both_ends_are_evaluated_and_close(guess):
    functions, levels, exact = zip(*FALLING, strict=True)
    (lower, upper), looks = invert(functions, levels, guess)
    for i, place in enumerate(exact):
        assert (i, upper[i]) in looks and functions[i](upper[i]) + 0.5 * WIDTH <= levels[i]
        assert (i, lower[i]) in looks and functions[i](lower[i]) - 0.5 * WIDTH > levels[i]
        near = 1e-7 if i < 2 else 5e-3 if i == 3 else 1e-10
        assert lower[i] <= place * (1 + near) and place * (1 - near) <= upper[i] <= lower[i] * (1 + 3e-2)
        assert upper[i] == pytest.approx(place, rel=max(near, 1e-9))


def test_a_level_that_is_never_met_and_one_that_is_met_at_once():
    (lower, upper), _ = invert([lambda x: max(-x, -2.0), lambda x: -1.0], [-3.0, -0.5])
    assert upper[0] == math.inf and lower[0] <= 1e18
    assert (lower[1], upper[1]) == (0.0, 1e-200)


def test_an_undefined_value_is_no_evidence():
    (lower, upper), _ = invert([lambda x: math.nan if x < 5.0 else -x], [-6.0])
    assert upper[0] >= 6.0 and lower[0] <= 6.0
    (_, upper), _ = invert([lambda x: math.nan], [-6.0])
    assert upper[0] == math.inf
