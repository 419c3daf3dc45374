"""Mechanisms: frozen records of what was run. Parameters and their validity, nothing else."""

from .base import (
    LARGEST,
    LARGEST_EPSILON,
    SMALLEST,
    Mechanism,
    NoisyMechanism,
    noise,
    privacy_epsilon,
    probability,
    real,
    truth,
    whole,
)
from .gaussian import Gaussian
from .laplace import Laplace
from .m1 import M1
from .m2 import M2, Layer
from .sketch import PublicSketch, Sketch
from .wishart import Wishart, WishartMatrix

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
