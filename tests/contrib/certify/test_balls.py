"""Decimal ends are outward."""

from helpers import needs

needs("flint")

from flint import arb, ctx  # noqa: E402

from privproj.contrib.certify import balls  # noqa: E402


def test_decimal_ends_are_outward():
    with ctx.workprec(200):
        ball = arb(2).sqrt() * arb("1e-900")
        low, high = map(arb, balls.decimal_ends(ball))
        assert low < ball < high and high - low < ball * arb(2) ** -80
