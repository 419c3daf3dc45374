"""Write and check certificates, which prove results in ball arithmetic.

A certificate is a JSON file with a query, an epsilon, and two decimal numbers that enclose the delta of the bound at
this epsilon. Doubles are taken as exact numbers. A check computes a new enclosure, which does not depend on the old one
(C21: single releases, C29: runs).

A proof has free parameters, such as the discretization grid of a run. They are chosen in floating point, for the proof
and again for the check. If another machine chooses worse values, the check can fail to prove the claim, but it cannot
confirm a false one.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privproj.accounting.config import check_keys
from privproj.accounting.phase import Phase
from privproj.accounting.query import Composition, build_result, composition_of_phase
from privproj.assumptions import Requirement
from privproj.composition.compose import releases_of
from privproj.contrib.certify.ball_profiles import ball_entry, provable_names
from privproj.errors import ConvergenceError, InvalidParameterError, PrecisionError, UnsupportedError, within
from privproj.io import files
from privproj.io.run_file import from_data, without_names
from privproj.lazy import import_extra
from privproj.mechanisms import M2, Mechanism
from privproj.numerics.interval import Enclosure
from privproj.numerics.root_finding import find_crossing
from privproj.parameters import LARGEST_EPSILON, NUMBER, TABLE, WHOLE, number, quoted
from privproj.result import Outcome, Result, Side, Status, as_plain_value
from privproj.sampling import NeighboringRelation
from privproj.targets import delta_target

if TYPE_CHECKING:
    from flint import arb

    from privproj.contrib.certify.balls_in_bins import EpochGrid
    from privproj.contrib.certify.composition import Grid, Releases, RunInBalls
    from privproj.contrib.certify.profiles import BallProfile

SCHEMA = 6  # version of the fields

WRITTEN_SPREAD = Decimal("4e-19")
# soundness: relative distance of the written bounds from their ball. The radius of a ball is below 2^-64 = 5.4e-20 of
# the number, so any other such ball around it lies within the bounds.

CHOICE_SPREAD = Decimal("2e-13")
# The same distance for a bound with free parameters, which another machine may choose slightly differently. The bound
# hardly depends on them. A floating-point result lies further above its enclosure, so that its target is met.

RUN_SPREAD = Decimal("1e-9")
# The same distance for a run, whose grid another machine may choose slightly differently. The written upper bound meets
# the target.

MOST_TRIES = 12  # times that a number is raised before the proof of a run fails

WRITTEN_DIGITS = 25  # decimal digits of the written bounds

NOT_PROVED = "not proved"
DECIMAL = files.text_matching(r"[0-9]{1,60}(\.[0-9]{1,60})?([eE][+-]?[0-9]{1,15})?", "a decimal number")

MOST_CELLS = 1 << 19  # cells of a window; a run of 1e5 releases needs a quarter of them

MOST_WORK = 1 << 21  # cells of all windows, for each kind of release and each 64 bits of precision: a minute, 500 MB

MOST_PLACES = 1 << 14  # knots of all phases, for each 64 bits of precision and unit of effort
# At delta 1e-5 a run needs some hundred knots at 128 bits, and at 1e-60 some thousand at 320 bits.

MOST_RANK = 10**5  # rank of M2 in a run; above it incomplete Beta functions take minutes

LEAST_TARGET = -1e6  # log10 of delta, the least target that privproj accepts; every smaller delta meets it

LEAST_LOG10_DELTA = -250.0  # log10 of delta; below it no grid is proposed

MOST_IN_GROUP = 32  # records of a user; each value of a profile needs as many evaluations

MOST_EFFORT = 256  # effort of all phases, in units of a Gaussian phase; larger grids exceed the limits above

LEAST_BITS = 128  # bits of working precision of a run

LEAST_EPSILON = 1e-9  # smallest positive epsilon of the search


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proof that the delta of a query at an epsilon lies between two numbers.

    A certificate proves ``lower <= delta(epsilon) <= upper``, and that ``upper`` meets a target.
    :func:`privproj.contrib.certify.certify` returns one.

    Attributes:
        question: The query as the data of a run file: the phases, each with its mechanism, its bound and its run.
        epsilon: The epsilon at which delta is enclosed.
        target: The ``delta`` or ``log10_delta`` that ``upper`` does not exceed.
        lower: The lower bound on delta as decimal text, because it may lie below the range of doubles; "0" if unknown.
        upper: The upper bound on delta as decimal text.
        schema: The version of these fields.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.contrib.certify import certify
    >>> certificate = certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5))
    >>> round(certificate.epsilon, 4), certificate.target, float(certificate.upper) <= 1e-5
    (4.3772, {'delta': 1e-05}, True)
    """

    question: dict[str, Any]
    epsilon: float
    target: dict[str, float]
    lower: str
    upper: str
    schema: int = SCHEMA

    @property
    def record(self) -> dict[str, Any]:
        """The certificate as a JSON object, as it is stored in a file."""
        return {"certificate": as_plain_value(asdict(self))}

    def save(self, path: str | Path) -> None:
        """Write the certificate to a JSON file, atomically.

        Args:
            path: The file, which is replaced if it exists.

        Raises:
            OSError: The file cannot be written.
        """
        import json

        files.write_text(str(path), json.dumps(self.record, indent=2, allow_nan=False) + "\n")


