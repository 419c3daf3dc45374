"""Choose the grids with which certificates compose runs, in floating point.

Every grid is sound, and a good grid gives a narrow enclosure. The privacy loss ``j step``, for an integer ``j``, is the
cell ``j`` of a grid. The knots are the cells at which profiles are evaluated. The window has the cells on which the
distribution of the loss of the whole run is computed.
"""

import math

import numpy as np

from privproj.composition.dominating_pairs import (
    LARGEST_LOSS,
    TRUNCATED_RUN_MASS,
    Cells,
    CoarseDescription,
    DominatingPair,
    FloatArray,
    describe_coarsely,
    distinct_cells,
)
from privproj.contrib.certify.composition import Grid, Window
from privproj.errors import PrecisionError
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.run import Run

# log of the share of delta at which the tails of the steps may be truncated; a floor may be truncated 1e8 above
SHARE_TRUNCATED = math.log(1e-16)

LOG_LEAST_TRUNCATED = math.log(1e-280)  # log of the least mass of the tails of the steps that floats represent

ORDERS = np.geomspace(1e-4, 1e4, 161)  # orders of Chernoff's bound

LOG_OF_NOTHING = -600.0  # log of a delta that is treated as 0, which bounds the losses

FloatPairs = list[tuple[DominatingPair, int]]  # the dominating pair of each phase, and its number of releases


def propose_grid(
    phases: list[tuple[PrivacyProfile, Run]], log_delta: float, fineness: float = 1.0, most_knots: float = math.inf
) -> Grid:
    """Return a grid of privacy losses that is tight near the delta ``e^log_delta``.

    ``phases`` has the profile and the run of each phase. ``fineness`` multiplies the number of grid points.

    Raises:
        PrecisionError: Profiles would be evaluated at more than ``most_knots`` points.
    """
    beyond = min(TRUNCATED_RUN_MASS, math.exp(max(log_delta + SHARE_TRUNCATED, LOG_LEAST_TRUNCATED)))
    shapes = [describe_coarsely(profile, run, beyond) for profile, run in phases]
    # 24 cells of the grid per standard deviation of the loss of one release
    step = min(shape.deviation for shape in shapes) / (fineness * 24.0)
    largest = [_largest_losses(profile, run, shape) for (profile, run), shape in zip(phases, shapes, strict=True)]
    if len(phases) == 1 and len(largest[0]):
        top = float(largest[0][-1])
        step = top / math.ceil(top / step)
    knots = [
        _place_knots(shape, losses, step, fineness, log_delta - math.log(shape.run.steps), shape.needs_both_directions)
        for shape, losses in zip(shapes, largest, strict=True)
    ]
    count = sum(map(len, knots))
    if count > most_knots:
        raise PrecisionError(
            f"the certificate of this run needs {count} points of its profiles, "
            f"more than {most_knots}. Certify fewer phases "
            "or a larger delta, or use the floating-point result, whose errors are bounded too"
        )
    orders: list[FloatPairs] = [[(shape.pairs(step).above, shape.run.steps) for shape in shapes]]
    if any(shape.needs_both_directions for shape in shapes):
        orders.append([(pair.mirrored(), steps) for pair, steps in orders[0]])
    # Log of the share of delta that the mass outside of a window may be, by Chernoff's bound
    windows = tuple(_window(order, step, log_delta + math.log(1e-6)) for order in orders)
    return Grid(step, tuple(tuple(map(int, cells)) for cells in knots), windows)


def _largest_losses(profile: PrivacyProfile, run: Run, shape: CoarseDescription) -> FloatArray:
    """Return the smallest and the largest privacy loss of a release, in nats.

    The array is empty if losses are unbounded.
    """
    # ln(1 + q (e^eps - 1)) at the least eps at which the profile is 0, and at -eps (C17)
    q, eps = run.sampling_rate, math.log1p(math.expm1(min(float(shape.losses[-1]), LARGEST_LOSS)) / run.sampling_rate)
    if profile.excess is not None or profile.log_delta(eps).upper > LOG_OF_NOTHING:
        return np.zeros(0)
    least = 0.0
    while eps - least > 1e-13 * eps:
        middle = 0.5 * (least + eps)
        least, eps = (least, middle) if profile.log_delta(middle).upper <= LOG_OF_NOTHING else (middle, eps)
    return np.log1p(q * np.expm1(np.array([-eps, eps])))


