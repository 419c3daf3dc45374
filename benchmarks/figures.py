"""Plot epsilon against the rank: M2 and the vector Wishart mechanism, published bounds and the bounds of privproj.

Usage: python benchmarks/figures.py [DIRECTORY]   (needs matplotlib)
"""

import math
import sys
from pathlib import Path

from privproj_cli.output import draw

import privproj
from privproj import M2, PrivprojError, Wishart

RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
DELTA = 1e-5


def values(mechanisms, bounds, **run):
    """Epsilon by each bound; a gap where there is no finite one."""
    columns = {bound: [] for bound in bounds}
    for mechanism in mechanisms:
        for bound, column in columns.items():
            try:
                column.append(privproj.epsilon(mechanism, delta=DELTA, bound=bound, **run).value)
            except PrivprojError:
                column.append(math.nan)
    return {name: [v if math.isfinite(v) else math.nan for v in column] for name, column in columns.items()}


def save(path, columns, title):
    """One picture, both axes logarithmic."""
    finite = [v for column in columns.values() for v in column if v > 0]
    limits = {"xscale": "log", "ylim": (min(finite) / 1.5, max(finite) * 1.5)}
    draw(str(path), [float(r) for r in RANKS], columns, "rank", f"epsilon at delta {DELTA:g}", title, **limits)
    print(f"{path}:")
    for name, column in columns.items():
        print(f"  {name:<16}", " ".join(f"{value:10.4g}" for value in column))


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    m2 = [M2(dim=2048, rank=r, change_rank=10, noise_multiplier=0.5) for r in RANKS]
    save(folder / "m2.png", values(m2, ["beta-tail", "beta-tail-sharp", "rank-free", "gaussian"]), "M2, one release")
    wishart = [Wishart(dim=1000, rank=r, misalignment=8e-6) for r in RANKS]
    columns = values(wishart, ["quantile", "quantile-sharp", "exact"])
    save(folder / "wishart.png", columns, "vector Wishart, one release")


if __name__ == "__main__":
    main()
