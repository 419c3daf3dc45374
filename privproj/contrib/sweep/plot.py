"""Plot the table of ``privproj sweep``.

The result is plotted against one parameter, with a line for each combination of the other parameters.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from privproj.contrib.sweep.sweep import Grid, read_table
from privproj.errors import InvalidParameterError
from privproj.result import Outcome

MOST_LINES = 8  # lines of a plot that are told apart by color, dashes and markers

WIDE_RANGE = 30.0  # ratio of the largest to the smallest number from which an axis is logarithmic


def plotted_axis(grid: Grid) -> str:
    """Return the horizontal axis: the numeric parameter with the most values.

    Raises:
        InvalidParameterError: No parameter has several numbers, or the others have too many combinations.
    """
    numeric = {
        name: len(values)
        for name, values in grid.axes.items()
        if len(values) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    }
    if not numeric:
        raise InvalidParameterError("--plot", ", ".join(grid.axes), "omitted for a grid without an axis of numbers")
    axis = max(numeric, key=numeric.__getitem__)
    lines = len(grid) // numeric[axis]
    if lines > MOST_LINES:
        raise InvalidParameterError("--plot", f"{lines} lines", f"omitted for more than {MOST_LINES} lines")
    return axis


def lines_of(grid: Grid, table: str | Path) -> tuple[list[float], dict[str, list[float]]]:
    """Return the horizontal coordinates and, by label, the lines of a sweep's plot.

    A value of a line is nan if its query has no result.
    """
    axis = plotted_axis(grid)
    varied = [name for name in grid.axes if name != axis and len(grid.axes[name]) > 1]
    points = sorted(grid.axes[axis])
    lines: dict[str, dict[float, float]] = {}
    rows = iter(read_table(Path(table)))
    names = list(next(rows))
    for number, row in enumerate(rows):
        place, cells = grid.point(number), dict(zip(names, row, strict=True))
        label = ", ".join(_label(name, place[name]) for name in varied) or grid.query
        usable = cells["outcome"] == Outcome.OK and cells["value"] not in ("", None)
        lines.setdefault(label, {})[place[axis]] = float(str(cells["value"])) if usable else math.nan
    return points, {label: [values.get(point, math.nan) for point in points] for label, values in lines.items()}


def _label(name: str, value: Any) -> str:
    """Return the legend text for one value of a parameter."""
    return value if isinstance(value, str) else f"{name.replace('_', ' ')} {value}"


def settings_of_axes(points: Sequence[float], lines: dict[str, list[float]]) -> dict[str, Any]:
    """Return the scales and the limits of both axes of the plot."""
    drawn = [value for values in lines.values() for value in values if math.isfinite(value)]
    settings: dict[str, Any] = {"xlim": (min(points), max(points))}
    for name, numbers in (("x", points), ("y", drawn)):
        is_wide = bool(numbers) and min(numbers) > 0.0 and max(numbers) >= WIDE_RANGE * min(numbers)
        settings[f"{name}scale"] = "log" if is_wide else "linear"
    least, most = (min(drawn), max(drawn)) if drawn else (0.0, 1.0)
    is_log = settings["yscale"] == "log"
    settings["ylim"] = (least / 1.5, most * 1.5) if is_log else (min(0.0, least), 1.05 * most or 1.0)
    return settings
