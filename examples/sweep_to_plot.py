"""Evaluate a small grid of queries and plot the results.

The script computes the epsilon of a run with M2 for several ranks and noise multipliers. It plots one curve for each
noise multiplier. For large grids, use `privproj sweep`, which can resume an interrupted computation.

Needs: the extra plot.
Run:   python examples/sweep_to_plot.py [FILE]   (default: sweep.png in a temporary folder)
Prints a table of 3 x 5 epsilons, from about 0.11 to 32, and the name of the plot file.
"""

import sys
import tempfile
from pathlib import Path

from matplotlib.figure import Figure

from privproj import M2, epsilon

RANKS = [1, 4, 16, 64, 256]
NOISE_MULTIPLIERS = [0.15, 0.2, 0.3]
RUN = {"delta": 1e-5, "steps": 2000, "sampling_rate": 0.01}


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "sweep.png"
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    print("noise multiplier: epsilon (rounded) at ranks", ", ".join(map(str, RANKS)))
    for z in NOISE_MULTIPLIERS:
        values = [epsilon(M2(dim=2048, rank=rank, noise_multiplier=z), **RUN).value for rank in RANKS]
        print(f"{z}:", ", ".join(f"{value:.3f}" for value in values))
        axes.plot(RANKS, values, marker="o", label=f"noise multiplier {z}")
    axes.set(xscale="log", yscale="log", xlabel="rank", ylabel=f"epsilon at delta {RUN['delta']:g}")
    axes.legend()
    figure.savefig(path)
    print("plot:", path)


if __name__ == "__main__":
    main()
