from privproj.mechanisms.base import ClippedSum as ClippedSum, Mechanism as Mechanism, NoisyMechanism as NoisyMechanism
from privproj.mechanisms.gaussian import Gaussian as Gaussian
from privproj.contrib.jl_clip import JLClip as JLClip
from privproj.mechanisms.laplace import Laplace as Laplace
from privproj.mechanisms.m1 import M1 as M1
from privproj.mechanisms.m2 import M2 as M2, Layer as Layer
from privproj.contrib.mixing import Mixing as Mixing
from privproj.mechanisms.sketch import Sketch as Sketch
from privproj.mechanisms.sketch_public import PublicSketch as PublicSketch
from privproj.mechanisms.wishart import Wishart as Wishart
from privproj.mechanisms.wishart_matrix import WishartMatrix as WishartMatrix
