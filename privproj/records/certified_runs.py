"""Runs proved in ball arithmetic: the phases of a run in balls, and the grid that a certificate keeps (C29).

A grid is a free parameter of the proof: any grid proves a bound, a good one a tight one. It is proposed in floats, kept
in the certificate, and read again as what it is, plain numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from privproj.accounting.phase import Phase
from privproj.composition.compose import releases_of
from privproj.curves.profile import PrivacyProfile
from privproj.errors import InvalidParameter, PrecisionLimit, Refused
from privproj.mechanisms import M2, Mechanism
from privproj.numerics.search import find_crossing
from privproj.records.data_file import LIST, read_table
from privproj.result import as_plain_value
from privproj.runs import Run
from privproj.runs.sampling import NeighbouringRelation
from privproj.validation import TABLE, number, quoted, whole_number

if TYPE_CHECKING:
    from flint import arb

    from privproj.rigorous.allocation import EpochGrid
    from privproj.rigorous.composition import Grid, Releases, Window
    from privproj.rigorous.profiles import BallProfile

MOST_CELLS = 1 << 19
"""Largest window of a lattice, in cells: a run of 1e5 releases has a quarter of them. Contract."""

MOST_WORK = 1 << 21
"""Most cells of all windows, for each kind of release and each 64 bits of precision: a minute, 500 MB. Contract."""

MOST_PLACES = 1 << 14
"""Most knots of all phases, for each 64 bits of precision and the effort that a profile takes at each. At delta 1e-5 a
run has some hundred at 128 bits, at 1e-60 some thousand at 320. Contract."""

MOST_RANK = 10**5
"""Largest rank of M2 in a run: the law of its shift, an incomplete Beta function, takes minutes above it. Contract."""

LEAST_LOG10_DELTA = -250.0
"""Least decimal logarithm of a delta that the floats can propose a grid for. Contract."""

MOST_KNOTS = 20_000
"""Most places at which the profile of a phase is looked at. Contract."""

MOST_IN_GROUP = 32
"""Records of a person that a certificate is about at most: each value of a profile takes as many. Contract."""

MOST_PHASES = 100
"""Most phases of a run that is certified. Contract."""

MOST_EPOCH_GRIDS = 16
"""Most grids of one epoch. Contract."""

MOST_LEVEL = 900
"""Largest ratio of a release, and finest step of ratios, as powers of two. Contract."""

LARGEST_LOSS = 1e5
"""Largest loss of one release, in nats, at which a profile is looked at. Contract."""

LEAST_BITS = 128
"""Least working precision of a run, in bits. Speed only."""

MOST_BITS = 4096
"""Largest working precision of a run, in bits. Contract."""

LEAST_EPSILON = 1e-9
"""Least epsilon above 0 that is sought. Contract."""

ORDER = number("an order of Chernoff's bound above 0 and at most 1e6", 0.0, 1e6, open_low=True)
"""An order of Chernoff's bound. Contract."""

WINDOW = {
    "first": whole_number("a window whose first cell is at most 2^40 away", -(1 << 40), 1 << 40),
    "size": whole_number(f"a window of 2 to {MOST_CELLS} cells", 2, MOST_CELLS),
    "right": ORDER,
    "left": ORDER,
}
"""What a window holds. Contract."""

EPOCH = {
    "level": whole_number(f"a level of at most {MOST_LEVEL} in size", -MOST_LEVEL, MOST_LEVEL),
    "knots": LIST,
    "window": TABLE,
}
"""What a grid of an epoch holds. Contract."""

GRID = {
    "step": number("a step above 0 and at most 100 nats", 0.0, 100.0, open_low=True),
    "knots": LIST,
    "windows": LIST,
}
"""What a grid of a run holds, beside those of its epochs. Contract."""


def is_run(phases: Sequence[Phase]) -> bool:
    """True unless there is one release on the whole data set, or a closed form in balls for several."""
    run, bound = phases[0].run, phases[0].bound
    if len(phases) > 1 or run.sampling_rate != 1.0 or _in_epochs(phases[0]):
        return True
    return run.steps > 1 and not bound.provable_steps


