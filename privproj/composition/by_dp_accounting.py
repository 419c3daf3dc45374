"""Composition by dp-accounting: the cross-check of our own, and the only seam to that package.

It composes the same pairs. Its FFT has no published error bound, so measured noise is added to every delta, deltas
near it are refused, and no lower end is known.
"""

import math
from dataclasses import dataclass

from dp_accounting.pld import common, pld_pmf

from privproj.composition.dominating_pairs import DominatingPair
from privproj.errors import PrecisionLimit
from privproj.numerics.enclosure import Enclosure, next_up

FFT_NOISE = 2e-13
"""Absolute rounding noise of dp-accounting's FFT in a composed delta, whatever the number of steps.

Measured on Gaussian runs (8e-14 at 1e4 steps) with a factor of 3 to 5 on top, not proved. It is added to every delta:
the soundness of this composer rests on it. Proof.
"""

FFT_NOISE_PER_STEP = 2e-16
"""The same for each step: measured on Gaussian runs up to 1e6 steps (4e-17 a step), with a factor of 5. Proof."""

LEAST_DELTA_OVER_NOISE = 50.0
"""A delta below this many times the noise is refused. Any value is sound. Contract."""

PEER_TRUNCATED_MASS = 1e-15
"""The tail mass that dp-accounting cuts by its default; here only the size of a grid is told by it. Speed only."""

PEER_REMEDY = "use the default composer, ask for a larger delta, add noise, or use a Renyi bound"
"""What an error of this composer advises. Contract."""

MOST_PEER_CELLS = 2**23
"""Cells that a grid may have; one with more is refused. Contract."""

PeerOrder = list[tuple[DominatingPair, int]]
"""The dominating pairs of a run in one order, each with its number of steps."""


@dataclass(frozen=True)
class _PeerCurve:
    """The curve of a composed run: the larger of the two orders. Lower ends are not known."""

    distributions: tuple[pld_pmf.PLDPmf, ...]
    noise: float
    numerics: dict[str, object]

    @property
    def floor(self) -> float:
        """The smallest composed delta that is answered.

        Where delta would be smaller, this number is answered instead.
        """
        return LEAST_DELTA_OVER_NOISE * self.noise

    def log_delta(self, eps: float) -> Enclosure:
        """``ln delta(eps)``, never below the floor (which is then a sound, loose answer)."""
        delta = max(float(pmf.get_delta_for_epsilon(eps)) for pmf in self.distributions) + self.noise
        return Enclosure(-math.inf, math.log(min(1.0, max(delta, self.floor))))

    def epsilon(self, log_delta: float) -> Enclosure:
        """``eps(delta)``; raises :class:`PrecisionLimit` below the floor or where losses leave double precision."""
        delta = math.exp(log_delta)
        if delta < self.floor:
            raise PrecisionLimit(
                f"expected a composed delta of at least {self.floor:.1e}, got {delta:.3g}; {PEER_REMEDY}"
            )
        eps = max(float(pmf.get_epsilon_for_delta(delta - self.noise)) for pmf in self.distributions)
        if eps == math.inf:
            raise PrecisionLimit(f"expected losses that double precision can hold, got larger ones; {PEER_REMEDY}")
        return Enclosure(-math.inf, next_up(max(eps, 0.0)))


def compose(orders: list[PeerOrder]) -> _PeerCurve:
    """The curve of a run from the dominating pairs of its phases, in one order or in both; rounding is measured only.

    Raises :class:`PrecisionLimit` for a grid of more than :data:`MOST_PEER_CELLS` cells.
    """
    whole = tuple(_compose_order(order) for order in orders)
    steps = sum(steps for _, steps in orders[0])
    noise = FFT_NOISE + FFT_NOISE_PER_STEP * steps
    numerics = {"composer": "dp-accounting", "grid_step": orders[0][0][0].step}
    numerics |= {"grid_points": sum(len(pair.cells) for pair, _ in orders[0])}
    numerics |= {"added_to_delta": noise, "rounding": "measured, not proved"}
    return _PeerCurve(whole, noise, numerics)


def _compose_order(order: PeerOrder) -> pld_pmf.PLDPmf:
    """The law of all phases of one order."""
    first, *others = (_self_compose_pair(pair, steps) for pair, steps in order)
    for other in others:
        first = first.compose(other)
    return first


def _self_compose_pair(pair: DominatingPair, steps: int) -> pld_pmf.PLDPmf:
    """The law of ``steps`` releases of one pair; raises :class:`PrecisionLimit` before a grid that is too large is
    made.

    It is dense from the start, because composing a sparse law raises its size to the power of the steps.
    """
    width = int(pair.cells[-1] - pair.cells[0]) + 1
    _check_cell_count(width, pair.step)
    cells = dict(zip(pair.cells.tolist(), pair.masses.tolist(), strict=True))
    single = pld_pmf.create_pmf(cells, pair.step, pair.at_infinity, pessimistic_estimate=True).to_dense_pmf()
    if steps * width > MOST_PEER_CELLS:
        lower, upper = common.compute_self_convolve_bounds(_dense_masses(pair, width), steps, PEER_TRUNCATED_MASS)
        _check_cell_count(upper - lower + 1, pair.step)
    return single.self_compose(steps) if steps > 1 else single


def _dense_masses(pair: DominatingPair, width: int) -> list[float]:
    """The masses of every cell, also of the empty ones."""
    masses = [0.0] * width
    for cell, mass in zip((pair.cells - pair.cells[0]).tolist(), pair.masses.tolist(), strict=True):
        masses[cell] = mass
    return masses


def _check_cell_count(cells: float, step: float) -> None:
    """Raise :class:`PrecisionLimit` for a grid that would take too much memory."""
    if not cells <= MOST_PEER_CELLS:
        given = f"discretization={step:.3g} with {cells:.2g} cells"
        raise PrecisionLimit(f"expected a grid of at most {MOST_PEER_CELLS:.2g} cells, got {given}; {PEER_REMEDY}")
