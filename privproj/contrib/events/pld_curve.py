"""Compose privacy loss distributions with dp-accounting.

The FFT of dp-accounting has no published error bound. Therefore a measured rounding error is added to every delta, and
no lower bound is known (docs/proofs.md, "What is only observed").
"""

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

from dp_accounting.pld import common, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from privproj.composition.dominating_pairs import CoarseDescription
from privproj.errors import PrecisionError
from privproj.integrations.dp_accounting import COMPOSITION_REMEDY, MOST_GRID_CELLS, Part, check_cell_count
from privproj.numerics.interval import Enclosure, next_up

# soundness (measured, not proved): absolute rounding error of dp-accounting's FFT in a composed delta, for any number
# of steps. It was measured on Gaussian runs (8e-14 at 1e4 steps) and multiplied by 3 to 5. It is added to every delta.
FFT_NOISE = 2e-13

# soundness (measured): the same error per step; measured on Gaussian runs up to 1e6 steps (4e-17 per step), with a
# factor of 5
FFT_NOISE_PER_STEP = 2e-16

LEAST_DELTA_OVER_NOISE = 50.0  # a delta below this multiple of the rounding error is rejected; any value is sound

GRID_POINTS_PER_DEVIATION = 20.0  # grid points per standard deviation of the loss

# largest number of cells of the default grid; a coarser grid, still sound, is used instead of a larger one
MOST_DEFAULT_CELLS = 2.0**20


@dataclass(frozen=True)
class PldCurve:
    """An upper bound of the privacy curve of a run, composed by dp-accounting.

    The bound holds in both the add and remove directions. ``noise`` is the rounding error that is added to every delta.
    """

    distribution: PrivacyLossDistribution

    noise: float

    numerics: dict[str, object]

    @property
    def floor(self) -> float:
        """The smallest delta that the curve supports, a multiple of the rounding error."""
        return LEAST_DELTA_OVER_NOISE * self.noise

    def log_delta(self, eps: float) -> Enclosure:
        """Return an upper bound of ``ln delta(eps)``, at least the log of :attr:`floor`."""
        # max over both directions of delta(eps), + noise
        delta = float(self.distribution.get_delta_for_epsilon(eps)) + self.noise
        return Enclosure(-math.inf, math.log(min(1.0, max(delta, self.floor))))

    def epsilon(self, log_delta: float) -> Enclosure:
        """Return an upper bound of epsilon at the delta ``e^log_delta``.

        Raises:
            PrecisionError: Delta is below :attr:`floor`, or the losses overflow.
        """
        delta = math.exp(log_delta)
        if delta < self.floor:
            raise PrecisionError(
                f"the composed delta must be at least {self.floor:.1e}, got {delta:.3g}. {COMPOSITION_REMEDY}"
            )
        # max over both directions of eps(delta - noise)
        eps = float(self.distribution.get_epsilon_for_delta(delta - self.noise))
        if eps == math.inf:
            raise PrecisionError(f"the privacy losses exceed double precision. {COMPOSITION_REMEDY}")
        return Enclosure(-math.inf, next_up(max(eps, 0.0)))


def default_grid_step(shapes: list[CoarseDescription], most: float = math.inf) -> float:
    """Return the default grid step of the privacy loss, in nats; any step is sound.

    ``shapes`` describe the releases of a run. The step exceeds ``most`` only if the grid would be too large.
    """
    step = min([most, *(shape.deviation / GRID_POINTS_PER_DEVIATION for shape in shapes)])
    for shape in shapes:
        steps, run_deviation = shape.run.steps, shape.deviation * math.sqrt(shape.run.steps)
        chernoff = run_deviation * run_deviation / (2.0 * shape.span) if run_deviation > 8.0 * shape.span else 0.0
        step = max(step, min(steps * shape.span, shape.span + 24.0 * run_deviation + chernoff) / MOST_DEFAULT_CELLS)
    return step


def compose(parts: list[Part], step: float) -> PldCurve:
    """Return the privacy curve of a run from the loss distributions of its releases.

    Each part is a privacy loss distribution and its number of releases. All distributions are on one grid, whose
    ``step`` is in nats. If all distributions dominate their releases, the curve is an upper bound up to a rounding
    error that is measured, not proved (C2: domination composes, C18: pairs on a grid).

    Raises:
        PrecisionError: The grid has more than :data:`MOST_GRID_CELLS` cells.
    """
    composed = [_self_compose(*part, step) for part in parts] or [privacy_loss_distribution.identity(step)]
    noise = FFT_NOISE + FFT_NOISE_PER_STEP * sum(count for _, count in parts)
    points: Any = sum(part._pmf_remove.size for part, _ in parts)  # pyright: ignore[reportPrivateUsage]
    numerics = {"composer": "dp-accounting", "grid_step": step, "grid_points": points}
    numerics |= {"added_to_delta": noise, "rounding": "measured, not proved"}
    return PldCurve(reduce(PrivacyLossDistribution.compose, composed), noise, numerics)


def _self_compose(part: PrivacyLossDistribution, count: int, step: float) -> PrivacyLossDistribution:
    """Compose a privacy loss distribution ``count`` times with itself.

    Its probability mass functions must be dense, because sparse ones grow exponentially.

    Raises:
        PrecisionError: The grid would be too large.
    """
    dist: Any = part._pmf_remove  # pyright: ignore[reportPrivateUsage]
    if count * dist.size > MOST_GRID_CELLS:
        # 1e-15 is dp-accounting's default truncated tail mass; here it only gives the size of the grid.
        lower, upper = common.compute_self_convolve_bounds(dist._probs, count, 1e-15)
        check_cell_count(upper - lower + 1, step)
    return part.self_compose(count) if count > 1 else part
