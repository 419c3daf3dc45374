"""Pictures of curves: legible in grey and for colour-blind readers (dash patterns and markers, not colour alone)."""

from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter
from privproj.lazy import import_extra
from privproj.records.atomic import write_atomically

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
DASHES = ((), (6, 2), (2, 2), (6, 2, 2, 2), (1, 2), (8, 2, 2, 2, 2, 2), (4, 4), (3, 1))
MARKERS = ("o", "s", "^", "D", "v", "x", "+", "*")


def figure(
    x: list[float], columns: dict[str, list[float]], x_label: str, y_label: str, title: str, **limits: Any
) -> Any:
    """Draw a matplotlib figure with one line for each column, and axes as ``limits`` say."""
    import_extra("matplotlib", "--plot", "plot").use("Agg")
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    for i, (name, values) in enumerate(columns.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        spacing = (max(1, i), max(1, len(x) // 9))
        axes.plot(x, values, label=name, linewidth=1.6, dashes=DASHES[i % len(DASHES)], markevery=spacing, **style)
    trade_off = "rate" in x_label
    if trade_off:
        axes.set(xscale="log", xlim=(x[0], 1.0), ylim=(0.0, 1.02))
    else:
        least = min((v for values in columns.values() for v in values if v > 1e-300), default=1e-12)
        axes.set(yscale="log", xlim=(x[0], x[-1]), ylim=(max(least / 3.0, 1e-30), 1.5))
    axes.set(xlabel=x_label, ylabel=y_label, title=title, **limits)
    if "xticks" in limits:
        axes.minorticks_off()
    axes.grid(True, which="major", color="0.85", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return drawn


def draw(
    path: str, x: list[float], columns: dict[str, list[float]], x_label: str, y_label: str, title: str, **limits: Any
) -> None:
    """Draw the columns and write the picture to a file."""
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in ("png", "svg", "pdf"):
        raise InvalidParameter("--plot", path, "a file name ending in .png, .svg or .pdf")
    drawn = figure(x, columns, x_label, y_label, title, **limits)
    write_atomically(path, lambda file: drawn.savefig(file, dpi=150, format=ending))