def _place_knots(
    shape: CoarseDescription, largest: FloatArray, step: float, fineness: float, log_share: float, one_sided: bool
) -> Cells:
    """Return the cells of a loss grid at which the profile of a phase is evaluated.

    ``largest`` has the smallest and the largest loss; it is empty if losses are unbounded. ``log_share`` is
    ``ln(delta/n)`` for ``n`` releases.
    """
    # Up to 96 knots per standard deviation of the loss, fewer beyond the core (CoarseDescription.knots)
    cells = _thin_tails(shape.knots(step, fineness * 96.0), shape, step, log_share)
    # A bounded loss is rounded up to the next knot.
    ends = np.concatenate([np.floor(largest / step), np.rint(largest / step), np.ceil(largest / step)])
    cells = distinct_cells(np.concatenate([cells, ends.astype(np.int64)]))
    if one_sided:
        return cells
    # Symmetric knots use each value of the profile twice.
    right = cells[cells >= 0]
    return np.concatenate([-right[:0:-1], right])


def _thin_tails(cells: Cells, shape: CoarseDescription, step: float, log_share: float) -> Cells:
    """Remove some cells of a loss grid in the tails of the loss distribution.

    ``log_share`` is ``ln(delta/n)`` for ``n`` releases.
    """
    # A chord over s decay lengths is about E s^2/8 too high. In the other direction the excess is E(t)/t.
    losses = cells * step
    log_excess = np.interp(losses, shape.losses, shape.log_excess) + np.maximum(-losses, 0.0)
    # Approximate share of delta that straight lines between distant knots may add
    enough = np.sqrt(8.0 * 1e-5) * np.exp(np.minimum(0.5 * (log_share - log_excess), 50.0))
    # Largest distance of knots, in lengths over which the excess decreases by a factor e
    lengths = np.abs(np.diff(log_excess)) / np.minimum(enough, 2.0)[:-1]
    passed = np.concatenate([[0.0], np.cumsum(np.minimum(lengths, 1.0))])
    chosen = np.concatenate([[True], np.diff(np.floor(passed)) > 0.0]) | (np.abs(cells) <= 1)
    chosen[-1] = True
    return cells[chosen]


def _window(pairs: FloatPairs, step: float, log_mass: float) -> Window:
    """Return grid cells that contain the sum of the losses, except for small tails.

    Each tail has a probability of about ``e^log_mass``.
    """
    (end, right), (start, left) = (_edge(pairs, step, log_mass, side) for side in (1, -1))
    size = 1 << max(4, (end - start).bit_length())
    return Window(end - size, size, right, left)


def _edge(pairs: FloatPairs, step: float, log_mass: float, side: int) -> tuple[int, float]:
    """Return a cell beyond which the sum of losses has probability ``e^log_mass``.

    ``side`` is 1 for the upper tail, and -1 for the lower one. The second result is the best order of Chernoff's bound.
    """
    # The pair in balls may end a few cells further out, which a large order would amplify. So the order times the step
    # of the grid is bounded.
    orders = ORDERS[np.minimum(0.5 / step, ORDERS[-1]) >= ORDERS]
    distributions = [(side * pair.step * pair.cells, pair.masses, steps) for pair, steps in pairs]
    edge, order = chernoff_edge(distributions, orders, log_mass)
    return side * math.ceil(edge / step), order


def chernoff_edge(
    dists: list[tuple[FloatArray, FloatArray, int]], orders: FloatArray, log_mass: float
) -> tuple[float, float]:
    """Return the value that a sum exceeds with probability at most ``e^log_mass``.

    ``dists`` has the values, the masses and the number of copies of each independent term. The second result is the
    best order of Chernoff's bound.
    """
    # min over x of (sum_i T_i ln sum_j p_j e^(x w_j) - ln mass) / x
    moments = np.zeros(len(orders))
    for places, masses, copies in dists:
        exponents = orders[:, None] * places + np.log(np.maximum(masses, 1e-320))
        top = exponents.max(axis=1)
        moments += copies * (top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))
    edges = (moments - log_mass) / orders
    best = int(np.argmin(edges))
    return float(edges[best]), float(orders[best])
