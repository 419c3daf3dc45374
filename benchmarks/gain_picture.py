"""Plot the figure of the README: epsilon of a training run against the rank, with the same noise on the update.

The noise of M2 is compared with the noise of DP-SGD after an unbiased lift of the release: ``U = (d/r) Y Q^T`` for a
frame ``Q`` with orthonormal columns has noise of energy ``(d/r)^2 n r (z C)^2 = n d (z sqrt(d/r) C)^2``. So the
multiplier at rank ``r`` is ``z = z_0 sqrt(r/d)``, where ``z_0`` is that of DP-SGD. Each projection adds a projection
error, which averages out over many more than ``d/r`` steps and is not plotted.

Usage: python benchmarks/gain_picture.py [PICTURE]   (default: docs/gain.svg; needs matplotlib)

Prints the table of the plotted values. The same version of matplotlib writes identical bytes.
"""

import io
import sys
from math import sqrt
from pathlib import Path

from privproj_cli.render import round_outward

import privproj
from privproj import M2, Gaussian

RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]  # ranks at which the curves are evaluated

SHOWN_RANK = 16  # rank at which the three points are labeled

DIM = 2048  # dimension that is projected

# noise multiplier of DP-SGD: that of examples/bounds.toml, lifted from rank 16
NOISE_MULTIPLIER = 0.155974 * sqrt(DIM / SHOWN_RANK)

RUN = {"delta": 1e-5, "steps": 2000, "sampling_rate": 0.01}  # run, and the delta of its epsilon

# The curves of M2, with their bounds. The published accounting is the one that the command line prints for comparison.
# Both are for a difference of any rank; the published one splits delta evenly between its two events.
CURVES = {"M2 as published": "good-event", "M2 by privproj": "rank-free"}

PLAIN = "DP-SGD"  # curve without a projection

# Color of text and axes. Like the colors below it has a contrast above 3 on white and on GitHub's dark #0d1117.
TEXT = "#7d858e"

# color of each curve and of its name
COLOURS = {PLAIN: "#8a7fa8", "M2 as published": "#c8701e", "M2 by privproj": "#2f81e0"}

# label to the right of a point and below it; offsets in points
RIGHT_BELOW = {"xytext": (12, -12), "ha": "left", "va": "top"}

RIGHT_FAR_BELOW = {**RIGHT_BELOW, "xytext": (12, -44)}  # label under one that is to the right of a point and below it

RIGHT_ABOVE = {"xytext": (12, 14), "ha": "left", "va": "baseline"}  # label to the right of a point and above it

# position of the name of a curve relative to its point, without overlap with curves and grid lines
LABELS = {PLAIN: RIGHT_FAR_BELOW, "M2 as published": RIGHT_ABOVE, "M2 by privproj": RIGHT_BELOW}

# text as paths, reproducible element names, and a font size that is legible on a phone
STYLE = {
    "svg.fonttype": "path",
    "svg.hashsalt": "privproj",
    "font.family": "DejaVu Sans",
    "font.size": 21,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


def table():
    """Return the epsilons at all ranks for each curve of the plot."""

    def epsilon(rank, bound):
        # z = z_0 sqrt(r/d)
        noise = NOISE_MULTIPLIER * sqrt(rank / DIM)
        release = M2(dim=DIM, rank=rank, change_rank=DIM, noise_multiplier=noise)
        split = {"split": "even"} if bound == "good-event" else {}
        return privproj.epsilon(release, bound=bound, **RUN, **split).value

    plain = privproj.epsilon(Gaussian(noise_multiplier=NOISE_MULTIPLIER), **RUN).value
    return {
        PLAIN: [plain] * len(RANKS),
        **{name: [epsilon(rank, bound) for rank in RANKS] for name, bound in CURVES.items()},
    }


def title():
    return f"Epsilon of {RUN['steps']} training steps with the same noise on the update, against the rank"


def description(columns):
    place = RANKS.index(SHOWN_RANK)
    values = ", ".join(f"{name} {round_outward(column[place])}" for name, column in columns.items())
    return (
        f"Gradients of dimension {DIM}, noise of DP-SGD with multiplier {NOISE_MULTIPLIER:.4g}, sampling rate "
        f"{RUN['sampling_rate']:g}, delta {RUN['delta']:g}. Epsilon at rank {SHOWN_RANK}: {values}. DP-SGD has the "
        "smallest epsilon and does not project. M2 adds the same noise to an update that is lifted back from its "
        "rank: accounted by privproj it comes close to DP-SGD as the rank grows, by the published accounting it "
        "stays above."
    )


def draw(columns):
    """Return the plot as SVG."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(10, 35 / 6), layout="constrained")
        axes = figure.subplots()
        place = RANKS.index(SHOWN_RANK)
        axes.axvline(SHOWN_RANK, color=TEXT, linewidth=1.2, linestyle=(0, (3, 4)), zorder=0)
        for name, values in columns.items():
            colour = COLOURS[name]
            axes.plot(RANKS, values, color=colour, linewidth=4, solid_capstyle="round")
            axes.plot([SHOWN_RANK], values[place : place + 1], color=colour, marker="o", markersize=11)
            text, point = f"{name}: {round_outward(values[place])}", (SHOWN_RANK, values[place])
            look = {"color": colour, "weight": "bold", "fontsize": 24, **LABELS[name]}
            axes.annotate(text, point, textcoords="offset points", **look)
        axes.set(xscale="log", yscale="log", xlim=(0.9, 1300), ylim=(0.25, 300))
        axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
        axes.set_yticks([1, 10, 100], ["1", "10", "100"])
        axes.minorticks_off()
        axes.grid(axis="y", color=TEXT, alpha=0.3, linewidth=1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"rank of the projection (of {DIM} dimensions)")
        axes.set_ylabel("epsilon of the run")
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return with_text(written.getvalue(), columns)


def with_text(svg, columns):
    """Return the SVG with a title and a description for screen readers."""
    arguments = f'\n <title id="title">{title()}</title>\n <desc id="description">{description(columns)}</desc>'
    start = svg.index(">", svg.index("<svg ")) + 1
    opened = svg[: start - 1] + ' role="img" aria-labelledby="title description">'
    return "\n".join(line.rstrip() for line in (opened + arguments + svg[start:]).splitlines()) + "\n"


def main():
    default = Path(__file__).parents[1] / "docs" / "gain.svg"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    columns = table()
    print(title())
    print(f"{'rank':>6}", *(f"{name:>15}" for name in columns))
    for rank, *values in zip(RANKS, *columns.values(), strict=True):
        print(f"{rank:>6}", *(f"{round_outward(value):>15}" for value in values))
    path.write_text(draw(columns), encoding="utf-8")
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
