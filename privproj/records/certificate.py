"""Certificates: a question and its number, proved in ball arithmetic, saved as JSON and checked by proving it again.

A certificate holds a question, as a run file does, an epsilon, and two decimal numbers between which the delta of the
bound lies at this epsilon (each double taken exactly). It has no words of its own: what the number rests on is said by
whoever reads the question. Nothing in it is taken on trust when it is checked. The enclosure is computed again, that
of one release at another precision. Claims C21 and C29 say what is proved.

For a run the phases are composed in balls on a grid (C29), which is a free parameter of the proof: any grid proves a
bound, a good one a tight one. It is proposed in floats, kept in the certificate, and read again as what it is, plain
numbers.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privproj.accounting.phase import Phase
from privproj.accounting.question import Question, question_about
from privproj.accounting.spec import check_keys
from privproj.assumptions import ROUNDING_AS_MEASURED
from privproj.composition.compose import releases_of
from privproj.curves.profile import PrivacyProfile
from privproj.errors import InvalidParameter, NotConverged, PrecisionLimit, Refused, within
from privproj.lazy import import_extra
from privproj.mechanisms import M2, Mechanism
from privproj.numerics.search import find_crossing
from privproj.records import files
from privproj.records.run_file import from_data
from privproj.result import Outcome, Result, Side, Status, as_plain_value
from privproj.runs import Run
from privproj.runs.sampling import NeighbouringRelation
from privproj.runs.targets import delta_target
from privproj.validation import LARGEST_EPSILON, NUMBER, TABLE, WHOLE, Kind, number, quoted, real, whole_number

if TYPE_CHECKING:
    from flint import arb

    from privproj.rigorous.allocation import EpochGrid
    from privproj.rigorous.composition import Grid, Releases, Window
    from privproj.rigorous.profiles import BallProfile

SCHEMA = 4
"""Version of the certificate's fields. Contract."""

WRITTEN_SPREAD = Decimal("4e-19")
"""Relative distance by which the ends that are written lie outside of their ball. Soundness.

The radius of a ball is below 2^-64 = 5.4e-20 of the number, so any other such ball around it lies within the ends.
"""

RUN_SPREAD = Decimal("1e-9")
"""The same for a run, whose free parameters the floats of another machine may choose a little differently.

The upper end of a run lies so much above the bound that was computed, and the target is met by it. Contract.
"""

MOST_TRIES = 12
"""How often the noise of a sigma query is raised before it is refused. Contract."""

WRITTEN_DIGITS = 25
"""Decimal digits of the two ends that are written."""

DIGITS = re.compile(r"[0-9]{1,60}(\.[0-9]{1,60})?([eE][+-]?[0-9]{1,15})?", re.ASCII)
"""How the two ends are written: decimal digits with an exponent, no sign, no spaces, no nan."""

DECIMAL = Kind("a decimal number", lambda text: isinstance(text, str) and bool(DIGITS.fullmatch(text)), {})
"""The text of an end. Contract."""


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

CELLS = f"3 to {MOST_KNOTS} whole numbers in increasing order as knots"
"""What knots are, in words."""

KNOTS = Kind(
    CELLS,
    lambda cells: (
        isinstance(cells, list)
        and 3 <= len(cells) <= MOST_KNOTS
        and all(type(cell) is int for cell in cells)
        and all(a < b for a, b in pairwise(cells))
    ),
    {},
    lambda name, cells: tuple(cells),
)
"""Places at which a profile is looked at. Contract."""

SIZE = Kind(
    f"a power of two from 2 to {MOST_CELLS} as the size of a window",
    lambda size: type(size) is int and 2 <= size <= MOST_CELLS and size.bit_count() == 1,
    {},
)
"""Cells of a window. Contract."""

WINDOW = {
    "first": whole_number("a window whose first cell is at most 2^40 away", -(1 << 40), 1 << 40),
    "size": SIZE,
    "right": ORDER,
    "left": ORDER,
}
"""What a window holds. Contract."""

