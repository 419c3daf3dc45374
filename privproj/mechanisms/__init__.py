"""Mechanisms: frozen records of what was run, with their parameters, the checks of these, and facts about them."""

from privproj.mechanisms.base import Mechanism, NoisyMechanism
from privproj.mechanisms.gaussian import Gaussian
from privproj.mechanisms.laplace import Laplace
from privproj.mechanisms.m1 import M1
from privproj.mechanisms.m2 import M2, Layer
from privproj.mechanisms.sketch import PublicSketch, Sketch
from privproj.mechanisms.wishart import Wishart, WishartMatrix

__all__ = [
    "M1",
    "M2",
    "Gaussian",
    "Laplace",
    "Layer",
    "Mechanism",
    "NoisyMechanism",
    "PublicSketch",
    "Sketch",
    "Wishart",
    "WishartMatrix",
]
