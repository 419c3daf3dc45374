"""Print the table ``MILLS`` of ``privproj/numerics/special.py``, computed by mpmath at 60 digits."""

import mpmath as mp

PIECES = 32  # pieces of (0, 1] in ``y = 4/(4 + x)``

DEGREE = 7  # degree of the polynomial of a piece


def ratio(x):
    """Return the Mills ratio ``(1 - Phi(x)) / phi(x)``."""
    if x > 1000:
        return sum((-1) ** k * mp.fac2(2 * k - 1) / x ** (2 * k + 1) for k in range(14))
    return mp.sqrt(mp.pi / 2) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2))


def coefficients(f, k):
    """Return the coefficients of the polynomial that interpolates ``f`` on piece ``k``.

    The points are Chebyshev points of the piece.
    """
    points = [mp.cos(mp.pi * (i + mp.mpf(1) / 2) / (DEGREE + 1)) / 2 for i in range(DEGREE + 1)]
    rows = mp.matrix([[t**j for j in range(DEGREE + 1)] for t in points])
    return list(mp.lu_solve(rows, mp.matrix([f((k + mp.mpf(1) / 2 + t) / PIECES) for t in points])))


def written(name, rows, text):
    """Return the Python source of a constant with its docstring ``text``."""
    lines = []
    for row in rows:
        numbers = [repr(float(value)) for value in row]
        parts = [", ".join(numbers[i : i + 4]) for i in range(0, len(numbers), 4)]
        lines.append("    (" + ",\n     ".join(parts) + "),")
    return "\n".join([f"{name} = (", *lines, ")  # fmt: skip", f'"""{text}"""', ""])


def main():
    mp.mp.dps = 60
    pieces = range(PIECES * 8 // 7 + 1)
    mills = [coefficients(lambda y: ratio(4 / y - 4) / y, k) for k in pieces]
    print(written("MILLS", mills, "Coefficients of ``R/y``, accurate to 2e-16 (a proof depends on them)."), end="")


if __name__ == "__main__":
    main()