EPOCH = {
    "level": whole_number(f"a level of at most {MOST_LEVEL} in size", -MOST_LEVEL, MOST_LEVEL),
    "knots": KNOTS,
    "window": TABLE,
}
"""What a grid of an epoch holds. Contract."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proved statement: ``lower <= delta(epsilon) <= upper`` for one question, and the target that it meets.

    :func:`privproj.records.certify` makes one.

    Attributes:
        question: The data of a run file: the phases, each with its mechanism, its bound and its run.
        epsilon: The epsilon of the statement.
        target: The ``delta`` or ``log10_delta`` that ``upper`` does not exceed.
        lower: The lower end of delta, as decimal text, since it may lie below double precision; "0" if not known.
        upper: The upper end of delta, as decimal text.
        bits: A working precision that is enough for the enclosure.
        grid: The free parameters of the proof: the grid of a run, or for one release for instance a tangent. Any values
            prove the statement.
        schema: The version of these fields.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.records import certify
    >>> found = certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5))
    >>> round(found.epsilon, 4), found.target, float(found.upper) <= 1e-5
    (4.3772, {'delta': 1e-05}, True)
    """

    question: dict[str, Any]
    epsilon: float
    target: dict[str, float]
    lower: str
    upper: str
    bits: int
    grid: dict[str, Any]
    schema: int = SCHEMA

    @property
    def record(self) -> dict[str, Any]:
        """The JSON object that the file holds."""
        return {"certificate": as_plain_value(asdict(self))}

    def save(self, path: str | Path) -> None:
        """Write the certificate to a JSON file, whole or not at all.

        Args:
            path: The file, which is replaced if it exists.
        """
        import json

        text = json.dumps(self.record, indent=2, allow_nan=False) + "\n"
        files.write_atomically(path, lambda file: file.write(text.encode()))


# --- a question and its data --------------------------------------------------------------------------


def _question_from(data: dict[str, Any]) -> Question:
    """The question of a certificate; names of phases and what is merely planned are no part of what it claims.

    Raises :class:`InvalidParameter` for what no run file has, and :class:`Refused` where there is no enclosure of it.
    """
    if list(data) != ["phase"]:
        raise InvalidParameter("question", quoted([*data]), "phases and nothing else")
    if isinstance(data["phase"], list) and len(data["phase"]) > MOST_PHASES:
        raise Refused(f"certificates are about at most {MOST_PHASES} phases, got {len(data['phase'])}")
    schedule = from_data(data, "question")
    check_provable(schedule.phases)
    if len(schedule.phases) == 1:
        return question_about(schedule.phases[0])
    return replace(schedule, phases=tuple(replace(phase, name="", planned=False) for phase in schedule.phases))


def _data_of(question: Question) -> dict[str, Any]:
    """A question as the data of a run file, without the names of its phases: the one way in which it is written."""
    phases = [{key: value for key, value in phase.as_dict().items() if key != "name"} for phase in question.phases]
    return {"phase": phases}


def _question_of(result: Result) -> Question:
    """The question that a result answers; raises as :func:`_question_from` does."""
    phases: Any = result.mechanism.get("phases")
    if phases is None:
        own = {"layer" if key == "layers" else key: value for key, value in result.mechanism.items()}
        entry = {**own, "mechanism": own.pop("name"), "bound": result.bound, **result.run}
        phases = [{key: value for key, value in entry.items() if key != "assumes" and value is not None}]
    return _question_from({"phase": phases})


# --- runs in balls ------------------------------------------------------------------------------------


def is_run(phases: Sequence[Phase]) -> bool:
    """True unless there is one release on the whole data set, or a closed form in balls for several."""
    run, bound = phases[0].run, phases[0].bound
    if len(phases) > 1 or run.sampling_rate != 1.0 or _in_epochs(phases[0]):
        return True
    return run.steps > 1 and not bound.provable_steps


