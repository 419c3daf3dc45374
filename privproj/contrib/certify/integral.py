"""Enclose integrals over the real line by the trapezoidal rule (C21: certificates)."""

import math
from collections.abc import Callable
from typing import NamedTuple

from flint import arb

from privproj.contrib.certify.balls import GOAL_BITS, log_of_upper_end
from privproj.errors import PrecisionError
from privproj.numerics.root_finding import largest_integer

FIRST_NATS = 16.0  # nats of absolute accuracy of the first attempt

MOST_NATS = 1e5  # largest accuracy, in nats

MOST_NODES = 2_000_000  # nodes of a rule before PrecisionError

FARTHEST_PLACE = 2**22 - 2  # nodes that are searched for an end of a rule, more than MOST_NODES

REMEDY = "Use a larger delta or a smaller epsilon."  # how to make an integral easier to enclose

OfOdds = Callable[[arb], arb]  # a function of the odds ``E = e^s`` at a point ``s`` of the line


class Line(NamedTuple):
    """An integrand ``F(s)`` over the real line, as a function of the odds ``E = e^s``.

    The integrand must be non-negative on the line and analytic in a strip around it.
    """

    value: OfOdds  # F

    left: OfOdds  # a bound of the sum of ``step F`` over all nodes before a node

    right: OfOdds  # a bound of the sum of ``step F`` over all nodes after a node

    # the half width of a strip for an accuracy in nats, and M, which bounds ``int |F|`` on lines in the strip
    strip: Callable[[float], tuple[float, arb]]

    highest: arb = arb(1)  # the height relative to which nats of accuracy are counted; every value is sound

    def integral(self, addend: arb | int = 0, goal: int = GOAL_BITS) -> arb:
        """Return a ball that contains the integral of the integrand over the real line.

        The caller adds ``addend`` to the integral. ``goal`` is the desired relative accuracy of this sum, in bits,
        which is not guaranteed.
        """
        nats = FIRST_NATS
        while True:
            total, error = self.sum_nodes(nats)
            # The value is not known precisely before most of it is summed, so the accuracy grows at most fourfold at a
            # time.
            missing = (goal + 4) * math.log(2.0) + log_of_upper_end(error) - log_of_upper_end(total + addend)
            if not 0.0 < missing < math.inf or nats > MOST_NATS:
                return total + arb(0, error.abs_upper())
            nats = min(nats + missing + 1.0, 4.0 * nats)

    def sum_nodes(self, nats: float) -> tuple[arb, arb]:
        """Return the trapezoidal sum of the integrand, and a bound of its error (C21).

        The error is about ``e^-nats`` times the attribute ``highest``.
        """
        angle, most = self.strip(nats)
        floor = log_of_upper_end(self.highest) - nats
        step = 2.0 * math.pi * angle / (log_of_upper_end(most) - floor)

        def odds_at(place: int) -> arb:
            return (arb(step) * place).exp()

        def is_little_before(place: int) -> bool:
            return log_of_upper_end(self.left(odds_at(place))) < floor

        # Search outward from the middle of the line, and from there inward.
        start = -1 - _last_place(0, lambda places: not is_little_before(-places))
        first = _last_place(start, is_little_before)
        last = _last_place(first, lambda place: log_of_upper_end(self.right(odds_at(place))) > floor) + 1
        if last - first > MOST_NODES:
            raise PrecisionError(f"the certificate needs {last - first} values, more than {MOST_NODES}. {REMEDY}")
        total = sum((self.value(odds_at(place)) for place in range(first, last + 1)), arb(0))
        # |int F - step sum| <= 2 M / (e^(2 pi angle/step) - 1)
        error = 2 * most / (2 * arb.pi() * arb(angle) / arb(step)).expm1()
        return total * arb(step), error + self.left(odds_at(first)) + self.right(odds_at(last))


def _last_place(place: int, holds: Callable[[int], bool]) -> int:
    """Return the last index from ``place`` on at which a condition ``holds``.

    The condition must hold up to some index and fail beyond. If it fails at ``place``, the result is ``place``.
    """
    last = largest_integer(holds, place, place + FARTHEST_PLACE)
    return place if last is None else last
