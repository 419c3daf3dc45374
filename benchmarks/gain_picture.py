"""The picture of the README: epsilon of a training run against the rank, by three accountings of the same noise.

Usage: python benchmarks/gain_picture.py [PICTURE]   (default: docs/gain.svg; needs matplotlib)

Prints the table that is drawn. The same matplotlib writes the same bytes.
"""

import io
import sys
from pathlib import Path

from privproj_cli.render import round_outward

import privproj
from privproj import M2

RANKS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
"""Where the curves are evaluated."""

SHOWN_RANK = 16
"""The rank whose three numbers are written beside their points."""

DIM = 2048
"""Dimension that is projected."""

NOISE_MULTIPLIER = 0.155974
"""Standard deviation of the noise over the clip, as in examples/bounds.toml: epsilon is about 1 at rank 16."""

RUN = {"delta": 1e-5, "steps": 2000, "sampling_rate": 0.01}
"""The run, and the delta at which its epsilon is asked for."""

CURVES = {"plain Gaussian": "gaussian", "published": "good-event", "privproj": "rank-free"}
"""The curves, by the bound that each shows. The published accounting is that of the command line's line "gain": for a
change of any rank, as the others are, with delta split evenly between its two events."""

TEXT = "#7d858e"
"""Colour of text and axes. Like the colours below it has a contrast above 3 on white and on GitHub's dark #0d1117."""

COLOURS = {"plain Gaussian": "#8a7fa8", "published": "#c8701e", "privproj": "#2f81e0"}
"""Colour of each curve and of its name."""

RIGHT_BELOW = {"xytext": (12, -12), "ha": "left", "va": "top"}
"""A label to the right of a point and below it; offsets in points."""

LEFT_ABOVE = {"xytext": (-12, 29), "ha": "right", "va": "baseline"}
"""A label to the left of a point and above it."""

LABELS = {"plain Gaussian": RIGHT_BELOW, "published": LEFT_ABOVE, "privproj": RIGHT_BELOW}
"""Where the name of a curve stands beside its point, free of all curves and of the lines behind them."""

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
"""Text as paths, names of elements that do not change from run to run, type that a phone shows legibly."""


def table():
    """Epsilon of the run at every rank, by curve."""

    def epsilon(rank, bound):
        release = M2(dim=DIM, rank=rank, change_rank=DIM, noise_multiplier=NOISE_MULTIPLIER)
        split = {"split": "even"} if bound == "good-event" else {}
        return privproj.epsilon(release, bound=bound, **RUN, **split).value

    return {name: [epsilon(rank, bound) for rank in RANKS] for name, bound in CURVES.items()}


def title():
    """One line that says what is drawn."""
    return f"Epsilon of {RUN['steps']} training steps with the same noise, against the rank of the projection"


def description(columns):
    """What is drawn, in words and with the numbers at one rank."""
    place = RANKS.index(SHOWN_RANK)
    values = ", ".join(f"{name} {round_outward(column[place])}" for name, column in columns.items())
    return (
        f"Projected gradients of dimension {DIM}, noise multiplier {NOISE_MULTIPLIER:g}, sampling rate "
        f"{RUN['sampling_rate']:g}, delta {RUN['delta']:g}. Epsilon at rank {SHOWN_RANK}: {values}. By the plain "
        "Gaussian accounting epsilon is the same at every rank; by the published accounting and by privproj it rises "
        "with the rank, and that of privproj is the smallest at every rank."
    )


def draw(columns):
    """The picture as SVG."""
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
            words, point = f"{name}: {round_outward(values[place])}", (SHOWN_RANK, values[place])
            look = {"color": colour, "weight": "bold", "fontsize": 24, **LABELS[name]}
            axes.annotate(words, point, textcoords="offset points", **look)
        axes.set(xscale="log", yscale="log", xlim=(0.9, 1300), ylim=(0.1, 1500))
        axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
        axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1000"])
        axes.minorticks_off()
        axes.grid(axis="y", color=TEXT, alpha=0.3, linewidth=1)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"rank of the projection (of {DIM} dimensions)")
        axes.set_ylabel("epsilon of the run")
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return with_words(written.getvalue(), columns)


def with_words(svg, columns):
    """The SVG with a title and a description, which screen readers say."""
    words = f'\n <title id="title">{title()}</title>\n <desc id="description">{description(columns)}</desc>'
    start = svg.index(">", svg.index("<svg ")) + 1
    opened = svg[: start - 1] + ' role="img" aria-labelledby="title description">'
    return "\n".join(line.rstrip() for line in (opened + words + svg[start:]).splitlines()) + "\n"


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