def check_provable(phases: Sequence[Phase]) -> None:
    """Raise :class:`Refused` where there is no enclosure of one of the phases, or of the way its batches are drawn."""
    if len(phases) > MOST_PHASES:
        raise Refused(f"certificates are about at most {MOST_PHASES} phases, got {len(phases)}")
    for phase in phases:
        run, bound, alike = phase.run, phase.bound, _one_layer(phase.mechanism)
        lacks = {
            f"certificates for group_size={run.group_size} are about Gaussian noise by its analytic bound on Poisson "
            f"batches, and at most {MOST_IN_GROUP} records": run.group_size > 1 and not _is_group_in_balls(phase),
            "certificates are about whole batches; expected no max_batch_size": run.max_batch_size is not None,
            "certificates are about a fixed clip; expected no adaptive_clipping_sigma": phase.mechanism.adapts_clip,
            f"no enclosure for {bound.name}; certificates cover {', '.join(provable_names())}": bound.provable is None,
            "certificates are about one projected layer, or layers of one shape under a joint clip; expected dim and "
            "rank, or one layer": isinstance(alike, M2) and bool(alike.layers) and not alike.unprojected,
        }
        for reason, holds in lacks.items():
            if holds:
                raise Refused(reason)


def _is_group_in_balls(phase: Phase) -> bool:
    """True where the steps of a person with several records have an enclosure (C37)."""
    run, is_gaussian = phase.run, (phase.mechanism.name, phase.bound.name) == ("gaussian", "analytic")
    sampled = run.sampling_rate < 1.0 and run.scheme.draws_records_apart
    return is_gaussian and sampled and run.group_size <= MOST_IN_GROUP


def provable_names() -> list[str]:
    """The names ``mechanism.bound`` of all bounds that can be certified."""
    from privproj.mechanisms.registry import registry

    return [f"{bound.mechanism.name}.{bound.name}" for bound in registry() if bound.provable is not None]


def ball_profile(phase: Phase, steps: int = 1) -> "BallProfile":
    """The profile of one release (or of several, where a closed form is known) in balls, as the relation has it."""
    assert phase.bound.provable is not None
    built: Mechanism = phase.mechanism
    if phase.run.relation is NeighbouringRelation.REPLACE:
        built = built.for_replacement()
    return phase.bound.provable(_one_layer(built), steps)


def _one_layer(mechanism: Mechanism) -> Mechanism:
    """The mechanism of one layer, where several of one shape are as private as one."""
    return mechanism.alike if isinstance(mechanism, M2) else mechanism


@dataclass(frozen=True)
class _RunGrids:
    """The free parameters of the proof of a run: its grid, and those of the epochs of phases that have such."""

    grid: "Grid"
    epochs: "tuple[tuple[tuple[EpochGrid, ...], ...], ...]" = ()


def _releases_in_balls(phases: Sequence[Phase], grids: _RunGrids) -> "list[Releases]":
    """The releases of all phases in balls, sampled as their runs say."""
    from privproj.rigorous.allocation import epochs_in_balls
    from privproj.rigorous.composition import BallGroup, BallPhase

    found, epochs = [], iter(grids.epochs)
    for phase in phases:
        run, profile = phase.run, ball_profile(phase)
        if _in_epochs(phase):
            found += epochs_in_balls(profile, run, next(epochs))
        elif run.group_size > 1:
            z = phase.mechanism.noise_multiplier or 0.0
            found.append(BallGroup(z, run.steps, run.sampling_rate, run.group_size))
        else:
            found.append(BallPhase(profile, run.steps, run.sampling_rate, _is_one_sided(phase)))
    return found


def _in_epochs(phase: Phase) -> bool:
    """True where a record picks its batches at random, and an epoch is one release."""
    return phase.run.allocates and not phase.run.single


def _is_one_sided(phase: Phase) -> bool:
    """True where the pair of a release is not its own mirror image."""
    return _in_epochs(phase) or (phase.run.sampling_rate < 1.0 and phase.run.scheme.is_one_sided)


def _blocks(phase: Phase) -> list[int]:
    """How many batches each block of an epoch has, or 1 for other releases: one number for each release in balls."""
    from privproj.composition.allocation import blocks_of

    return [size for size, _ in blocks_of(phase.run)] if _in_epochs(phase) else [1]


def _profiles_in_floats(phases: Sequence[Phase]) -> list[tuple[PrivacyProfile, Run]]:
    """The profile of one release of each phase in floats, and its run; grids are proposed from them."""
    found = []
    for phase in phases:
        form, run = phase.release()
        if not isinstance(form, PrivacyProfile):
            raise Refused(f"no enclosure for a run by {phase.bound.name}, which has no privacy profile")
        found.append((form, run))
    return found


