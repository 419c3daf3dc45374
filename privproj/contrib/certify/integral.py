"""Integrals over the line by the trapezoidal rule, whose error has a closed form (C21)."""

import math
from collections.abc import Callable
from typing import NamedTuple

from flint import arb

from privproj.contrib.certify.balls import GOAL_BITS, log_of_upper_end
from privproj.errors import PrecisionError
from privproj.numerics.root_finding import largest_integer

FIRST_NATS = 16.0
"""Nats of absolute accuracy that are sought first. Speed only."""

MOST_NATS = 1e5
"""Accuracy beyond which no more is sought. Speed only."""

MOST_NODES = 2_000_000
"""Nodes of a rule after which the certificate is refused. Contract."""

FARTHEST_PLACE = 2**22 - 2
"""Nodes that are looked at in search of an end of a rule, more than :data:`MOST_NODES`. Speed only."""

REMEDY = "ask for a larger delta, or a smaller epsilon"
"""What makes an integral easier to enclose. Contract."""

OfOdds = Callable[[arb], arb]
"""A function of the odds ``E = e^s`` at a place ``s`` of the line."""


class Line(NamedTuple):
    """A function ``F(s)`` that is non-negative on the line and analytic around it, as a function of ``E = e^s``.

    Arguments and results are balls that hold the exact values.
    """

    value: OfOdds
    """``F``."""

    left: OfOdds
    """A bound of the sum of ``step F`` over all nodes before one."""

    right: OfOdds
    """A bound of the sum of ``step F`` over all nodes beyond one."""

    strip: Callable[[float], tuple[float, arb]]
    """The half width of a strip that is good for so many nats, and ``M``, which bounds ``int |F|`` on lines in it."""

    highest: arb = arb(1)
    """The height that nats of accuracy are counted from. It is free."""

    def integral(self, addend: arb | int = 0, goal: int = GOAL_BITS) -> arb:
        """Return a ball that holds ``int F``.

        ``goal`` is the relative accuracy that is sought, in bits, beside the ``addend``, to which it will be added.
        """
        nats = FIRST_NATS
        while True:
            total, missed = self.sum_nodes(nats)
            # The value is not known well before enough of it is found, so a step is at most fourfold.
            missing = (goal + 4) * math.log(2.0) + log_of_upper_end(missed) - log_of_upper_end(total + addend)
            if not 0.0 < missing < math.inf or nats > MOST_NATS:
                return total + arb(0, missed.abs_upper())
            nats = min(nats + missing + 1.0, 4.0 * nats)

    def sum_nodes(self, nats: float) -> tuple[arb, arb]:
        """Return the sum of the rule, right to about ``nats``, and how far the integral is from it (C21)."""
        angle, most = self.strip(nats)
        floor = log_of_upper_end(self.highest) - nats
        step = 2.0 * math.pi * angle / (log_of_upper_end(most) - floor)

        def odds_at(place: int) -> arb:
            return (arb(step) * place).exp()

        def is_little_before(place: int) -> bool:
            return log_of_upper_end(self.left(odds_at(place))) < floor

        # Outward from the middle of the line, and from there inward.
        start = -1 - _last_place(0, lambda places: not is_little_before(-places))
        first = _last_place(start, is_little_before)
        last = _last_place(first, lambda place: log_of_upper_end(self.right(odds_at(place))) > floor) + 1
        if last - first > MOST_NODES:
            raise PrecisionError(
                f"expected a proof by at most {MOST_NODES} values, got one that takes {last - first}; {REMEDY}"
            )
        total = sum((self.value(odds_at(place)) for place in range(first, last + 1)), arb(0))
        # |int F - step sum| <= 2 M / (e^(2 pi angle/step) - 1)
        error = 2 * most / (2 * arb.pi() * arb(angle) / arb(step)).expm1()
        return total * arb(step), error + self.left(odds_at(first)) + self.right(odds_at(last))


def _last_place(place: int, holds: Callable[[int], bool]) -> int:
    """Return a place, this one or a later one, up to which a condition seems to hold."""
    last = largest_integer(holds, place, place + FARTHEST_PLACE)
    return place if last is None else last
