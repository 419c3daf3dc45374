"""Set the precision of ball arithmetic, and convert balls to decimal numbers."""

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

from flint import arb, ctx

from privproj.errors import PrecisionError

# soundness: a decimal context that neither rounds the written numbers nor underflows
EXACT_DECIMALS = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX)

GOAL_BITS = 64  # soundness: bits of relative accuracy that an enclosure must have (C21)

PRECISION_LADDER = (128, 256, 512, 1024)  # bits of working precision, tried in turn before PrecisionError


def enclose_to_goal(value: Callable[[], arb], ladder: tuple[int, ...] = PRECISION_LADDER) -> tuple[arb, int]:
    """Return a ball of relative accuracy :data:`GOAL_BITS`, and the working precision.

    ``ladder`` has the working precisions in bits that are tried in turn. At each of them, ``value`` must return a ball
    that contains the exact value.

    Raises:
        PrecisionError: No precision of the ladder suffices.
    """
    for bits in ladder:
        with ctx.workprec(bits):
            ball = value()
        if ball.is_finite() and ball.rel_accuracy_bits() >= GOAL_BITS:
            return ball, bits
    raise PrecisionError(f"no enclosure is accurate to {GOAL_BITS} bits at up to {ladder[-1]} bits of precision")


def decimal_ends(ball: arb, digits: int = 25) -> tuple[str, str]:
    """Return the lower and the upper end of a ball as decimal text, rounded outward.

    Raises:
        PrecisionError: The ball is not finite.
    """
    if not ball.is_finite():
        raise PrecisionError("the enclosure is not finite at the working precision")
    middle, radius, exponent = (int(part) for part in ball.mid_rad_10exp(digits))
    # The numbers may lie far outside the range of doubles.
    low, high = (str(Decimal(end).scaleb(exponent, EXACT_DECIMALS)) for end in (middle - radius, middle + radius))
    return low, high


def log_of_upper_end(ball: arb) -> float:
    """Return the approximate log of the upper end of a ball; ``-inf`` if not positive.

    The result is not rounded upward, and only guides searches.
    """
    top = ball.upper()
    return float(top.log()) if top > 0 else float("-inf")
