"""Compute upper bounds of the gap of the default bounds: tables of epsilon over its proved lower bound (C28).

For each rank and each epsilon the noise multiplier is calibrated to that epsilon at delta 1e-5. The table contains the
relative gap of epsilon to its lower bound, in percent, rounded up.
"""

import argparse
import math

from privproj import M1, M2, PrivprojError, PublicSketch, sigma
from privproj.accounting.lower_bounds import with_details

DELTA = 1e-5
RANKS = (1, 2, 4, 8, 16, 64, 256)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
RUNS = (("one release", {}), ("2000 releases, rate .01", {"steps": 2000, "sampling_rate": 0.01}))


def gap(mechanism, epsilon, run):
    """Return how far epsilon is above its lower bound in percent, as text; "none" if unknown."""
    try:
        found = with_details(sigma(mechanism, epsilon=epsilon, delta=DELTA, **run)).lower_bound
        least = found and found.value
    except PrivprojError:
        least = None
    return "none" if least is None else excess(epsilon / least)


def excess(ratio):
    """Return ``ratio - 1`` in percent as text, rounded up to two decimals."""
    return "< 0.01" if ratio < 1.0001 else f"{math.ceil(1e4 * (ratio - 1.0)) / 100:.2f}"


def table(name, make, run):
    """Print one table with a row for each rank."""
    print(f"\n{name}\n\n| rank | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " |")
    print("| --- " * (1 + len(EPSILONS)) + "|", flush=True)
    for rank in RANKS:
        found = [gap(make(rank), epsilon, run) for epsilon in EPSILONS]
        print(f"| {rank} | " + " | ".join(found) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanism", choices=("m2", "m1", "sketch-public"), nargs="*", default=["m2"])
    wanted = parser.parse_args().mechanism
    for text, run in RUNS:
        for dim in (768, 2048):
            if "m2" in wanted:
                table(f"M2, dim {dim}, {text}", lambda rank, dim=dim: M2(dim=dim, rank=rank), run)
            if "m1" in wanted:
                table(f"M1, dim {dim}, {text}", lambda rank, dim=dim: M1(dim=dim, rank=rank), run)
        if "sketch-public" in wanted:
            table(f"Public sketch, {text}", lambda rank: PublicSketch(rank=rank), run)


if __name__ == "__main__":
    main()
