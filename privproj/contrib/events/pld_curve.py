"""Composition by dp-accounting, of its events and of our dominating pairs (C18): the only seam to its arithmetic.

Its FFT has no published error bound. So a measured noise is added to every
delta, deltas near that noise are refused, and no lower end is known. What is measured and not proved is listed in
docs/proofs.md under "What is only observed".
"""

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

from dp_accounting.pld import common, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from privproj.composition.dominating_pairs import Outline
from privproj.errors import PrecisionLimit
from privproj.integrations.dp_accounting import MOST_PEER_CELLS, PEER_REMEDY, Part, check_cell_count
from privproj.numerics.interval import Enclosure, next_up

FFT_NOISE = 2e-13
"""Absolute rounding noise of dp-accounting's FFT in a composed delta, whatever the number of steps.

Measured on Gaussian runs (8e-14 at 1e4 steps) with a factor of 3 to 5 on top, not proved. It is added to every delta:
the soundness of what is composed so rests on it. Soundness (measured).
"""

FFT_NOISE_PER_STEP = 2e-16
"""The same noise for each step: measured on Gaussian runs up to 1e6 steps (4e-17 a step), with a factor of 5.
Soundness (measured)."""

LEAST_DELTA_OVER_NOISE = 50.0
"""A delta below this many times the noise is refused. Any value is sound. Contract."""

PEER_POINTS_PER_DEVIATION = 20.0
"""Points per loss deviation on dp-accounting's grid. Speed only."""

MOST_DEFAULT_PEER_CELLS = 2.0**20
"""Most cells on dp-accounting's grid: a coarser one, still sound, is used where there would be more. Speed only."""


@dataclass(frozen=True)
class PeerCurve:
    """The curve of a composed run: the larger of the orders. Lower ends are not known, rounding is only measured."""

    distribution: PrivacyLossDistribution
    """The composed law of the loss in each order, as dp-accounting holds it."""

    noise: float
    """What is added to every delta for rounding."""

    numerics: dict[str, object]
    """What an answer says about how it was computed."""

    @property
    def floor(self) -> float:
        """The smallest composed delta that is answered; where delta would be smaller, this number is the answer."""
        return LEAST_DELTA_OVER_NOISE * self.noise

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)`` for ``eps`` in nats, never below the floor, which is then a sound, loose answer."""
        # max over orders of delta(eps), + noise
        delta = float(self.distribution.get_delta_for_epsilon(eps)) + self.noise
        return Enclosure(-math.inf, math.log(min(1.0, max(delta, self.floor))))

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)`` in nats; raises :class:`PrecisionLimit` below the floor, or for losses beyond doubles."""
        delta = math.exp(log_delta)
        if delta < self.floor:
            raise PrecisionLimit(
                f"expected a composed delta of at least {self.floor:.1e}, got {delta:.3g}; {PEER_REMEDY}"
            )
        # max over orders of eps(delta - noise)
        eps = float(self.distribution.get_epsilon_for_delta(delta - self.noise))
        if eps == math.inf:
            raise PrecisionLimit(f"expected losses that double precision can hold, got larger ones; {PEER_REMEDY}")
        return Enclosure(-math.inf, next_up(max(eps, 0.0)))


def peer_grid_step(shapes: list[Outline], most: float = math.inf) -> float:
    """The default distance of lattice points for dp-accounting, in nats, about ``most`` at most. Any is sound.

    Its window reaches far, as its Chernoff orders are at least ``1 / span`` (of a step's losses). Hence the step is so
    coarse that there are about :data:`MOST_DEFAULT_PEER_CELLS` cells at most.
    """
    step = min([most, *(shape.deviation / PEER_POINTS_PER_DEVIATION for shape in shapes)])
    for shape in shapes:
        steps, spread = shape.run.steps, shape.deviation * math.sqrt(shape.run.steps)
        chernoff = spread * spread / (2.0 * shape.span) if spread > 8.0 * shape.span else 0.0
        step = max(step, min(steps * shape.span, shape.span + 24.0 * spread + chernoff) / MOST_DEFAULT_PEER_CELLS)
    return step


def compose(parts: list[Part], step: float) -> PeerCurve:
    """The curve of a run from the distributions of its releases, on one grid of losses ``step`` nats apart.

    It is as sound as these (C2, C18), but for rounding, which is measured and not proved. Raises
    :class:`PrecisionLimit` for a grid of more than :data:`MOST_PEER_CELLS` cells.
    """
    composed = [_self_compose(*part, step) for part in parts] or [privacy_loss_distribution.identity(step)]
    noise = FFT_NOISE + FFT_NOISE_PER_STEP * sum(count for _, count in parts)
    points: Any = sum(part._pmf_remove.size for part, _ in parts)  # pyright: ignore[reportPrivateUsage]
    numerics = {"composer": "dp-accounting", "grid_step": step, "grid_points": points}
    numerics |= {"added_to_delta": noise, "rounding": "measured, not proved"}
    return PeerCurve(reduce(PrivacyLossDistribution.compose, composed), noise, numerics)


def _self_compose(part: PrivacyLossDistribution, count: int, step: float) -> PrivacyLossDistribution:
    """The distribution of ``count`` releases.

    Composing a sparse law would raise its size to the power of the steps. Raises :class:`PrecisionLimit` before a grid
    that is too large is made.
    """
    law: Any = part._pmf_remove  # pyright: ignore[reportPrivateUsage]
    if count * law.size > MOST_PEER_CELLS:
        # The tail mass that dp-accounting cuts by its default; here only the size of a grid is told by it. Speed only.
        lower, upper = common.compute_self_convolve_bounds(law._probs, count, 1e-15)
        check_cell_count(upper - lower + 1, step)
    return part.self_compose(count) if count > 1 else part
