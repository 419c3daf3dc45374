"""Certificates: an answer proved again in ball arithmetic, saved as JSON, and checked from its own words.

A certificate says that the delta of one bound, or of a run of several phases, for these parameters (each double taken
exactly) at this epsilon, lies between two decimal numbers, that it meets the target of the question, and what the tool
says of such a bound: its side, status, promises, assumptions. Nothing in it is taken on trust when it is checked: the
enclosure is computed again, that of one release at another precision; every other word is asked of the tool again, and
the file holds nothing besides. Claims C21 and C29 say what is proved.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from privproj.accounting.phase import Phase
from privproj.accounting.question import Question, question_about
from privproj.assumptions import ROUNDING_AS_MEASURED
from privproj.curves.inversion import delta_value
from privproj.errors import InvalidParameter, MissingPackage, NotConverged, PrecisionLimit, Refused, raise_within
from privproj.mechanisms import Layer, Mechanism
from privproj.mechanisms.registry import find_bound, mechanism_named
from privproj.records.atomic import read_bounded, write_atomically
from privproj.records.certified_runs import (
    LEAST_BITS,
    MOST_BITS,
    CertifiedRun,
    ball_profile,
    check_provable,
    grid_from_record,
    grid_record,
    is_run,
    prove_run,
)
from privproj.records.run_file import from_data
from privproj.records.strict_json import Ambiguous, parse_json, same_json
from privproj.result import Outcome, Result, Side, Status, as_plain_value
from privproj.runs import BATCH_OPTIONS, Run
from privproj.validation import is_printable, privacy_epsilon, quoted

if TYPE_CHECKING:
    from flint import arb

    from privproj.rigorous.profiles import BallProfile

Answer = TypeVar("Answer")

SCHEMA = 3
"""Version of the certificate's fields. Contract."""

ARITHMETIC = "ball arithmetic"
"""What a certificate says about how it was computed."""