def check_provable(phases: Sequence[Phase]) -> None:
    """Raise :class:`Refused` where there is no enclosure of one of the phases, or of the way its batches are drawn."""
    for phase in phases:
        run, bound, alike = phase.run, phase.bound, _one_layer(phase.mechanism)
        is_gaussian = (phase.mechanism.name, bound.name) == ("gaussian", "analytic")
        is_sampled = run.sampling_rate < 1.0 and run.scheme.draws_records_apart
        # The steps of a person with several records have an enclosure (C37).
        group_in_balls = is_gaussian and is_sampled and run.group_size <= MOST_IN_GROUP
        lacks = {
            f"certificates for group_size={run.group_size} are about Gaussian noise by its analytic bound on Poisson "
            f"batches, and at most {MOST_IN_GROUP} records": run.group_size > 1 and not group_in_balls,
            "certificates are about whole batches; expected no max_batch_size": run.max_batch_size is not None,
            "certificates are about a fixed clip; expected no adaptive_clipping_sigma": phase.mechanism.adapts_clip,
            f"no enclosure for {bound.name}; certificates cover {', '.join(provable_names())}": bound.provable is None,
            "certificates are about one projected layer, or layers of one shape under a joint clip; expected dim and "
            "rank, or one layer": isinstance(alike, M2) and bool(alike.layers) and not alike.unprojected,
        }
        for reason, holds in lacks.items():
            if holds:
                raise Refused(reason)


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
    from privproj.composition.allocation import blocks_of
    from privproj.rigorous.composition import Grid

    # How many batches each block of an epoch has, or 1 for other releases: one number for each release in balls.
    blocks = [[size for size, _ in blocks_of(phase.run)] if _in_epochs(phase) else [1] for phase in phases]
    chosen = [sizes for sizes, phase in zip(blocks, phases, strict=True) if _in_epochs(phase)]
    places, orders = sum(map(len, blocks)), 2 if any(map(_is_one_sided, phases)) else 1
    kinds = {
        "step": number("a step above 0 and at most 100 nats", 0.0, 100.0, open_low=True),
        "knots": files.list_of("knots for this run", KNOTS, places, places),
        "windows": files.list_of("windows for this run", replace(TABLE, check=_window_from), orders, orders),
    }
    table = files.read_table("grid", given, kinds | ({"epochs": files.LIST} if chosen else {}))
    for cells in table["knots"]:
        if 0 not in cells or max(map(abs, cells)) * table["step"] > LARGEST_LOSS:
            words = f"{CELLS}, 0 among them, for losses of at most {LARGEST_LOSS:g} nats"
            raise InvalidParameter("grid", quoted(cells), words)
    grid = Grid(table["step"], table["knots"], table["windows"])
    if not chosen:
        return _RunGrids(grid)
    epochs = files.read_value(
        "epochs", table["epochs"], files.list_of("epochs for this run", files.LIST, len(chosen), len(chosen))
    )
    # Blocks of one batch have no grid.
    counts = [sum(size > 1 for size in sizes) for sizes in chosen]
    of_block = files.list_of("grids of an epoch", replace(TABLE, check=_epoch_grid_from), 1, MOST_EPOCH_GRIDS)
    of_phase = [files.list_of("sizes of blocks", of_block, count, count) for count in counts]
    return _RunGrids(grid, tuple(files.read_value("epochs", *pair) for pair in zip(epochs, of_phase, strict=True)))


def _epoch_grid_from(name: str, given: Any) -> "EpochGrid":
    """The grid of an epoch that plain values describe."""
    from privproj.rigorous.allocation import EpochGrid

    table = files.read_table(name, given, EPOCH)
    cells, level = table["knots"], table["level"]
    if cells[0] < 1 or cells[-1].bit_length() + level > MOST_LEVEL:
        raise InvalidParameter(name, quoted(cells), f"{CELLS}, for ratios above 0 and of at most 2^{MOST_LEVEL}")
    return EpochGrid(level, cells, _window_from(name, table["window"]))


def _window_from(name: str, given: Any) -> "Window":
    """The window that plain values describe."""
    from privproj.rigorous.composition import Window

    return Window(**files.read_table(name, given, WINDOW))


# --- proving ------------------------------------------------------------------------------------------


def certify(result: Result) -> Certificate:
    """Prove an answer: enclose delta at its epsilon in ball arithmetic, and compare.

    The answer for a run of several releases is composed anew in balls. The certificate then says what is proved by
    that: its epsilon, its delta or its noise multiplier may differ a little from those of the floating-point answer
    (:func:`privproj.records.prove` puts them into the answer). It needs python-flint, which the extra ``certify``
    installs.

    Args:
        result: An answer to an epsilon, delta or sigma query, or for a run file.

    Returns:
        The certificate.

    Raises:
        InvalidParameter: python-flint is not installed, or the parameters are not those that the tool writes.
        Refused: There is no enclosure for this bound or run, or the result is no such answer or was altered.
        NotConverged: The floating-point answer is on the unsafe side of its enclosure; this is a defect, please report
            it.
        PrecisionLimit: The enclosure stays too wide at every precision, or takes too long a lattice.

    >>> from privproj import M2, epsilon
    >>> from privproj.records import certify
    >>> found = certify(epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5))
    >>> float(found.lower) <= float(found.upper) <= 1e-5
    True
    """
    return prove(result)[1]