# --- a query and its data ------------------------------------------------------------------------------


def composition_from_data(data: dict[str, Any]) -> Composition:
    """Return the query of a certificate from the data of a run file.

    Raises:
        InvalidParameterError: The data are not a valid run file, or have keys besides ``phase``.
        UnsupportedError: The delta of the query cannot be enclosed.
    """
    if list(data) != ["phase"]:
        raise InvalidParameterError("question", quoted([*data]), "a table with the key phases only")
    schedule = from_data(data, "question")
    check_provable(schedule.phases)
    if len(schedule.phases) == 1:
        return composition_of_phase(schedule.phases[0])
    return replace(schedule, phases=tuple(replace(phase, name="", planned=False) for phase in schedule.phases))


def _data_of(composition: Composition) -> dict[str, Any]:
    """Return a query as the data of a run file, without names of phases."""
    return {"phase": without_names(phase.as_dict() for phase in composition.phases)}


def composition_of_result(result: Result) -> Composition:
    """Return the query that led to a result.

    Raises:
        InvalidParameterError: The parameters in the result do not have the form that privproj writes.
        UnsupportedError: The delta of the query cannot be enclosed.
    """
    phases: Any = result.mechanism.get("phases")
    if phases is None:
        parameters = {"layer" if key == "layers" else key: value for key, value in result.mechanism.items()}
        entry = {**parameters, "mechanism": parameters.pop("name"), "bound": result.bound, **result.run}
        phases = [{key: value for key, value in entry.items() if key != "requirements" and value is not None}]
    return composition_from_data({"phase": phases})


# --- runs in balls ------------------------------------------------------------------------------------


def is_run(phases: Sequence[Phase]) -> bool:
    """Return whether the releases must be composed numerically in ball arithmetic.

    The result is False for one release on the whole dataset, and for several releases with a closed form.
    """
    run, bound = phases[0].run, phases[0].bound
    if len(phases) > 1 or run.sampling_rate != 1.0 or _in_epochs(phases[0]):
        return True
    entry = ball_entry(bound)
    return run.steps > 1 and not (entry is not None and entry.runs)


def check_provable(phases: Sequence[Phase]) -> None:
    """Raise :class:`UnsupportedError` if a phase of a run cannot be certified."""
    for phase in phases:
        run, bound, alike = phase.run, phase.bound, _one_layer(phase.mechanism)
        is_gaussian = (phase.mechanism.name, bound.name) == ("gaussian", "analytic")
        is_sampled = run.sampling_rate < 1.0 and run.scheme.draws_records_apart
        # The steps of a user with several records have an enclosure (C37).
        group_in_balls = is_gaussian and is_sampled and run.group_size <= MOST_IN_GROUP
        certifiable = [name for name in provable_names() if name.startswith(f"{phase.mechanism.name}.")]
        remedy = (
            f"Use {' or '.join(certifiable)}" if certifiable else f"No bound of {phase.mechanism.name} can be certified"
        )
        lacks = {
            f"a certificate for group_size={run.group_size} needs the bound analytic, Poisson sampling and at most "
            f"{MOST_IN_GROUP} records": run.group_size > 1 and not group_in_balls,
            "a record in several batches of an epoch cannot be certified. Omit batches_per_record": (
                run.is_bounded_by_blocks
            ),
            "truncated batches cannot be certified. Omit max_batch_size": run.max_batch_size is not None,
            "adaptive clipping cannot be certified. Omit adaptive_clipping_sigma": phase.mechanism.adapts_clip,
            f"the bound {bound.name} cannot be certified. {remedy}": ball_entry(bound) is None,
            "a certificate supports one projected layer, or layers of one shape under a joint clipping norm. Use dim "
            "and rank, or one layer": isinstance(alike, M2) and bool(alike.layers) and not alike.unprojected,
        }
        for reason, holds in lacks.items():
            if holds:
                raise UnsupportedError(reason)


