from privproj.accounting.calibration import (
    misalignment as misalignment,
    rank as rank,
    rate as rate,
    sigma as sigma,
    steps as steps,
)
from privproj.accounting.utility import choose as choose, update_utility as update_utility
from privproj.accounting.vectorized import deltas as deltas, epsilons as epsilons, sigmas as sigmas
from privproj.accounting.comparison import compare as compare
from privproj.accounting.query import delta as delta, epsilon as epsilon
from privproj.accounting.config import evaluate as evaluate
from privproj.accounting.lower_bounds import lower_bound as lower_bound
from privproj.errors import (
    InvalidParameterError as InvalidParameterError,
    PrivprojError as PrivprojError,
    UnsupportedError as UnsupportedError,
)
from privproj.accounting.gdp import gdp_mu as gdp_mu
from privproj.mechanisms import (
    M1 as M1,
    M2 as M2,
    Gaussian as Gaussian,
    Laplace as Laplace,
    Layer as Layer,
    PublicSketch as PublicSketch,
    Sketch as Sketch,
    Wishart as Wishart,
    WishartMatrix as WishartMatrix,
)
from privproj.io.run_file import Accountant as Accountant
from privproj.result import Outcome as Outcome, Result as Result, Side as Side, Status as Status
from privproj.version import __version__ as __version__