def prove(result: Result) -> tuple[Result, Certificate]:
    """Return an answer as it is proved in ball arithmetic, and its certificate.

    Args:
        result: As :func:`privproj.records.certify` takes it.

    Returns:
        The answer with the number that is proved, and with what is proved under "certified" in its numerics, and the
        certificate. For one release the number is the same; for a run it is composed anew and may differ a little.

    Raises:
        InvalidParameter: As :func:`privproj.records.certify` raises it.
        Refused: There is no enclosure for this bound or run.
        NotConverged: The floating-point answer is on the unsafe side.
        PrecisionLimit: The enclosure stays too wide, or takes too long a lattice.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.records import prove
    >>> plain = epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, steps=100, sampling_rate=0.01)
    >>> answer, certificate = prove(plain)
    >>> answer.value == certificate.epsilon, abs(answer.value / plain.value - 1) < 1e-3
    (True, True)
    """
    _check_answered(result)
    flint = import_extra("flint", "a certificate", "certify")
    # A proof in balls does not rest on the rounding of floats.
    if ROUNDING_AS_MEASURED in result.promises:
        promises = tuple(words for words in result.promises if words != ROUNDING_AS_MEASURED)
        result = replace(result, promises=promises, status=result.status if promises else Status.PROVED)
    question = _question_of(result)
    epsilon = float(result.epsilon or 0.0)
    if is_run(question.phases):
        result, question, run = _prove_run(result, question)
        epsilon, grid, bits = float(result.epsilon or 0.0), grid_record(run.grids), run.bits
        shown: dict[str, Any] = {"witness": {}, "grid_step": run.grids.grid.step}
        ends = _written_ends(run.lower(epsilon), run.upper(epsilon), RUN_SPREAD)
        if result.quantity == "delta":
            result = _with_delta(result, Decimal(ends[1]))
    else:
        profile = ball_profile(question.only, question.only.run.steps)
        grid = profile.witness(epsilon)
        ball, bits = enclosure(profile, epsilon, grid)
        _check_side(result, ball)
        shown, ends = {"witness": grid}, _written_ends(ball, ball, WRITTEN_SPREAD)
    certificate = Certificate(
        question=_data_of(question),
        epsilon=epsilon,
        target=target_field(result),
        lower=ends[0],
        upper=ends[1],
        bits=bits,
        grid=grid,
    )
    if not ball_meets(certificate.target, certificate.upper):
        raise Refused("the value of this answer is not what its parameters give")

    note = {"lower": ends[0], "upper": ends[1], "bits": bits, **shown}
    note["arithmetic"] = f"ball arithmetic, python-flint {flint.__version__}"
    return replace(result, numerics={**result.numerics, "certified": note}), certificate


def _check_answered(result: Result) -> None:
    """Raise :class:`Refused` for what is no answer that a certificate could be about."""
    if result.risk is not None:
        raise Refused(
            "a risk has no certificate; expected a target of epsilon and delta, or certify the delta at epsilon 0 of "
            "the noise multiplier that was found, which is its advantage"
        )
    answered = result.outcome is Outcome.OK and result.epsilon is not None and result.log10_delta is not None
    if result.quantity not in ("epsilon", "delta", "sigma") or not answered:
        raise Refused(
            f"expected an answered epsilon, delta or sigma query to certify, got {result.quantity} with outcome "
            f"{result.outcome}"
        )


def _prove_run(result: Result, question: Question) -> tuple[Result, Question, CertifiedRun]:
    """The answer for a run with its epsilon or noise raised to what the balls prove, and the run in balls."""
    target, epsilon = target_field(result), result.epsilon
    assert epsilon is not None and result.log10_delta is not None
    log_delta = result.log10_delta * math.log(10.0)
    # The target is met by the end that is written, which lies RUN_SPREAD above the one that is computed.
    goal = (math.log(target["delta"]) if "delta" in target else log_delta) - 2.0 * float(RUN_SPREAD)
    if result.quantity == "sigma":
        return _with_enough_noise(result, question, goal)
    run = prove_run(question.phases, log_delta, epsilon)
    _check_run_side(result, run)
    if result.quantity == "epsilon":
        epsilon = run.epsilon(goal, epsilon)
        result = _with_value(result, epsilon, epsilon=epsilon)
    return result, question, run