def ball_profile(phase: Phase, steps: int = 1) -> "BallProfile":
    """Return the privacy profile of ``steps`` releases of a phase, in ball arithmetic.

    More than one release needs a closed form.
    """
    entry = ball_entry(phase.bound)
    assert entry is not None
    built: Mechanism = phase.mechanism
    if phase.run.relation is NeighboringRelation.REPLACE:
        built = built.for_replacement()
    return entry.build(_one_layer(built), steps)


def _one_layer(mechanism: Mechanism) -> Mechanism:
    """Reduce layers of equal shape under a joint clipping norm to one layer.

    Other mechanisms are returned unchanged.
    """
    return mechanism.alike if isinstance(mechanism, M2) else mechanism


def _in_epochs(phase: Phase) -> bool:
    """Return whether a phase is composed of balls-in-bins epochs."""
    return phase.run.allocates and not phase.run.single


def prove_run(phases: Sequence[Phase], log_delta: float, guess: float) -> "tuple[RunInBalls, float]":
    """Compose a run in ball arithmetic, and prove an epsilon at delta ``e^log_delta``.

    The search for epsilon starts at ``guess``.

    Raises:
        PrecisionError: Every grid takes too long, or the delta is not proved for any epsilon.
    """
    run = _prove(phases, log_delta)
    return run, _certified_epsilon(run, log_delta, guess)


def _certified_epsilon(run: "RunInBalls", log_delta: float, guess: float) -> float:
    """Return an epsilon at which delta is proved to be at most ``e^log_delta``.

    The search starts at ``guess``.

    Raises:
        PrecisionError: The delta is not proved for any epsilon.
    """
    from privproj.contrib.certify.balls import log_of_upper_end

    def excess(eps: float) -> float:
        return log_of_upper_end(run.upper(eps)) - log_delta

    if excess(0.0) <= 0.0:
        return 0.0
    start = guess if LEAST_EPSILON < guess < math.inf else 1.0
    epsilon = find_crossing(excess, start, low=LEAST_EPSILON, high=1e9, spread=1e-3, rtol=1e-9).upper
    if epsilon == math.inf:
        raise PrecisionError(
            "the delta is too small for the discretization grid of the proof. Certify a larger delta, or use the "
            "floating-point result, whose errors are bounded too"
        )
    return epsilon


def _prove(phases: Sequence[Phase], log_delta: float) -> "RunInBalls":
    """Compose a run in ball arithmetic on a grid that is tight near ``e^log_delta``.

    Raises:
        PrecisionError: Even the coarsest grid takes too long, or needs too high a precision.
    """
    for mechanism in (_one_layer(phase.mechanism) for phase in phases):
        if isinstance(mechanism, M2) and (mechanism.rank or 0) > MOST_RANK:
            raise PrecisionError(f"rank must be at most {MOST_RANK:g} to certify a run, got {mechanism.rank}")
    # An epoch has its own grids, so it counts ten times.
    if sum(_effort(phase) * (10 if _in_epochs(phase) else 1) for phase in phases) > MOST_EFFORT:
        raise PrecisionError(f"a run of {len(phases)} phases takes too long to certify. Certify fewer phases")
    if log_delta < LEAST_LOG10_DELTA * math.log(10.0):
        raise PrecisionError(
            f"delta must be at least 1e{LEAST_LOG10_DELTA:.0f} to certify a run. Certify a larger delta"
        )
    # The check of a proved delta must use the grid of the proof, so log delta is rounded.
    log_delta = float(math.floor(log_delta))
    for fineness in (1.0, 0.5):
        with suppress(PrecisionError):
            return _prove_on_grid(phases, log_delta, fineness)
    return _prove_on_grid(phases, log_delta, 0.25)


