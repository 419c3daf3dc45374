"""Mechanisms, a folder for each: the frozen record of what was run, and its bounds, one theorem per file.

Files with an underscore hold what several theorems of a folder share; :mod:`privproj.mechanisms.registry` lists them.
"""

from typing import TYPE_CHECKING

from privproj.lazy import lazy_names

if TYPE_CHECKING:
    from privproj.mechanisms.base import ClippedSum, Mechanism, NoisyMechanism
    from privproj.mechanisms.gaussian import Gaussian
    from privproj.mechanisms.jl_clip import JLClip
    from privproj.mechanisms.laplace import Laplace
    from privproj.mechanisms.m1 import M1
    from privproj.mechanisms.m2 import M2, Layer
    from privproj.mechanisms.mixing import Mixing
    from privproj.mechanisms.r1smg import R1SMG
    from privproj.mechanisms.sketch import Sketch
    from privproj.mechanisms.sketch_public import PublicSketch
    from privproj.mechanisms.wishart import Wishart
    from privproj.mechanisms.wishart_matrix import WishartMatrix

__all__ = [
    "M1",
    "M2",
    "R1SMG",
    "ClippedSum",
    "Gaussian",
    "JLClip",
    "Laplace",
    "Layer",
    "Mechanism",
    "Mixing",
    "NoisyMechanism",
    "PublicSketch",
    "Sketch",
    "Wishart",
    "WishartMatrix",
]

HOMES = {
    "base": ("ClippedSum", "Mechanism", "NoisyMechanism"),
    "gaussian": ("Gaussian",),
    "jl_clip": ("JLClip",),
    "laplace": ("Laplace",),
    "m1": ("M1",),
    "m2": ("M2", "Layer"),
    "mixing": ("Mixing",),
    "r1smg": ("R1SMG",),
    "sketch": ("Sketch",),
    "sketch_public": ("PublicSketch",),
    "wishart": ("Wishart",),
    "wishart_matrix": ("WishartMatrix",),
}
"""Where the names live; a mechanism is imported when it is asked for, so that one question pays for one."""

__getattr__, __dir__ = lazy_names(__name__, HOMES)
