"""Collect the settings at which every bound is compared with its reference in mpmath.

``SETTINGS`` of a file of references has one grid a line: a quantity of :func:`privproj.evaluate` and its parameters,
every combination of their values. The quick tests compare the first point of each line with a star.
"""

import itertools
from dataclasses import dataclass

from reference import FAMILIES

WITHOUT = {
    "wishart.early-corollary": "no formula: its constant is open",
    "wishart.rp-gd": "no formula: refuted, its constant is open",
    "wishart-matrix.early-matrix": "no formula: refuted",
}
"""The bounds that evaluate no number."""
REFUTED = ("m1.column-published", "sketch.lora-by-design")
"""Evaluated with ``allow_refuted``."""

DOORLESS = (
    "rule.",
    "wishart.preprocess",
    "sketch.rdp order",
    "wishart.early.epsilon dim=50 rank=40 misalignment=1e-12 t",
    "wishart.early.delta dim=50 rank=40 misalignment=1e-12 t",
)
"""How settings begin whose parameters one door alone knows."""


@dataclass(frozen=True)
class Setting:
    """One question."""

    quantity: str
    parameters: tuple[tuple[str, float | int | str], ...]

    def __str__(self):
        return " ".join((self.quantity, *(f"{name}={value}" for name, value in self.parameters)))

    @property
    def bound(self):
        """``mechanism.bound``."""
        return ".".join(self.quantity.split(".")[:2])

    @property
    def is_for_every_door(self):
        """False where a parameter is known to :func:`privproj.evaluate` alone."""
        return not str(self).startswith(DOORLESS)

    def as_entry(self):
        """The query, and the entry of a file: mechanism and bound by name, the number of steps where it is sampled."""
        mechanism, bound, query = self.quantity.split(".")
        given = dict(self.parameters)
        steps = {"steps": 1} if "sampling_rate" in given else {}
        return query, {"mechanism": mechanism, "bound": bound, **steps, **given}


def plain(text):
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def settings(quick=False):
    found = []
    grids = "".join(getattr(family, "SETTINGS", "").lstrip("\n") for family in FAMILIES)
    for entry in grids.splitlines():
        quantity, *words = entry.lstrip("* ").split()
        names = [word.split("=")[0] for word in words]
        values = [[plain(x) for x in word.split("=")[1].split(",")] for word in words]
        grid = [Setting(quantity, tuple(zip(names, point, strict=True))) for point in itertools.product(*values)]
        found += grid if not quick else grid[:1] * entry.startswith("*")
    return found