def _effort(phase: Phase) -> int:
    """Return the cost of evaluating the profile of a phase, relative to Gaussian noise."""
    return ball_profile(phase).effort * phase.run.group_size


def _prove_on_grid(phases: Sequence[Phase], log_delta: float, fineness: float) -> "RunInBalls":
    """Compose a run in ball arithmetic on one discretization grid.

    ``fineness`` multiplies the number of grid points.

    Raises:
        PrecisionError: The run takes too long, or the balls are too wide at the working precision.
    """
    from flint import arb, ctx

    from privproj.contrib.certify.balls_in_bins import propose_epochs
    from privproj.contrib.certify.composition import RunInBalls
    from privproj.contrib.certify.grids import propose_grid

    steps = sum(phase.run.steps for phase in phases)
    # log2(T / delta) bits are lost relative to 1, and a hundred are kept.
    bits = max(LEAST_BITS, 64 * math.ceil(((math.log(steps) - log_delta) / math.log(2.0) + 100.0) / 64.0))
    largest_effort = max(map(_effort, phases))
    # Error messages name phases by their numbers.
    profiles = [replace(phase, name=str(i + 1)).profile() for i, phase in enumerate(phases)]
    releases = [release for phase in profiles for release in releases_of(*phase)]
    grid = propose_grid(releases, log_delta, fineness, 64 * MOST_PLACES // (bits * largest_effort))
    composed = sum(run.steps for _, run in releases)
    epochs = [
        propose_epochs(*float_profile, log_delta, composed, fineness) if _in_epochs(phase) else ()
        for float_profile, phase in zip(profiles, phases, strict=True)
    ]
    _check_work(grid, [one for grids in epochs for one in grids], bits, largest_effort)
    with ctx.workprec(bits):
        run = RunInBalls(_releases_in_balls(phases, epochs), grid)
        # The radii of the balls must be at most a millionth of delta.
        if not run.blur <= arb(log_delta).exp() / 10**6:
            raise PrecisionError(f"delta is below the rounding error of {bits}-bit arithmetic. Use a larger delta")
    return run


def _check_work(grid: "Grid", epochs: "list[EpochGrid]", bits: int, dearest: int) -> None:
    """Raise :class:`PrecisionError` if composing a run in ball arithmetic takes too long.

    ``dearest`` is the largest cost of evaluating a profile, relative to Gaussian noise.
    """
    sizes = [window.size for window in grid.windows]
    cells = len(grid.knots) * sum(sizes) + sum(one.window.size for one in epochs)
    places = sum(map(len, grid.knots)) + sum(len(one.knots) for one in epochs)
    if max(sizes) > MOST_CELLS or max(cells / MOST_WORK, places * dearest / MOST_PLACES) * bits > 64:
        raise PrecisionError(
            f"the certificate of this run takes too long ({cells} cells and "
            f"{places} points at {bits} bits). Certify fewer "
            "steps or a larger delta, or use the floating-point result, whose errors are bounded too"
        )


def _releases_in_balls(phases: Sequence[Phase], epochs: "Sequence[Sequence[EpochGrid]]") -> "list[Releases]":
    """Return the releases of all phases, with privacy profiles in ball arithmetic.

    ``epochs`` has the grids of each phase for balls-in-bins epochs.
    """
    from privproj.contrib.certify.balls_in_bins import epochs_in_balls
    from privproj.contrib.certify.composition import BallGroup, BallPhase

    releases: list[Releases] = []
    for phase, grids in zip(phases, epochs, strict=True):
        run, profile = phase.run, ball_profile(phase)
        if _in_epochs(phase):
            releases.append(epochs_in_balls(profile, run, grids))
        elif run.group_size > 1:
            z = phase.mechanism.noise_multiplier or 0.0
            releases.append(BallGroup(z, run.steps, run.sampling_rate, run.group_size))
        else:
            releases.append(BallPhase(profile, run.steps, run.sampling_rate, run.scheme.is_one_sided))
    return releases


# --- proving ------------------------------------------------------------------------------------------


def certify(result: Result) -> Certificate:
    """Return a certificate, which proves a result in ball arithmetic.

    The certificate encloses delta at the epsilon of the result. A run of several releases is composed again in ball
    arithmetic, so its proved epsilon, delta or noise multiplier may differ slightly from the floating-point result. The
    certificate contains the proved number (:func:`privproj.contrib.certify.prove` returns both). The function needs
    python-flint (the extra ``certify``).

    Args:
        result: The result of an epsilon, delta or sigma query, or of a run file.

    Returns:
        The certificate.

    Raises:
        InvalidParameterError: python-flint is not installed, or the parameters are not those that privproj writes.
        UnsupportedError: This bound, run or quantity cannot be enclosed, or the result was altered.
        ConvergenceError: The floating-point result is on the unsafe side of its enclosure; please report this bug.
        PrecisionError: The enclosure is too wide at every precision, or needs too large a grid.

    >>> from privproj import M2, epsilon
    >>> from privproj.contrib.certify import certify
    >>> certificate = certify(epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5))
    >>> float(certificate.lower) <= float(certificate.upper) <= 1e-5
    True
    """
    return prove(result)[1]


def prove(result: Result) -> tuple[Result, Certificate]:
    """Return a result with its value proved in ball arithmetic, and its certificate.

    For one release the value is unchanged. For a run the proved value may differ slightly from the value in ``result``.

    Args:
        result: The result of an epsilon, delta or sigma query, or of a run file.

    Returns:
        The result and the certificate. The result has the proved value, and the enclosure under "certified" in its
        numerics.

    Raises:
        InvalidParameterError: python-flint is not installed, or the parameters are not those that privproj writes.
        UnsupportedError: This bound or run cannot be enclosed.
        ConvergenceError: The floating-point result is on the unsafe side of its enclosure.
        PrecisionError: The enclosure is too wide at every precision, or needs too large a grid.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.contrib.certify import prove
    >>> result = epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, steps=100, sampling_rate=0.01)
    >>> proved, certificate = prove(result)
    >>> proved.value == certificate.epsilon, abs(proved.value / result.value - 1) < 1e-3
    (True, True)
    """
    _check_answered(result)
    flint = import_extra("flint", "a certificate", "certify")
    # A proof in balls does not depend on the rounding of floats.
    if Requirement.MEASURED_ROUNDING in result.data_assumptions:
        assumptions = tuple(
            requirement for requirement in result.data_assumptions if requirement != Requirement.MEASURED_ROUNDING
        )
        result = replace(result, data_assumptions=assumptions, status=result.status if assumptions else Status.PROVED)
    composition = composition_of_result(result)
    if is_run(composition.phases):
        result, composition, run = _prove_run(result, composition)
        bits, choices = run.bits, {"witness": {}, "grid_step": run.grid.step}
        lower, upper = _ends_of_run(run, float(result.epsilon or 0.0), RUN_SPREAD)
    else:
        epsilon, profile = float(result.epsilon or 0.0), ball_profile(composition.only, composition.only.run.steps)
        witness = profile.witness(epsilon)
        ball, bits = enclosure(profile, epsilon, witness)
        _check_side(result, ball)
        choices = {"witness": witness}
        lower, upper = _written_ends(ball, ball, CHOICE_SPREAD if witness else WRITTEN_SPREAD)
    certificate = Certificate(
        question=_data_of(composition),
        epsilon=float(result.epsilon or 0.0),
        target=target_field(result),
        lower=lower,
        upper=upper,
    )
    if not ball_meets(certificate.target, upper):
        raise UnsupportedError("the value of this result does not follow from its parameters")

    note = {"lower": lower, "upper": upper, "bits": bits, **choices}
    note["arithmetic"] = f"ball arithmetic, python-flint {flint.__version__}"
    return replace(result, numerics={**result.numerics, "certified": note}), certificate


def _check_answered(result: Result) -> None:
    """Raise :class:`UnsupportedError` for a result that cannot have a certificate."""
    if result.risk is not None:
        raise UnsupportedError(
            "an attack risk cannot be certified. Certify a target of epsilon "
            "and delta, or the delta at epsilon 0, which "
            "is the advantage"
        )
    answered = result.outcome is Outcome.OK and result.epsilon is not None and result.log10_delta is not None
    if result.outcome is Outcome.VACUOUS:
        raise UnsupportedError(f"the vacuous {result.quantity} of this query cannot be certified. Use more noise")
    if result.quantity not in ("epsilon", "delta", "sigma") or not answered:
        raise UnsupportedError(
            f"only a result of epsilon, delta or sigma can be certified, got {result.quantity} with outcome "
            f"{result.outcome}"
        )


def _prove_run(result: Result, composition: Composition) -> "tuple[Result, Composition, RunInBalls]":
    """Prove the result of a run, and return it with its query and composed run.

    For a sigma query, the noise multiplier is raised until the target is proved to be met.

    Raises:
        PrecisionError: No value near the result is proved.
        ConvergenceError: The floating-point result contradicts the enclosure.
    """
    epsilon, sigma = float(result.epsilon or 0.0), float(result.noise_multiplier or 0.0)
    proved, delta = result, Decimal(0)
    for _ in range(MOST_TRIES):
        goal = _log_goal(target_field(proved))
        run, least = prove_run(composition.phases, goal, epsilon)
        if result.quantity == "sigma" and least <= epsilon:
            mechanism = {**result.mechanism, "noise_multiplier": sigma}
            return _with_value(result, sigma, noise_multiplier=sigma, mechanism=mechanism), composition, run
        _check_run_side(result, run)
        if result.quantity == "epsilon":
            return _with_value(result, least, epsilon=least), composition, run
        if result.quantity == "sigma":
            # Epsilon decreases at least about as fast as 1/z.
            sigma *= 1.0 + min(1.1 * (least - epsilon) / max(epsilon, 1e-3), 1.0) + 1e-9
            composition = composition.with_mechanism(noise_multiplier=sigma)
        else:
            delta = max(delta, Decimal(_ends_of_run(run, epsilon, RUN_SPREAD)[1]))
            proved = _with_delta(result, delta)
            # The check will propose its grids for the delta that is proved.
            if math.floor(_log_goal(target_field(proved))) == math.floor(goal):
                return proved, composition, run
    raise PrecisionError(f"no {result.quantity} near the result is proved to meet the target")


def _log_goal(target: dict[str, float]) -> float:
    """Return ``ln`` of the delta that the proof of a run must reach."""
    log_delta = math.log(target["delta"]) if "delta" in target else target["log10_delta"] * math.log(10.0)
    # Slightly below the target, because the upper bound is increased before it is written to the certificate
    return log_delta - 2.0 * float(RUN_SPREAD)


def _check_run_side(result: Result, run: "RunInBalls") -> None:
    """Raise :class:`ConvergenceError` if a result contradicts proved bounds of its run."""
    assert result.epsilon is not None
    # Delta is proved to meet the target at the lower end of the interval for epsilon.
    # A lower end of 0 is always valid.
    if result.lower and result.quantity == "epsilon" and ball_meets(target_field(result), run.upper(result.lower)):
        raise ConvergenceError(
            "the lower end of the floating-point epsilon is above the proved value. Please report this as a bug."
        )
    # Delta is proved to exceed the target at the epsilon of the result.
    _check_side(result, run.lower(result.epsilon))


def _with_delta(result: Result, upper: Decimal) -> Result:
    """Return the result of a delta query with the proved delta, rounded up."""
    if upper >= 1:
        raise PrecisionError("the proved delta is not below 1. Use a larger epsilon")
    power = float(upper.log10())
    # The logarithm is increased by much more than its rounding error.
    powers = {"log10_delta": min(power + 1e-12 * abs(power), 0.0)}
    return _with_value(result, _rounded_up(upper), delta=_rounded_up(upper), **powers)


def _with_value(result: Result, value: float, **changes: Any) -> Result:
    """Return a result with a proved value, which is also the upper end of its interval."""
    interval = Enclosure(-math.inf if result.lower is None else min(result.lower, value), value)
    return replace(result, value=value, interval=interval, **changes)


def _rounded_up(value: Decimal) -> float:
    """Return the smallest float that is not below a decimal number."""
    near = float(value)
    return near if Decimal(near) >= value else math.nextafter(near, math.inf)


# --- enclosures ---------------------------------------------------------------------------------------


def enclosure(profile: "BallProfile", epsilon: float, witness: dict[str, float], first: int = 0) -> "tuple[arb, int]":
    """Return a ball around delta at an epsilon, and the working precision in bits.

    ``witness`` has the free parameters of the profile. The precisions of ``PRECISION_LADDER`` are tried from index
    ``first`` on.
    """
    from flint import arb

    from privproj.contrib.certify.balls import PRECISION_LADDER, enclose_to_goal

    return enclose_to_goal(lambda: profile.delta(arb(epsilon), witness), PRECISION_LADDER[first:])


def _ends_of_run(run: "RunInBalls", epsilon: float, spread: Decimal = Decimal(0)) -> tuple[str, str]:
    """Return bounds of the delta of a run at this epsilon, as decimal text.

    Both bounds are moved outward by a relative ``spread``.
    """
    return _written_ends(run.lower(epsilon), run.upper(epsilon), spread)


def _written_ends(low: "arb", high: "arb", spread: Decimal = Decimal(0)) -> tuple[str, str]:
    """Return the lower end of one ball and the upper end of another as decimal text.

    Both ends are moved outward by a relative ``spread``.
    """
    from privproj.contrib.certify.balls import EXACT_DECIMALS, decimal_ends

    down, up = EXACT_DECIMALS.copy(), EXACT_DECIMALS.copy()
    down.prec = up.prec = WRITTEN_DIGITS
    down.rounding, up.rounding = ROUND_FLOOR, ROUND_CEILING
    lower = down.multiply(Decimal(decimal_ends(low, WRITTEN_DIGITS)[0]), 1 - spread)
    upper = up.multiply(Decimal(decimal_ends(high, WRITTEN_DIGITS)[1]), 1 + spread)
    return str(lower) if lower > 0 else "0", str(min(upper, Decimal(1))) if upper > 0 else "0"


def target_field(result: Result) -> dict[str, float]:
    """Return the delta of a result, or its decimal log, as the target of a certificate."""
    if result.delta is not None and result.delta > 1.01e-300:
        return {"delta": result.delta}
    # The decimal log, if delta is too small for a double
    assert result.log10_delta is not None
    return {"log10_delta": max(result.log10_delta, LEAST_TARGET)}


def _check_side(result: Result, ball: "arb") -> None:
    """Raise :class:`ConvergenceError` if delta is proved to exceed the target of a result."""
    if not ball_meets(target_field(result), ball):
        sentence = (
            f"the floating-point {result.quantity} is on the unsafe side of its enclosure. Please report this as a bug."
        )
        raise ConvergenceError(sentence)


def ball_meets(target: dict[str, float], delta: "arb | str") -> bool:
    """Return whether a delta, as a ball or as decimal text, is at most the target."""
    from flint import arb, ctx

    with ctx.workprec(320):
        # arb encloses a decimal number in a ball.
        most = arb(target["delta"]) if "delta" in target else arb(10) ** arb(target["log10_delta"])
        upper = arb(delta).upper()
        return bool(upper <= most) or bool(upper <= 0) or most >= 1  # a target is above 0, however small its ball


# --- reading ------------------------------------------------------------------------------------------


def load_certificate(path: str | Path) -> Certificate:
    """Return the certificate in a file.

    The file must have the form that privproj writes. The claims are not checked;
    :func:`privproj.contrib.certify.verify` checks them.

    Args:
        path: A file that :meth:`Certificate.save` wrote.

    Returns:
        The certificate.

    Raises:
        InvalidParameterError: The file cannot be read, is not a certificate, or has a duplicate key.

    >>> import tempfile
    >>> from privproj import Gaussian, epsilon
    >>> from privproj.contrib.certify import certify, load_certificate
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)).save(file.name)
    ...     round(load_certificate(file.name).epsilon, 4)
    4.3772
    """
    return read_certificate(files.read_bounded(path), path)


def read_certificate(content: bytes, path: str | Path) -> Certificate:
    """Return the certificate in the bytes of a file; ``path`` is for messages.

    Raises:
        InvalidParameterError: The content is not a certificate, or has a duplicate key.
    """
    data = files.read_json(content, "FILE", path, "a certificate that `privproj certify` wrote")
    with within("certificate"):
        return _from_record(data)


KINDS = {
    "question": TABLE,
    "epsilon": number("an epsilon from 0 to 1e+09", 0.0, LARGEST_EPSILON),
    "target": TABLE,
    "lower": DECIMAL,
    "upper": DECIMAL,
    "schema": WHOLE,
}


def _from_record(content: object) -> Certificate:
    """Return the certificate that a JSON object describes.

    Raises:
        InvalidParameterError: A key is unknown or missing, or a value is of the wrong type.
    """
    fields: Any = content.get("certificate") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(fields, dict):
        raise InvalidParameterError("certificate", quoted(content), "a certificate that `privproj certify` wrote")
    schema = fields.get("schema", SCHEMA)
    if not files.json_equal(schema, SCHEMA):
        newer = type(schema) is int and schema > SCHEMA
        remedy = "update privproj, because a newer version wrote the certificate" if newer else "certify again"
        raise InvalidParameterError("schema", quoted(schema), f"{SCHEMA}", remedy)
    certificate = Certificate(**files.read_table("content", fields, KINDS))
    check_keys(certificate.target, dict.fromkeys(("delta", "log10_delta"), NUMBER))
    delta_target(certificate.target.get("delta"), certificate.target.get("log10_delta"))
    return certificate


# --- checking -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CertificateVerdict(files.Verdict):
    """The verdict on a certificate; ``holds`` is True if every claim holds.

    Attributes:
        claims: Every claim of the certificate as text, and whether it holds.
        lower: The lower end of the new enclosure of delta, as decimal text.
        upper: The upper end of the new enclosure of delta, as decimal text.
        result: A result with the run, and the side, status, assumptions and source of the bound. The value of the
            result is ``upper``, rounded up.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.contrib.certify import certify, verify
    >>> verdict = verify(certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)))
    >>> verdict.claims["the target is met"], f"{float(verdict.upper):.4e}", verdict.result.bound
    (True, '1.0000e-05', 'analytic')
    """

    lower: str
    upper: str
    result: Result

    @property
    def word(self) -> str:
        """The verdict as text: "holds" or "not proved".

        The text is not "false", because a claim that could not be proved again may be true.
        """
        return "holds" if self.holds else NOT_PROVED


def verify(certificate: Certificate) -> CertificateVerdict:
    """Check a certificate by a new enclosure of delta for its query.

    Free parameters of the proof, such as the grid of a run, are chosen again. One release is enclosed at a higher
    precision. A claim that could not be proved again may still be true. The function needs python-flint (the extra
    ``certify``).

    Args:
        certificate: The certificate, from :func:`privproj.contrib.certify.certify` or from a file.

    Returns:
        A verdict with every claim and whether it holds, and the result with its assumptions.

    Raises:
        InvalidParameterError: python-flint is not installed, or privproj does not write such a certificate.
        UnsupportedError: This bound or run cannot be enclosed.
        PrecisionError: The new enclosure is too wide at every precision, or needs too large a grid.

    >>> from privproj import M2, epsilon
    >>> from privproj.contrib.certify import certify, verify
    >>> verify(certify(epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5))).holds
    True
    """
    import_extra("flint", "a certificate", "certify")
    with within("certificate"):
        claim = _from_record(certificate.record)
        composition = composition_from_data(claim.question)
        if not files.json_equal(as_plain_value(_data_of(composition)), claim.question):
            expected = "a query as privproj writes it"
            raise InvalidParameterError("question", quoted(claim.question), expected)
        return _verdict_on(claim, composition)


def _verdict_on(claim: Certificate, composition: Composition) -> CertificateVerdict:
    lower, upper = _ends_anew(claim, composition.phases)
    side = Side.UPPER if is_run(composition.phases) else composition.side(composition.curve())
    value = _rounded_up(Decimal(upper))
    result = replace(build_result(composition, "delta", None, side=side), value=value, epsilon=claim.epsilon)
    result = replace(result, interval=Enclosure(-math.inf, value))
    claims = {
        "delta is proved again to be at most the upper end": Decimal(upper) <= Decimal(claim.upper),
        "delta is proved again to be at least the lower end": Decimal(lower) >= Decimal(claim.lower),
        "the target is met": ball_meets(claim.target, claim.upper),
    }
    return CertificateVerdict(claims, lower, upper, result)


def _ends_anew(claim: Certificate, phases: Sequence[Phase]) -> tuple[str, str]:
    """Enclose the delta of a certificate's query again, and return bounds as text."""
    if is_run(phases):
        return _ends_of_run(_prove(phases, _log_goal(claim.target)), claim.epsilon)
    profile = ball_profile(phases[0], phases[0].run.steps)
    ball, _ = enclosure(profile, claim.epsilon, profile.witness(claim.epsilon), first=1)
    return _written_ends(ball, ball)