class CertifiedRun:
    """A run in balls on one grid, at one working precision: what is proved of its delta at every epsilon."""

    def __init__(self, phases: Sequence[Phase], grids: _RunGrids, bits: int) -> None:
        from flint import ctx

        from privproj.rigorous.composition import RunInBalls

        self.grids, self.bits = grids, bits
        _check_work(phases, grids, bits)
        with ctx.workprec(bits):
            self.run = RunInBalls(_releases_in_balls(phases, grids), grids.grid)

    def upper(self, epsilon: float) -> "arb":
        """An upper bound of delta, an exact number."""
        from flint import ctx

        with ctx.workprec(self.bits):
            return self.run.upper(epsilon)

    def lower(self, epsilon: float) -> "arb":
        """A lower bound of the delta of the bound, an exact number; 0 where none is known."""
        from flint import ctx

        with ctx.workprec(self.bits):
            return self.run.lower(epsilon)

    def is_sharp(self, log_delta: float) -> bool:
        """True if the precision is enough: the radii of the balls are at most a millionth of delta."""
        blur = self.run.blur
        if not blur.is_finite():
            return False
        return not blur > 0 or float(blur.log()) <= log_delta + math.log(1e-6)

    def epsilon(self, log_delta: float, guess: float) -> float:
        """The least epsilon, to about a relative 1e-9, whose delta is certainly at most ``e^log_delta``."""

        def excess(eps: float) -> float:
            upper = self.upper(eps)
            return (float(upper.log()) if upper > 0 else -math.inf) - log_delta

        if excess(0.0) <= 0.0:
            return 0.0
        start = guess if LEAST_EPSILON < guess < math.inf else 1.0
        found = find_crossing(excess, start, low=LEAST_EPSILON, high=1e9, spread=1e-3, rtol=1e-9).upper
        if found == math.inf:
            raise PrecisionLimit(
                "expected a run whose delta the proof can reach on its lattice; take the answer in floating point, "
                "whose errors are bounded too, or ask for a larger delta"
            )
        return found


def prove_run(phases: Sequence[Phase], log_delta: float, guess: float) -> CertifiedRun:
    """The run in balls on a grid that is good near the delta ``e^log_delta``, where epsilon is about ``guess``.

    Grids up to four times as coarse as the default one are tried until one does not take too much work, and then
    grids up to four times as fine until the certified epsilon is close to the guess. Raises :class:`PrecisionLimit`
    where even a coarse one takes too long a window or too high a precision.
    """
    if log_delta < LEAST_LOG10_DELTA * math.log(10.0):
        raise PrecisionLimit(f"expected a delta of at least 1e{LEAST_LOG10_DELTA:.0f} for the certificate of a run")
    best, fineness = None, 1.0
    while True:
        try:
            best = _prove_on_grid(phases, log_delta, fineness)
        except PrecisionLimit:
            if best is None and fineness > 0.25:
                fineness *= 0.5
                continue
            if best is None:
                raise
            return best
        if fineness >= 4.0 or best.epsilon(log_delta, guess) <= guess * (1.0 + 5e-4):
            return best
        fineness *= 2.0


def _prove_on_grid(phases: Sequence[Phase], log_delta: float, fineness: float) -> CertifiedRun:
    """The run in balls on one grid, at the first precision at which its balls are narrow enough."""
    from privproj.rigorous.allocation import propose_epochs
    from privproj.rigorous.grids import propose_grid

    profiles = _profiles_in_floats(phases)
    releases = [release for phase in profiles for release in releases_of(*phase)]
    grid = propose_grid(releases, log_delta, fineness)
    chosen = [floats for floats, phase in zip(profiles, phases, strict=True) if _in_epochs(phase)]
    composed = sum(run.steps for _, run in releases)
    grids = _RunGrids(grid, tuple(propose_epochs(*floats, log_delta, composed, fineness) for floats in chosen))
    steps = sum(phase.run.steps for phase in phases)
    # log2(T / delta) bits are lost beside 1, and a hundred are kept.
    bits = max(LEAST_BITS, 64 * math.ceil(((math.log(steps) - log_delta) / math.log(2.0) + 100.0) / 64.0))
    while bits <= MOST_BITS:
        found = CertifiedRun(phases, grids, bits)
        if found.is_sharp(log_delta):
            return found
        bits *= 2
    raise PrecisionLimit(f"expected a run whose delta {MOST_BITS} bits can tell from rounding; ask for a larger delta")


