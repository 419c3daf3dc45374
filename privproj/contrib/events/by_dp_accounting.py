"""Composition by dp-accounting, of its events and of our dominating pairs (C18): the only seam to its arithmetic.

Its FFT has no published error bound. So a measured noise is added to every
delta, deltas near that noise are refused, and no lower end is known. What is measured and not proved is listed in
docs/proofs.md under "What is only observed".
"""

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from privproj.composition.dominating_pairs import DominatingPair, Outline
from privproj.errors import PrecisionLimit
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

PEER_REMEDY = "ask for a larger delta, add noise, or use a Renyi bound"
"""What an error of this composition advises. Contract."""

PEER_POINTS_PER_DEVIATION = 20.0
"""Points per loss deviation on dp-accounting's grid. Speed only."""

MOST_DEFAULT_PEER_CELLS = 2.0**20
"""Most cells on dp-accounting's grid: a coarser one, still sound, is used where there would be more. Speed only."""

MOST_PEER_CELLS = 2**23
"""Cells that a grid may have; one with more is refused. Contract."""

Part = tuple[PrivacyLossDistribution, int]
"""The distribution of the loss of one release, dense, and how often it is composed."""


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


def distributions_of(shapes: list[Outline], step: float) -> list[Part]:
    """What dominates these releases, in both orders (C18), on a grid of losses ``step`` nats apart.

    Raises :class:`PrecisionLimit` for a grid that is too large.
    """
    pairs = [(shape, shape.pairs(step).above) for shape in shapes]
    orders = [(pair, pair.mirrored()) if shape.has_two_orders else (pair,) for shape, pair in pairs]
    return [(PrivacyLossDistribution(*map(_law_of, o)), s.run.steps) for s, o in zip(shapes, orders, strict=True)]


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


def _law_of(pair: DominatingPair) -> pld_pmf.PLDPmf:
    """A pair as dp-accounting holds it, dense from the start; raises :class:`PrecisionLimit` where it is too large."""
    _check_cell_count(int(pair.cells[-1] - pair.cells[0]) + 1, pair.step)
    cells = dict(zip(pair.cells.tolist(), pair.masses.tolist(), strict=True))
    return pld_pmf.create_pmf(cells, pair.step, pair.infinity_mass, pessimistic_estimate=True).to_dense_pmf()


def distribution_of(pair: DominatingPair) -> PrivacyLossDistribution:
    """A symmetric pair as dp-accounting's distribution; what rounding may have taken off its masses is infinite."""
    return PrivacyLossDistribution(_law_of(replace(pair, infinity_mass=pair.infinity_mass + 2.0 * pair.rounding)))


def _self_compose(part: PrivacyLossDistribution, count: int, step: float) -> PrivacyLossDistribution:
    """The distribution of ``count`` releases.

    Composing a sparse law would raise its size to the power of the steps. Raises :class:`PrecisionLimit` before a grid
    that is too large is made.
    """
    law: Any = part._pmf_remove  # pyright: ignore[reportPrivateUsage]
    if count * law.size > MOST_PEER_CELLS:
        # The tail mass that dp-accounting cuts by its default; here only the size of a grid is told by it. Speed only.
        lower, upper = common.compute_self_convolve_bounds(law._probs, count, 1e-15)
        _check_cell_count(upper - lower + 1, step)
    return part.self_compose(count) if count > 1 else part


def _check_cell_count(cells: float, step: float) -> None:
    """Raise :class:`PrecisionLimit` for a grid of more than :data:`MOST_PEER_CELLS` cells, ``step`` nats apart."""
    if not cells <= MOST_PEER_CELLS:
        grid = f"discretization={step:.3g} with {cells:.2g} cells"
        raise PrecisionLimit(f"expected a grid of at most {MOST_PEER_CELLS:.2g} cells, got {grid}; {PEER_REMEDY}")
