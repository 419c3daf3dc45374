"""Mechanisms: frozen records of what was run. Parameters and their validity, nothing else."""

from privproj.mechanisms.base import Mechanism, NoisyMechanism
from privproj.mechanisms.gaussian import Gaussian
from privproj.mechanisms.laplace import Laplace
from privproj.mechanisms.m1 import M1
from privproj.mechanisms.m2 import M2, Layer
from privproj.mechanisms.sketch import PublicSketch, Sketch
from privproj.mechanisms.wishart import Wishart, WishartMatrix
from privproj.validation import (
    LARGEST,
    LARGEST_EPSILON,
    SMALLEST,
    noise,
    privacy_epsilon,
    probability,
    real,
    truth,
    whole,
)

__all__ = [
    "LARGEST",
    "LARGEST_EPSILON",
    "M1",
    "M2",
    "SMALLEST",
    "Gaussian",
    "Laplace",
    "Layer",
    "Mechanism",
    "NoisyMechanism",
    "PublicSketch",
    "Sketch",
    "Wishart",
    "WishartMatrix",
    "noise",
    "privacy_epsilon",
    "probability",
    "real",
    "truth",
    "whole",
]