def _check_work(phases: Sequence[Phase], grids: _RunGrids, bits: int) -> None:
    """Raise :class:`PrecisionLimit` for grids on which a run takes too long, in particular those of a forged file."""
    for mechanism in (_one_layer(phase.mechanism) for phase in phases):
        if isinstance(mechanism, M2) and (mechanism.rank or 0) > MOST_RANK:
            raise PrecisionLimit(f"expected a rank of at most {MOST_RANK:g} in a run to prove, got {mechanism.rank}")
    inner = [grid for phase in grids.epochs for block in phase for grid in block]
    windows = [window.size for window in grids.grid.windows]
    cells = len(grids.grid.knots) * sum(windows) + sum(grid.window.size for grid in inner)
    places = sum(map(len, grids.grid.knots)) + sum(len(grid.knots) for grid in inner)
    dearest = max(ball_profile(phase).effort * phase.run.group_size for phase in phases)
    too_large = max(windows) > MOST_CELLS or max(map(len, grids.grid.knots)) > MOST_KNOTS
    if too_large or cells * bits > 64 * MOST_WORK or places * dearest * bits > 64 * MOST_PLACES:
        raise PrecisionLimit(
            f"expected a run whose proof takes a minute or two, got one of {cells} cells and {places} places at {bits} "
            "bits; certify fewer steps or a larger delta, or take the answer in floating point, whose errors are "
            "bounded too"
        )


def grid_record(grids: _RunGrids) -> dict[str, Any]:
    """The grids as plain values, as a certificate keeps them."""
    plain: Any = as_plain_value(asdict(grids))
    return {**plain["grid"], **({"epochs": plain["epochs"]} if grids.epochs else {})}


def grid_from_record(given: Any, phases: Sequence[Phase]) -> _RunGrids:
    """The grids for these phases that plain values describe; raises :class:`InvalidParameter` for what is none."""
    from privproj.rigorous.composition import Grid

    blocks = [_blocks(phase) for phase in phases]
    chosen = [sizes for sizes, phase in zip(blocks, phases, strict=True) if _in_epochs(phase)]
    table = read_table("grid", given, GRID | ({"epochs": LIST} if chosen else {}))
    orders = 2 if any(map(_is_one_sided, phases)) else 1
    counts = {"knots": sum(map(len, blocks)), "windows": orders} | ({"epochs": len(chosen)} if chosen else {})
    for name, count in counts.items():
        _check(len(table[name]) == count, len(table[name]), f"{count} {name} for this run")
    for cells in table["knots"]:
        far = max(map(abs, cells)) * table["step"] if _are_cells(cells) else math.inf
        words = f"{CELLS}, 0 among them, for losses of at most {LARGEST_LOSS:g} nats"
        _check(far <= LARGEST_LOSS and 0 in cells, cells, words)
    grid = Grid(table["step"], tuple(map(tuple, table["knots"])), tuple(map(_window_from, table["windows"])))
    return _RunGrids(grid, tuple(map(_epoch_grids_from, table.get("epochs", ()), chosen)))


def _epoch_grids_from(given: Any, sizes: Sequence[int]) -> "tuple[tuple[EpochGrid, ...], ...]":
    """The grids of the blocks of an epoch that plain values describe; blocks of one batch have none."""
    blocks = sum(size > 1 for size in sizes)
    _check(isinstance(given, list) and len(given) == blocks, given, f"grids for each of {blocks} sizes of blocks")
    found = []
    for block in given:
        fine = isinstance(block, list) and 1 <= len(block) <= MOST_EPOCH_GRIDS
        _check(fine, block, f"1 to {MOST_EPOCH_GRIDS} grids of an epoch")
        found.append(tuple(map(_epoch_grid_from, block)))
    return tuple(found)


def _epoch_grid_from(given: Any) -> "EpochGrid":
    """The grid of an epoch that plain values describe."""
    from privproj.rigorous.allocation import EpochGrid

    table = read_table("grid", given, EPOCH)
    cells, level = table["knots"], table["level"]
    fine = _are_cells(cells) and cells[0] >= 1 and cells[-1].bit_length() + level <= MOST_LEVEL
    _check(fine, cells, f"{CELLS}, for ratios above 0 and of at most 2^{MOST_LEVEL}")
    return EpochGrid(level, tuple(cells), _window_from(table["window"]))


CELLS = f"3 to {MOST_KNOTS} whole numbers in increasing order as knots"
"""What knots are, in words."""


def _are_cells(cells: Any) -> bool:
    """True for knots."""
    whole = isinstance(cells, list) and all(type(cell) is int for cell in cells)
    return whole and 3 <= len(cells) <= MOST_KNOTS and all(a < b for a, b in pairwise(cells))


def _window_from(given: Any) -> "Window":
    """The window that plain values describe."""
    from privproj.rigorous.composition import Window

    table = read_table("grid", given, WINDOW)
    _check(table["size"].bit_count() == 1, table["size"], "a window whose size is a power of two")
    return Window(**table)


def _check(fine: bool, value: object, expected: str) -> None:
    """Raise :class:`InvalidParameter` about the grid of a certificate unless all is fine."""
    if not fine:
        raise InvalidParameter("grid", quoted(value), f"{expected}, in the certificate")
