"""Precision of the ball arithmetic, exact decimal numbers in it, and the ladder of precisions."""

from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal

from flint import arb, ctx

from privproj.errors import PrecisionError

EXACT_DECIMALS = Context(prec=100, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""Decimal arithmetic that neither rounds what is written here nor underflows. Soundness."""

GOAL_BITS = 64
"""Bits of relative accuracy that an enclosure must have (C21). Soundness."""

PRECISION_LADDER = (128, 256, 512, 1024)
"""Working precisions tried in turn, in bits; where none is enough the certificate is refused. Contract."""


def enclose_to_goal(value: Callable[[], arb], ladder: tuple[int, ...] = PRECISION_LADDER) -> tuple[arb, int]:
    """Return ``(ball, bits)``: ``value()`` at the first working precision that is enough for :data:`GOAL_BITS` bits.

    ``value`` must return a ball that holds the exact value at every precision; then the ball returned holds it. Raises
    :class:`PrecisionError` where no precision of the ladder is enough.
    """
    for bits in ladder:
        with ctx.workprec(bits):
            ball = value()
        if ball.is_finite() and ball.rel_accuracy_bits() >= GOAL_BITS:
            return ball, bits
    raise PrecisionError(
        f"expected an enclosure right to {GOAL_BITS} bits, got none at up to {ladder[-1]} bits of precision"
    )


def decimal_ends(ball: arb, digits: int = 25) -> tuple[str, str]:
    """Return ``(lower, upper)`` of a ball as decimal numbers of so many digits, rounded outward.

    They are text, because they may lie far outside double precision. Raises :class:`PrecisionError` for a ball that is
    not finite, which holds every number.
    """
    if not ball.is_finite():
        raise PrecisionError("expected a finite enclosure, got one that the working precision cannot bound")
    middle, radius, exponent = (int(part) for part in ball.mid_rad_10exp(digits))
    low, high = (str(Decimal(end).scaleb(exponent, EXACT_DECIMALS)) for end in (middle - radius, middle + radius))
    return low, high


def log_of_upper_end(ball: arb) -> float:
    """Return ``ln`` of (nearly) the upper end as a float, to guide searches only; ``-inf`` if it is not positive."""
    top = ball.upper()
    return float(top.log()) if top > 0 else float("-inf")
