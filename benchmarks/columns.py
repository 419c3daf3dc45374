"""Compare array queries with enclosures by ball arithmetic, and measure times: ``python benchmarks/columns.py 1000``.

Random releases with a public projection are evaluated by one array query, and each again in ball arithmetic.
"""

import math
import random
import sys
import time

import flint
import numpy as np

from privproj.contrib.certify.profiles import BallAnyRank, BallRandomSensitivity
from privproj.distributions.beta_gamma_kernels import BETA_GAMMA_KERNELS
from privproj.numerics.jit import over_rows


def main():
    points = int(float(sys.argv[1])) if len(sys.argv) > 1 else 1000
    draw, releases = random.Random(1), []
    while len(releases) < points:
        dim = int(10 ** draw.uniform(0.6, 5))
        rank = int(min(dim - 1, 10 ** draw.uniform(0, math.log10(dim))))
        gamma, any_rank = draw.random() < 0.3, draw.random() < 0.5
        z = 10 ** draw.uniform(-1, 1) * (1.0 if gamma else math.sqrt(rank / dim))
        eps = 10 ** draw.uniform(-2, 1)
        distribution = (rank / 2, math.inf, 2 / z**2 / rank) if gamma else (rank / 2, (dim - rank) / 2, z**-2)
        releases.append(((*distribution, float(any_rank)), rank if gamma else (dim, rank), z, eps))
    rows, eps = np.array([r[0] for r in releases]), np.array([r[3] for r in releases])
    many = -(-3000 // points)
    start = time.process_time()
    ends = over_rows(BETA_GAMMA_KERNELS.log_delta, np.tile(eps, many), np.tile(rows, (many, 1)))
    print(f"first call {time.process_time() - start:.2f} s")
    start = time.process_time()
    ends = over_rows(BETA_GAMMA_KERNELS.log_delta, np.tile(eps, many), np.tile(rows, (many, 1)))
    print(f"{(time.process_time() - start) / many / points * 1e6:.1f} us a row")
    outside, rejected = [], 0
    for i, (row, shape, z, at) in enumerate(releases):
        profile = (BallAnyRank if row[3] else BallRandomSensitivity)(shape, z)
        try:
            ball = profile.delta(flint.arb(at), profile.witness(at)).log()
        except Exception:
            rejected += 1
            continue
        if not (float(ball.lower()) <= ends[1][i] and ends[0][i] <= float(ball.upper())):
            outside.append((row, z, at, ends[0][i], ends[1][i], ball))
    print(f"{points} points, {rejected} rejected by ball arithmetic, {len(outside)} outside", *outside[:5], sep="\n")


if __name__ == "__main__":
    main()