WRITTEN_SPREAD = Decimal("4e-19")
"""Relative distance by which the ends that are written lie outside of their ball. Proof.

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

DECIMAL = re.compile(r"[0-9]{1,60}(\.[0-9]{1,60})?([eE][+-]?[0-9]{1,15})?", re.ASCII)
"""How the two ends are written: decimal digits with an exponent, no sign, no spaces, no nan."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proved statement: ``lower <= delta(epsilon) <= upper`` for one bound, and the target that it meets.

    :func:`privproj.records.certify` makes one.

    Attributes:
        mechanism: The name and all parameters of the mechanism; of a run file its phases.
        run: All parameters of the run.
        bound: The name of the bound; of several phases those of all.
        bound_version: Its version.
        side: Where the value lies relative to the true quantity of the mechanism.
        status: What is known of the bound, proved or conditional.
        promises: What the data must keep, in words.
        assumes: What the program must have done, in words.
        source: The theorem, and the claim that proves it.
        epsilon: The epsilon of the statement.
        lower: The lower end of delta, as decimal text, since it may lie below double precision; "0" if not known.
        upper: The upper end of delta, as decimal text.
        witness: The free parameters of the proof by name, for instance a tangent, or the grid of a run; any values
            prove the statement.
        target: The ``delta`` or ``log10_delta`` that ``upper`` does not exceed.
        bits: A working precision that is enough for the enclosure.
        arithmetic: How it was computed.
        schema: The version of these fields.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.records import certify
    >>> found = certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5))
    >>> found.bound, round(found.epsilon, 4), found.target, float(found.upper) <= 1e-5
    ('analytic', 4.3772, {'delta': 1e-05}, True)
    """

    mechanism: dict[str, Any]
    run: dict[str, Any]
    bound: str
    bound_version: int
    side: str
    status: str
    promises: tuple[str, ...]
    assumes: tuple[str, ...]
    source: str
    epsilon: float
    lower: str
    upper: str
    witness: dict[str, Any]
    target: dict[str, float]
    bits: int
    arithmetic: str = ARITHMETIC
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
        write_atomically(path, lambda file: file.write(text.encode()))


UNSTATED_OF_PHASES = ("name", "planned")
"""Keys of a phase that change nothing of what is claimed, and are no part of a certificate. Contract."""

FOUNDATION = ("bound_version", "side", "status", "promises", "assumes", "source")
"""The fields that depend on the bound and the parameters, but not on the numbers of the enclosure."""


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
    _require_flint()
    result = _without_measured_rounding(result)
    assert result.epsilon is not None
    asked = _asked_of(result.bound, *_own_parts(result))
    check_provable(asked.phases)
    if is_run(asked.phases):
        return _certify_run(result, asked)
    profile = release_in_balls(result)
    witness = profile.witness(result.epsilon)
    ball, bits = enclosure(profile, result.epsilon, witness)
    _check_side(result, ball)
    return _certificate_of(result, _written_ends(ball), bits, witness)


def _without_measured_rounding(result: Result) -> Result:
    """The answer without its promise about the rounding of floats, on which a proof in balls does not rest."""
    if ROUNDING_AS_MEASURED not in result.promises:
        return result
    kept = tuple(words for words in result.promises if words != ROUNDING_AS_MEASURED)
    return replace(result, promises=kept, status=result.status if kept else Status.PROVED)


def release_in_balls(result: Result) -> "BallProfile":
    """The profile in balls of what an answer is about: one release on the whole data set, or what has a closed form."""
    asked = _asked_of(result.bound, *_own_parts(result)).only
    check_provable([asked])
    return ball_profile(asked, asked.run.steps)


def _certify_run(result: Result, asked: Question) -> Certificate:
    """The certificate of a composed run: its epsilon, delta or noise raised to what the balls prove."""
    target, epsilon = target_field(result), result.epsilon
    assert epsilon is not None and result.log10_delta is not None
    log_delta = result.log10_delta * math.log(10.0)
    # The target is met by the end that is written, which lies RUN_SPREAD above the one that is computed.
    goal = (math.log(target["delta"]) if "delta" in target else log_delta) - 2.0 * float(RUN_SPREAD)
    if result.quantity == "sigma":
        result, found = _with_enough_noise(result, asked, goal)
    else:
        found = prove_run(asked.phases, log_delta, epsilon)
        _check_run_side(result, found)
        if result.quantity == "epsilon":
            epsilon = found.epsilon(goal, epsilon)
            result = replace(result, value=epsilon, epsilon=epsilon)
    ends = _ends_of_run(found, epsilon)
    if result.quantity == "delta":
        if Decimal(ends[1]) >= 1:
            raise PrecisionLimit("expected a delta below 1 to be proved; ask at a larger epsilon")
        upper = Decimal(ends[1])
        result = replace(result, delta=_rounded_up(upper), log10_delta=_log10_rounded_up(upper))
    return _certificate_of(result, ends, found.bits, {"grid": grid_record(found.grids)})


def _check_run_side(result: Result, found: CertifiedRun) -> None:
    """Raise :class:`NotConverged` unless the floating-point ends enclose what the balls enclose."""
    assert result.epsilon is not None
    # A lower end of 0 says nothing: where delta is covered at epsilon 0, what is proved there meets the target too.
    if result.lower and result.quantity == "epsilon" and ball_meets(target_field(result), found.upper(result.lower)):
        raise NotConverged("the lower end of the floating-point epsilon is above what is proved; please report it")
    if not ball_meets(target_field(result), found.lower(result.epsilon)):
        _raise_unsafe(result)


def _with_enough_noise(result: Result, asked: Question, goal: float) -> tuple[Result, CertifiedRun]:
    """The answer of a sigma query with so much noise that the balls prove the target, and the run in balls."""
    epsilon, sigma = result.epsilon, result.noise_multiplier
    assert epsilon is not None and sigma is not None
    for _ in range(MOST_TRIES):
        found = prove_run(asked.phases, goal, epsilon)
        proved = found.epsilon(goal, epsilon)
        if proved <= epsilon:
            mechanism = {**result.mechanism, "noise_multiplier": sigma}
            return replace(result, value=sigma, noise_multiplier=sigma, mechanism=mechanism), found
        _check_run_side(result, found)
        # Epsilon falls at least as fast as 1/z, nearly.
        sigma *= 1.0 + min(1.1 * (proved - epsilon) / max(epsilon, 1e-3), 1.0) + 1e-9
        asked = asked.with_mechanism(noise_multiplier=sigma)
    raise PrecisionLimit("expected a noise multiplier that is proved to meet the target, found none near the answer")


def _rounded_up(value: Decimal) -> float:
    """The least float that is not below a decimal number."""
    near = float(value)
    return near if Decimal(near) >= value else math.nextafter(near, math.inf)


def _log10_rounded_up(value: Decimal) -> float:
    """The decimal logarithm of a number below 1, rounded up by far more than its rounding."""
    power = float(value.log10())
    return min(power + 1e-12 * abs(power), 0.0)


def _certificate_of(result: Result, ends: tuple[str, str], bits: int, witness: dict[str, Any]) -> Certificate:
    """The certificate of an answer whose enclosure is known; raises :class:`Refused` if it is not the tool's own."""
    mechanism, run = _own_parts(result)
    found = Certificate(
        mechanism=mechanism,
        run=run,
        bound=result.bound,
        epsilon=result.epsilon,  # pyright: ignore[reportArgumentType]
        lower=ends[0],
        upper=ends[1],
        witness=witness,
        target=target_field(result),
        bits=bits,
        **_tool_foundation(_asked_of(result.bound, mechanism, run)),
    )
    said = {**_foundation_of(result), "side": found.side}
    wrong = [name for name in FOUNDATION if getattr(found, name) != said[name]]
    if wrong or not _target_met(found):
        raise Refused(f"the {wrong[0] if wrong else 'value'} of this answer is not what its parameters give")
    return found