def _check_run_side(result: Result, run: CertifiedRun) -> None:
    """Raise :class:`NotConverged` unless the floating-point ends enclose what the balls enclose."""
    assert result.epsilon is not None
    # A lower end of 0 says nothing: where delta is covered at epsilon 0, what is proved there meets the target too.
    if result.lower and result.quantity == "epsilon" and ball_meets(target_field(result), run.upper(result.lower)):
        raise NotConverged("the lower end of the floating-point epsilon is above what is proved; please report it")
    _check_side(result, run.lower(result.epsilon))


def _with_enough_noise(result: Result, question: Question, goal: float) -> tuple[Result, Question, CertifiedRun]:
    """The answer of a sigma query with so much noise that the balls prove the target, and the run in balls."""
    epsilon, sigma = result.epsilon, result.noise_multiplier
    assert epsilon is not None and sigma is not None
    for _ in range(MOST_TRIES):
        run = prove_run(question.phases, goal, epsilon)
        proved = run.epsilon(goal, epsilon)
        if proved <= epsilon:
            mechanism = {**result.mechanism, "noise_multiplier": sigma}
            return _with_value(result, sigma, noise_multiplier=sigma, mechanism=mechanism), question, run
        _check_run_side(result, run)
        # Epsilon falls at least as fast as 1/z, nearly.
        sigma *= 1.0 + min(1.1 * (proved - epsilon) / max(epsilon, 1e-3), 1.0) + 1e-9
        question = question.with_mechanism(noise_multiplier=sigma)
    raise PrecisionLimit("expected a noise multiplier that is proved to meet the target, found none near the answer")


def _with_delta(result: Result, upper: Decimal) -> Result:
    """The answer of a delta query for a run with the delta that is proved, rounded up."""
    if upper >= 1:
        raise PrecisionLimit("expected a delta below 1 to be proved; ask at a larger epsilon")
    power = float(upper.log10())
    # The logarithm is rounded up by far more than its rounding.
    powers = {"log10_delta": min(power + 1e-12 * abs(power), 0.0)}
    return _with_value(result, _rounded_up(upper), delta=_rounded_up(upper), **powers)


def _with_value(result: Result, value: float, **changes: Any) -> Result:
    """The answer with another value that is proved, and what else that changes."""
    lower = None if result.lower is None else min(result.lower, value)
    return replace(result, value=value, upper=value, lower=lower, **changes)


def _rounded_up(value: Decimal) -> float:
    """The least float that is not below a decimal number."""
    near = float(value)
    return near if Decimal(near) >= value else math.nextafter(near, math.inf)


# --- enclosures ---------------------------------------------------------------------------------------


def enclosure(profile: "BallProfile", epsilon: float, witness: dict[str, float], first: int = 0) -> "tuple[arb, int]":
    """``(ball, bits)``: delta at this epsilon, at the first precision that makes the ball narrow enough.

    The search begins at rung ``first`` of the ladder of precisions.
    """
    from flint import arb

    from privproj.rigorous.balls import PRECISION_LADDER, enclose_to_goal

    return enclose_to_goal(lambda: profile.delta(arb(epsilon), witness), PRECISION_LADDER[first:])


def _written_ends(low: "arb", high: "arb", spread: Decimal = Decimal(0)) -> tuple[str, str]:
    """Ends around two balls as decimal text, each a relative ``spread`` further out; 0 below where nothing is known."""
    from privproj.rigorous.balls import EXACT_DECIMALS, decimal_ends

    down, up = EXACT_DECIMALS.copy(), EXACT_DECIMALS.copy()
    down.prec = up.prec = WRITTEN_DIGITS
    down.rounding, up.rounding = ROUND_FLOOR, ROUND_CEILING
    lower = down.multiply(Decimal(decimal_ends(low, WRITTEN_DIGITS)[0]), 1 - spread)
    upper = up.multiply(Decimal(decimal_ends(high, WRITTEN_DIGITS)[1]), 1 + spread)
    return str(lower) if lower > 0 else "0", str(min(upper, Decimal(1)))


