"""Collect the settings at which every bound is compared with its reference in mpmath.

``settings.txt``, here and in the tests of optional features, has one grid a line: a quantity of
:func:`privproj.evaluate` and its parameters, every combination of their values. The quick tests compare the first point
of each line with a star.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FILES = (HERE / "settings.txt", *sorted(HERE.parent.glob("contrib/*/settings.txt")))

WITHOUT = {
    "wishart.early-corollary": "no formula: its constant is open",
    "wishart.rp-gd": "no formula: refuted, its constant is open",
    "wishart-matrix.early-matrix": "no formula: refuted",
}
REFUTED = ("m1.column-published", "m1.residual-published", "sketch.lora-by-design")  # evaluated with ``allow_refuted``

# beginnings of settings with parameters that only :func:`privproj.evaluate` has
PARTIAL = (
    "rule.",
    "wishart.preprocess",
    "sketch.rdp order",
    "wishart.early.epsilon dim=50 rank=40 misalignment=1e-12 t",
    "wishart.early.delta dim=50 rank=40 misalignment=1e-12 t",
)


@dataclass(frozen=True)
class Setting:
    """One query."""

    quantity: str
    parameters: tuple[tuple[str, float | int | str], ...]

    def __str__(self):
        return " ".join((self.quantity, *(f"{name}={value}" for name, value in self.parameters)))

    @property
    def bound(self):
        """``mechanism.bound``."""
        return ".".join(self.quantity.split(".")[:2])

    @property
    def has_every_entry_point(self):
        """False if only :func:`privproj.evaluate` has all parameters."""
        return not str(self).startswith(PARTIAL)

    def as_entry(self):
        """Return the query and the entry of a file, with the number of steps if it is sampled."""
        mechanism, bound, query = self.quantity.split(".")
        parameters = dict(self.parameters)
        steps = {"steps": 1} if "sampling_rate" in parameters else {}
        return query, {"mechanism": mechanism, "bound": bound, **steps, **parameters}


def plain(text):
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def settings(quick=False):
    selected = []
    for entry in "".join(path.read_text() for path in FILES).splitlines():
        quantity, *assignments = entry.lstrip("* ").split()
        names = [word.split("=")[0] for word in assignments]
        values = [[plain(x) for x in word.split("=")[1].split(",")] for word in assignments]
        grid = [Setting(quantity, tuple(zip(names, point, strict=True))) for point in itertools.product(*values)]
        selected += grid if not quick else grid[:1] * entry.startswith("*")
    return selected