def _written_ends(ball: "arb") -> tuple[str, str]:
    """The two ends around the ball as decimal text, each :data:`WRITTEN_SPREAD` further out."""
    from privproj.rigorous.balls import decimal_ends

    low, high = map(Decimal, decimal_ends(ball, WRITTEN_DIGITS))
    return _spread_out(low, high, WRITTEN_SPREAD)


def _ends_of_run(found: CertifiedRun, epsilon: float, spread: Decimal = RUN_SPREAD) -> tuple[str, str]:
    """The two ends of delta as decimal text, each ``spread`` further out; 0 below where nothing is known."""
    from privproj.rigorous.balls import decimal_ends

    low, high = (
        decimal_ends(found.lower(epsilon), WRITTEN_DIGITS)[0],
        decimal_ends(found.upper(epsilon), WRITTEN_DIGITS)[1],
    )
    return _spread_out(max(Decimal(low), Decimal(0)), Decimal(high), spread)


def _spread_out(low: Decimal, high: Decimal, spread: Decimal) -> tuple[str, str]:
    """Two ends as decimal text, each a relative ``spread`` further out; the upper is at most 1."""
    from privproj.rigorous.balls import EXACT_DECIMALS

    down, up = EXACT_DECIMALS.copy(), EXACT_DECIMALS.copy()
    down.prec = up.prec = WRITTEN_DIGITS
    down.rounding, up.rounding = ROUND_FLOOR, ROUND_CEILING
    lower = str(down.multiply(low, 1 - spread)) if low else "0"
    return lower, str(min(up.multiply(high, 1 + spread), Decimal(1)))


def _own_parameters(part: dict[str, Any]) -> dict[str, Any]:
    """The mechanism or the run of a result, without what it assumes."""
    return {name: value for name, value in part.items() if name != "assumes"}


def _foundation_of(result: Result) -> dict[str, Any]:
    """What a result says besides its numbers, by the names of :data:`FOUNDATION`."""
    return {
        "bound_version": result.bound_version,
        "side": str(result.side),
        "status": str(result.status),
        "promises": tuple(result.promises),
        "assumes": result.assumes,
        "source": result.source,
    }