def target_field(result: Result) -> dict[str, float]:
    """What the enclosure must not exceed: the delta that was asked or answered, or its decimal logarithm."""
    if result.delta is not None and result.delta > 1.01e-300:
        return {"delta": result.delta}
    assert result.log10_delta is not None
    return {"log10_delta": result.log10_delta}


def _check_side(result: Result, ball: "arb") -> None:
    """Raise :class:`NotConverged` unless the answer is on the safe side of its enclosure."""
    if not ball_meets(target_field(result), ball):
        sentence = f"the floating-point {result.quantity} is on the unsafe side of its enclosure; please report it"
        raise NotConverged(sentence)


def ball_meets(target: dict[str, float], found: "arb | str") -> bool:
    """True if a whole ball, or a decimal number, is at most the target; a delta of 1 is met by definition."""
    from flint import arb, ctx

    with ctx.workprec(320):
        # A decimal number is read as a ball that holds it.
        upper = arb(found).upper()
        if "delta" in target:
            return bool(upper <= arb(target["delta"])) or target["delta"] >= 1.0
        return bool(upper <= arb(10) ** arb(target["log10_delta"]))


# --- reading ------------------------------------------------------------------------------------------


def load_certificate(path: str | Path) -> Certificate:
    """Read a certificate from its file, and check that it has the form that the tool writes.

    Its claims are not checked here; :func:`privproj.records.verify` does that.

    Args:
        path: A file that :meth:`Certificate.save` wrote.

    Returns:
        The certificate.

    Raises:
        InvalidParameter: The file cannot be read, is no certificate, or says a thing twice.

    >>> import tempfile
    >>> from privproj import Gaussian, epsilon
    >>> from privproj.records import certify, load_certificate
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)).save(file.name)
    ...     round(load_certificate(file.name).epsilon, 4)
    4.3772
    """
    return read_certificate(files.read_bounded(path, "certificate"), path)


def read_certificate(content: bytes, path: str | Path) -> Certificate:
    """The certificate in the bytes of a file; ``path`` is for messages. Raises as :func:`load_certificate` does."""
    data = files.read_json(content, "certificate", path, "a certificate as --certificate writes it")
    with within("certificate"):
        return _from_record(data)


KINDS = {
    "question": TABLE,
    "epsilon": number("an epsilon from 0 to 1e+09", 0.0, LARGEST_EPSILON),
    "target": TABLE,
    "lower": DECIMAL,
    "upper": DECIMAL,
    "bits": whole_number("a precision in bits"),
    "grid": TABLE,
    "schema": WHOLE,
}
"""What the fields of a certificate may be. Contract."""


def _from_record(content: object) -> Certificate:
    """The certificate that a JSON object describes: every key known, none missing, each of its kind.

    Raises :class:`InvalidParameter` for anything else.
    """
    given: Any = content.get("certificate") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(given, dict):
        raise InvalidParameter("certificate", quoted(content), "a certificate as --certificate writes it")
    schema = given.get("schema", SCHEMA)
    if not files.same_json(schema, SCHEMA):
        newer = type(schema) is int and schema > SCHEMA
        remedy = "a newer privproj wrote it: update yours" if newer else "write it again with --certificate"
        raise InvalidParameter("schema", quoted(schema), f"a certificate of schema {SCHEMA}", remedy)
    found = Certificate(**files.read_table("keys", given, KINDS))
    check_keys(found.target, dict.fromkeys(("delta", "log10_delta"), NUMBER))
    delta_target(found.target.get("delta"), found.target.get("log10_delta"))
    return found


# --- checking -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CertificateVerdict(files.Verdict):
    """What checking a certificate found; its ``holds`` is True if every claim does.

    Attributes:
        claims: Every claim of the certificate in words, and whether it holds.
        lower: The lower end of the new enclosure of delta, as decimal text.
        upper: The upper end of the new enclosure of delta, as decimal text.
        result: What the tool says of the question: what was run, and the bound with its side, status, promises,
            assumptions and source. Its value is that upper end, rounded up.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.records import certify, verify
    >>> verdict = verify(certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)))
    >>> verdict.claims["the target is met"], f"{float(verdict.upper):.4e}", verdict.result.bound
    (True, '1.0000e-05', 'analytic')
    """

    lower: str
    upper: str
    result: Result


