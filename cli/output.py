"""Write output: text, errors, progress bars and plots."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

import click

from privproj.errors import InvalidParameterError
from privproj.lazy import import_extra


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a text and a newline, by default to standard output."""
    # in one piece, for readers of the first lines only
    print(text + "\n", end="", file=stream, flush=True)


def one_line(message: str) -> str:
    """Return a message on one line, with control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))


def complain(message: str, code: int) -> int:
    """Print an error as one line on standard error, and return the exit code."""
    with suppress(OSError):  # the exit code is still returned
        write("error: " + one_line(message), sys.stderr)
    return code


@contextmanager
def bar(length: int, label: str, hidden: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a progress bar; yield a function that adds completed steps.

    The displayed rate excludes the steps that are added first, because an earlier run may have completed them.
    """

    def per_second(rate: float | None) -> str | None:
        return None if rate is None else f"{rate:.3g}/s"

    with click.progressbar(
        length=length, label=label, file=sys.stderr, hidden=hidden, show_pos=True, item_show_func=per_second
    ) as progress:
        began, counted = None, 0

        def count(done: int) -> None:
            nonlocal began, counted
            now = time.monotonic()
            counted += done if began is not None else 0
            began = now if began is None else began
            progress.update(done, counted / (now - began) if now > began else None)

        yield count


# --- plots -----------------------------------------------------------------------------------------

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#666666")
DASHES = ((), (6, 2), (2, 2), (6, 2, 2, 2), (1, 2), (8, 2, 2, 2, 2, 2), (4, 4), (3, 1))
MARKERS = ("o", "s", "^", "D", "v", "x", "+", "*")


def draw(
    path: str, x: list[float], columns: dict[str, list[float]], x_label: str, y_label: str, title: str, **limits: Any
) -> None:
    """Write a plot with one line for each column to a .png, .svg or .pdf file.

    ``x`` has the horizontal coordinates, and ``limits`` are further settings of the axes.
    """
    ending = path.rpartition(".")[2].lower()
    if ending not in ("png", "svg", "pdf"):
        raise InvalidParameterError("--plot", path, "a file name that ends in .png, .svg or .pdf")
    import_extra("matplotlib", "--plot", "plot").use("Agg")
    from matplotlib import pyplot

    from privproj.io.files import write_atomically

    drawn, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    for i, (name, values) in enumerate(columns.items()):
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 4}
        spacing = (max(1, i), max(1, len(x) // 9))
        axes.plot(x, values, label=name, linewidth=1.6, dashes=DASHES[i % len(DASHES)], markevery=spacing, **style)
    if "rate" in x_label:
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
    write_atomically(path, lambda file: drawn.savefig(file, dpi=150, format=ending))