def _own_parts(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """Mechanism and run of a result, without what they assume, and without the names of phases and what is planned."""
    mechanism = _own_parameters(result.mechanism)
    if "phases" in mechanism:
        kept = [{k: v for k, v in phase.items() if k not in UNSTATED_OF_PHASES} for phase in mechanism["phases"]]
        mechanism["phases"] = kept
    return mechanism, _own_parameters(result.run)


def _tool_foundation(asked: Question) -> dict[str, Any]:
    """What the tool itself says of this question, by the names of :data:`FOUNDATION`."""
    side = Side.UPPER if is_run(asked.phases) else asked.side(asked.curve())
    return _foundation_of(asked.result("delta", None, None, side=side))


def _asked_of(bound: str, mechanism: dict[str, Any], run: dict[str, Any]) -> Question:
    """The question or the schedule with these parameters, which have to be written as the tool writes them.

    Raises :class:`InvalidParameter` where they are not, :class:`Refused` where the bound does not answer.
    """
    if mechanism.get("name") != "run":
        built = _mechanism_of(mechanism)
        found = Phase(built, _run_of(run), find_bound(type(built), bound))
        found.check()
        return question_about(found)
    schedule = from_data({"phase": mechanism.get("phases")}, "certificate")
    own = schedule.result("delta", None, None)
    _check_table(mechanism, _own_parts(own)[0], "mechanism")
    _check_table(run, _own_parts(own)[1], "run")
    if bound != own.bound:
        raise InvalidParameter("bound", quoted(bound), f"{own.bound}, those of the phases, in the certificate")
    return schedule


def _run_of(run: dict[str, Any]) -> Run:
    """The run with these parameters, all of them and no others."""
    given = [name for name in (*BATCH_OPTIONS, "dataset_size") if name in run]
    _check_keys(run, (*Run().parameters(), *given), "run")
    found = Run(**run)
    _check_table(run, found.parameters(), "run")
    return found


def _check_keys(given: dict[str, Any], names: Iterable[str], where: str) -> None:
    """Raise :class:`InvalidParameter` unless the keys are exactly these."""
    known = tuple(names)
    for key in given:
        if key not in known:
            raise InvalidParameter(where, quoted(key), "the keys " + ", ".join(known) + " and no others")
    for key in known:
        if key not in given:
            raise InvalidParameter(where, "nothing", f"the key {key} in the certificate")


def _check_table(given: dict[str, Any], own: dict[str, Any], where: str) -> None:
    """Raise :class:`InvalidParameter` unless the table is what the tool writes for what it describes."""
    for key in (*given, *own):
        if key not in given or key not in own or not same_json(given[key], own[key]):
            said = f"{key} {quoted(own[key])}" if key in own else f"no {key}"
            value = quoted(given[key]) if key in given else "nothing"
            raise InvalidParameter(where, value, f"{said}, as this tool writes it, in the certificate")


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
    certificate, result = certify(result), _without_measured_rounding(result)

    import flint

    witness = {name: value for name, value in certificate.witness.items() if name != "grid"}
    note = {"lower": certificate.lower, "upper": certificate.upper, "bits": certificate.bits, "witness": witness}
    note["arithmetic"] = f"{ARITHMETIC}, python-flint {flint.__version__}"
    if "grid" in certificate.witness:
        note["grid_step"] = certificate.witness["grid"]["step"]
        result = _with_proved_number(result, certificate)
    return replace(result, numerics={**result.numerics, "certified": note}), certificate


def _with_proved_number(result: Result, certificate: Certificate) -> Result:
    """The answer for a run with the number of its certificate in the place of its own."""
    if result.quantity == "epsilon":
        value: float = certificate.epsilon
        changes: dict[str, Any] = {"epsilon": value}
    elif result.quantity == "sigma":
        value = certificate.mechanism["noise_multiplier"]
        changes = {"noise_multiplier": value, "mechanism": {**result.mechanism, "noise_multiplier": value}}
    else:
        value = certificate.target.get("delta", delta_value(-math.inf))
        changes = {"delta": value, "log10_delta": _log10_rounded_up(Decimal(certificate.upper))}
    lower = None if result.lower is None else min(result.lower, value)
    return replace(result, value=value, upper=value, lower=lower, **changes)


def target_field(result: Result) -> dict[str, float]:
    """What the enclosure must not exceed: the delta that was asked or answered, or its decimal logarithm."""
    if result.delta is not None and result.delta > 1.01e-300:
        return {"delta": result.delta}
    assert result.log10_delta is not None
    return {"log10_delta": result.log10_delta}


def _check_side(result: Result, ball: "arb") -> None:
    """Raise :class:`NotConverged` unless the answer is on the safe side of its enclosure."""
    if not ball_meets(target_field(result), ball):
        _raise_unsafe(result)


def _raise_unsafe(result: Result) -> NoReturn:
    """Raise :class:`NotConverged`: the answer lies on the unsafe side of its enclosure."""
    raise NotConverged(f"the floating-point {result.quantity} is on the unsafe side of its enclosure; please report it")


def ball_meets(target: dict[str, float], ball: "arb") -> bool:
    """True if the whole ball is at most the target; a delta of 1 is met by definition."""
    from flint import arb, ctx

    with ctx.workprec(320):
        if "delta" in target:
            return bool(ball.upper() <= arb(target["delta"])) or target["delta"] >= 1.0
        return bool(ball.upper() <= arb(10) ** arb(target["log10_delta"]))


def enclosure(profile: "BallProfile", epsilon: float, witness: dict[str, float], first: int = 0) -> "tuple[arb, int]":
    """``(ball, bits)``: delta at this epsilon, at the first precision that makes the ball narrow enough.

    The search begins at rung ``first`` of the ladder of precisions.
    """
    from flint import arb

    from privproj.rigorous.balls import PRECISION_LADDER, enclose_to_goal

    return enclose_to_goal(lambda: profile.delta(arb(epsilon), witness), PRECISION_LADDER[first:])


def _mechanism_of(mechanism: dict[str, Any]) -> Mechanism:
    """The mechanism with these parameters; raises :class:`InvalidParameter` where they are not its own."""
    given = dict(mechanism)
    kind = mechanism_named(str(given.get("name")))
    parts = {name: value for name, value in given.items() if name != "name"}
    known = {field.name: field.type for field in fields(kind)}
    for name, value in parts.items():
        if name not in known:
            raise InvalidParameter("mechanism", quoted(name), f"parameters of {kind.name} in the certificate")
        flag = known[name] is bool
        if name == "layers" and isinstance(value, list):
            parts[name] = tuple(map(Layer.parse, value))
        elif isinstance(value, list | dict) or (flag and not isinstance(value, bool)):
            raise InvalidParameter(name, quoted(value), "true or false" if flag else "a number or a word")
    found = kind(**parts)
    _check_table(given, {"name": kind.name, **found.parameters()}, "mechanism")
    return found


def _require_flint() -> None:
    """Raise :class:`InvalidParameter` where python-flint is not installed."""
    from importlib.util import find_spec

    if find_spec("flint") is None:
        raise MissingPackage("python-flint", "a certificate", "certify")


def load_certificate(path: str | Path) -> Certificate:
    """Read a certificate from its file, and check that it is written as the tool writes it.

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
    return read_certificate(read_bounded(path, "certificate"), path)


def read_certificate(content: bytes, path: str | Path) -> Certificate:
    """The certificate in the bytes of a file; ``path`` is for messages. Raises as :func:`load_certificate` does."""
    try:
        found = parse_json(content.decode())
    except Ambiguous as error:
        raise InvalidParameter("certificate", path, "one meaning for every word of it", f"it has {error}") from None
    except (ValueError, RecursionError):
        raise InvalidParameter("certificate", path, "a certificate as --certificate writes it") from None
    return _named_in_certificate(_from_record, found)


def _named_in_certificate(read: Callable[[Any], Answer], content: Any) -> Answer:
    """What a reader makes of a certificate; what is wrong with a part of it is said to be in the certificate."""
    try:
        return read(content)
    except MissingPackage:
        raise
    except InvalidParameter as error:
        raise_within(error, "certificate")


KINDS: dict[str, type] = {
    "mechanism": dict, "run": dict, "bound": str, "bound_version": int, "side": str, "status": str, "promises": list,
    "assumes": list, "source": str, "epsilon": float, "lower": str, "upper": str, "witness": dict, "target": dict,
    "bits": int, "arithmetic": str, "schema": int,
}  # fmt: skip
"""The JSON type of each field of a certificate."""
WORDS = {dict: "a table", list: "a list of words", str: "text", int: "a whole number", float: "a number with a point"}
"""What messages call the types of JSON values."""


def _from_record(content: object) -> Certificate:
    """The certificate that a JSON object describes: every key known, none missing, each of its type.

    Raises :class:`InvalidParameter` for anything else.
    """
    inner = content.get("certificate") if isinstance(content, dict) and len(content) == 1 else None
    if not isinstance(inner, dict):
        raise InvalidParameter("certificate", quoted(content), "a certificate as --certificate writes it")
    given: dict[str, Any] = inner
    schema = given.get("schema", SCHEMA)
    if not same_json(schema, SCHEMA):
        newer = type(schema) is int and schema > SCHEMA
        remedy = "a newer privproj wrote it: update yours" if newer else "write it again with --certificate"
        raise InvalidParameter("schema", quoted(schema), f"a certificate of schema {SCHEMA}", remedy)
    _check_keys(given, (field.name for field in fields(Certificate)), "certificate")
    for name, kind in KINDS.items():
        _check_kind(name, given[name], kind)
    found = Certificate(**{**given, "promises": tuple(given["promises"]), "assumes": tuple(given["assumes"])})
    _check_numbers(found)
    return found


def _check_kind(name: str, value: Any, kind: type) -> None:
    """Raise :class:`InvalidParameter` unless a field has its type, and its text can be printed."""
    if type(value) is not kind:
        raise InvalidParameter(name, quoted(value), f"{WORDS[kind]} in the certificate")
    if kind is list and not all(isinstance(part, str) for part in value):
        raise InvalidParameter(name, quoted(value), "words in the certificate")
    if not is_printable(value):
        raise InvalidParameter(name, quoted(value), "words that can be printed, in the certificate")


def _check_numbers(certificate: Certificate) -> None:
    """Raise :class:`InvalidParameter` unless every number is of the kind that a claim has."""
    for name in ("lower", "upper"):
        text = getattr(certificate, name)
        if not DECIMAL.fullmatch(text):
            raise InvalidParameter(name, quoted(text), "a decimal number in the certificate")
    privacy_epsilon(certificate.epsilon, zero=True)
    if certificate.arithmetic != ARITHMETIC:
        raise InvalidParameter("arithmetic", quoted(certificate.arithmetic), ARITHMETIC)
    target = _finite_numbers(certificate.target, "target")
    if list(target) not in (["delta"], ["log10_delta"]):
        raise InvalidParameter("target", quoted(list(target)), "one target: either delta or log10_delta")
    if not 0.0 < target.get("delta", 0.5) < 1.0 or not target.get("log10_delta", -1.0) < 0.0:
        raise InvalidParameter("target", quoted(target), "a delta above 0 and below 1, or a negative log10_delta")


def _finite_numbers(given: dict[str, Any], name: str) -> dict[str, float]:
    """A table of finite numbers; raises :class:`InvalidParameter` for anything else."""
    for value in given.values():
        if type(value) is not float or not math.isfinite(value):
            raise InvalidParameter(name, quoted(value), "finite numbers with a point in the certificate")
    return given


@dataclass(frozen=True)
class CertificateVerdict:
    """What checking a certificate found.

    Attributes:
        claims: Every claim of the certificate in words, and whether it holds.
        lower: The lower end of the new enclosure of delta, as decimal text.
        upper: The upper end of the new enclosure of delta, as decimal text.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.records import certify, verify
    >>> verdict = verify(certify(epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5)))
    >>> verdict.claims["the target is met"], f"{float(verdict.upper):.4e}"
    (True, '1.0000e-05')
    """

    claims: dict[str, bool]
    lower: str
    upper: str

    @property
    def holds(self) -> bool:
        """True if every claim of the certificate holds."""
        return all(self.claims.values())


def verify(certificate: Certificate) -> CertificateVerdict:
    """Check a certificate from its parameters alone, by a new enclosure of delta.

    That of one release has a higher precision. A run is composed again on the grid and at the precision that the
    certificate names, of which every choice proves a bound. It needs python-flint (the extra ``certify``).

    Args:
        certificate: The certificate, made here or read from a file.

    Returns:
        A verdict with every claim and whether it holds.

    Raises:
        InvalidParameter: python-flint is not installed, or the tool does not write such a certificate.
        Refused: There is no enclosure for this bound or run.
        PrecisionLimit: The new enclosure stays too wide at every precision.

    >>> from privproj import M2, epsilon
    >>> from privproj.records import certify, verify
    >>> verify(certify(epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5))).holds
    True
    """
    _require_flint()
    return _named_in_certificate(_verdict_on, certificate.record)


def _verdict_on(record: dict[str, Any]) -> CertificateVerdict:
    """The verdict on the certificate that a JSON object describes."""
    claim = _from_record(record)
    asked = _asked_of(claim.bound, claim.mechanism, claim.run)
    check_provable(asked.phases)
    said = _tool_foundation(asked)
    words = {
        "the target is met": _target_met(claim),
        "status and promises are those of the bound": _says_what_the_tool_says(claim, said, "status", "promises"),
        "side, assumptions, source and version too": _says_what_the_tool_says(claim, said, *FOUNDATION),
    }
    if is_run(asked.phases):
        return _verdict_of_run(claim, asked.phases, words)
    return _verdict_of_release(claim, asked.phases[0], words)


def _verdict_of_release(claim: Certificate, asked: Phase, words: dict[str, bool]) -> CertificateVerdict:
    """The verdict on one release: a new enclosure at a higher precision."""
    from privproj.rigorous.balls import PRECISION_LADDER, decimal_ends

    if claim.bits not in PRECISION_LADDER:
        raise InvalidParameter("bits", claim.bits, "one of the precisions " + ", ".join(map(str, PRECISION_LADDER)))
    profile = ball_profile(asked, asked.run.steps)
    _check_witness(claim, profile)
    ball, _ = enclosure(profile, claim.epsilon, claim.witness, first=max(1, PRECISION_LADDER.index(claim.bits)))
    lower, upper = decimal_ends(ball, WRITTEN_DIGITS)
    claims = {
        "the enclosure holds": _contains_enclosure(claim, Decimal(lower), Decimal(upper)),
        **words,
        f"{claim.bits} bits are enough": _is_precise_enough(profile, claim),
    }
    return CertificateVerdict(claims, lower, upper)


def _verdict_of_run(claim: Certificate, phases: Sequence[Phase], words: dict[str, bool]) -> CertificateVerdict:
    """The verdict on a run: composed again from its parameters, on the grid and at the precision that it states."""
    if list(claim.witness) != ["grid"]:
        raise InvalidParameter("witness", quoted(claim.witness), "the grid of the run, in the certificate")
    if not (LEAST_BITS <= claim.bits <= MOST_BITS and claim.bits % 64 == 0):
        raise InvalidParameter("bits", claim.bits, f"a multiple of 64 from {LEAST_BITS} to {MOST_BITS}")
    found = CertifiedRun(phases, grid_from_record(claim.witness["grid"], phases), claim.bits)
    lower, upper = _ends_of_run(found, claim.epsilon, spread=Decimal(0))
    claims = {"the enclosure holds": _contains_enclosure(claim, Decimal(lower), Decimal(upper)), **words}
    return CertificateVerdict(claims, lower, upper)


def _says_what_the_tool_says(certificate: Certificate, said: dict[str, Any], *names: str) -> bool:
    """True if these fields of the certificate are what the tool says."""
    return all(getattr(certificate, name) == said[name] for name in names)


def _contains_enclosure(certificate: Certificate, lower: Decimal, upper: Decimal) -> bool:
    """True if the new enclosure lies within the claimed one."""
    return Decimal(certificate.lower) <= lower <= upper <= Decimal(certificate.upper)


def _target_met(certificate: Certificate) -> bool:
    """True if the claimed upper end is at most the target, compared in exact decimals."""
    from privproj.rigorous.balls import EXACT_DECIMALS

    upper, target = Decimal(certificate.upper), certificate.target
    if "delta" in target:
        return upper <= Decimal(target["delta"])
    # The decimal logarithm is right to a unit of its last of 100 digits; 1e-90 of it is more than that.
    power = EXACT_DECIMALS.log10(upper) if upper else Decimal("-Infinity")
    return EXACT_DECIMALS.add(power, EXACT_DECIMALS.multiply(abs(power), Decimal("1e-90"))) <= Decimal(
        target["log10_delta"]
    )


def _is_precise_enough(profile: "BallProfile", certificate: Certificate) -> bool:
    """True if the claimed working precision makes the enclosure as narrow as it must be."""
    from flint import arb

    from privproj.rigorous.balls import enclose_to_goal

    try:
        enclose_to_goal(lambda: profile.delta(arb(certificate.epsilon), certificate.witness), (certificate.bits,))
    except PrecisionLimit:
        return False
    return True


def _check_witness(certificate: Certificate, profile: "BallProfile") -> None:
    """Raise :class:`InvalidParameter` for free parameters that prove nothing, or that the profile does not have."""
    _finite_numbers(certificate.witness, "witness")
    for name, value in certificate.witness.items():
        top = 1.0 if name == "tau" else math.inf
        if name not in profile.free or not 0.0 < value <= top:
            expected = {"tau": "a tau in (0, 1]", "tangent": "a positive tangent"}.get("".join(profile.free), "none")
            raise InvalidParameter("witness", quoted({name: value}), f"the free parameters of the bound: {expected}")
    for name in profile.needed:
        if name not in certificate.witness:
            raise InvalidParameter("witness", "nothing", f"the free parameter {name} of the bound")