def verify(certificate: Certificate) -> CertificateVerdict:
    """Check a certificate by a new enclosure of delta for its question.

    That of one release has a higher precision. A run is composed again on the grid and at the precision that the
    certificate names, of which every choice proves a bound. It needs python-flint (the extra ``certify``).

    Args:
        certificate: The certificate, made here or read from a file.

    Returns:
        A verdict with every claim and whether it holds, and what the number rests on.

    Raises:
        InvalidParameter: python-flint is not installed, or the tool does not write such a certificate.
        Refused: There is no enclosure for this bound or run.
        PrecisionLimit: The new enclosure stays too wide at every precision.

    >>> from privproj import M2, epsilon
    >>> from privproj.records import certify, verify
    >>> verify(certify(epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5))).holds
    True
    """
    import_extra("flint", "a certificate", "certify")
    with within("certificate"):
        return _verdict_on(certificate.record)


def _verdict_on(record: dict[str, Any]) -> CertificateVerdict:
    """The verdict on the certificate that a JSON object describes."""
    claim = _from_record(record)
    question = _question_from(claim.question)
    if not files.same_json(as_plain_value(_data_of(question)), claim.question):
        raise InvalidParameter(
            "question", quoted(claim.question), "a question in the words in which privproj writes it"
        )
    of_run = is_run(question.phases)
    check = _check_run if of_run else _check_release
    (lower, upper), more = check(claim, question.phases)
    claims = {
        "the enclosure holds": Decimal(claim.lower) <= Decimal(lower) <= Decimal(upper) <= Decimal(claim.upper),
        "the target is met": ball_meets(claim.target, claim.upper),
        **more,
    }
    side = Side.UPPER if of_run else question.side(question.curve())
    value = _rounded_up(Decimal(upper))
    said = replace(question.result("delta", None, None, side=side), value=value, upper=value, epsilon=claim.epsilon)
    return CertificateVerdict(claims, lower, upper, said)


def _check_release(claim: Certificate, phases: Sequence[Phase]) -> tuple[tuple[str, str], dict[str, bool]]:
    """A new enclosure of one release at a higher precision, and the claim about its own precision."""
    from privproj.rigorous.balls import PRECISION_LADDER

    if claim.bits not in PRECISION_LADDER:
        raise InvalidParameter("bits", claim.bits, "one of the precisions " + ", ".join(map(str, PRECISION_LADDER)))
    profile, rung = ball_profile(phases[0], phases[0].run.steps), PRECISION_LADDER.index(claim.bits)
    _check_free_parameters(claim.grid, profile)
    bits = enclosure(profile, claim.epsilon, claim.grid, rung)[1]
    ball = enclosure(profile, claim.epsilon, claim.grid, max(1, rung))[0]
    return _written_ends(ball, ball), {f"{claim.bits} bits are enough": bits == claim.bits}


def _check_run(claim: Certificate, phases: Sequence[Phase]) -> tuple[tuple[str, str], dict[str, bool]]:
    """The enclosure of a run that is composed again, on the grid and at the precision that the certificate states."""
    if not (LEAST_BITS <= claim.bits <= MOST_BITS and claim.bits % 64 == 0):
        raise InvalidParameter("bits", claim.bits, f"a multiple of 64 from {LEAST_BITS} to {MOST_BITS}")
    run = CertifiedRun(phases, grid_from_record(claim.grid, phases), claim.bits)
    return _written_ends(run.lower(claim.epsilon), run.upper(claim.epsilon)), {}


def _check_free_parameters(given: dict[str, Any], profile: "BallProfile") -> None:
    """Raise :class:`InvalidParameter` for free parameters that prove nothing, or that the profile does not have."""
    check_keys(given, dict.fromkeys(profile.free, NUMBER))
    for name in given:
        top = 1.0 if name == "tau" else 1e300
        real(name, given[name], f"a {name} above 0 and at most {top:g}", 0.0, top, open_low=True)
    for name in profile.needed:
        if name not in given:
            raise InvalidParameter("grid", "nothing", f"the free parameter {name} of the bound")
