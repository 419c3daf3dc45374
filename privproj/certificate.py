"""Certificates: an answer proved again in ball arithmetic, saved as JSON, and checked from its own words.

A certificate says that the delta of one bound, for these parameters (each double taken exactly) at this epsilon, lies
between two decimal numbers, and that it meets the target of the question. Nothing in it is taken on trust when it is
checked: the enclosure is computed again at another precision, and once more by independent code in mpmath.
"""

import json
import math
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privproj.atomic import replaced
from privproj.bound import Bound
from privproj.bounds import find, mechanism_named
from privproj.errors import InvalidParameter, NotConverged, Refused
from privproj.mechanisms import Mechanism, privacy_epsilon, whole
from privproj.relations import NeighbouringRelation
from privproj.result import Outcome, Result

if TYPE_CHECKING:
    from flint import arb

    from privproj.rigorous.profiles import Profile

SCHEMA = 1
SLACK, AGREES = Decimal("1e-18"), Decimal("1e-12")
"""Relative width of an enclosure, and difference allowed to the mpmath value, which has no proved error."""


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """``lower <= delta(epsilon) <= upper`` for one bound with these free parameters (``witness``), and what it meets.

    ``lower`` and ``upper`` are decimal text, since they may lie below double precision. ``target`` is the delta or
    ``log10_delta`` that ``upper`` does not exceed; empty where the question had none.
    """

    mechanism: dict[str, Any]
    run: dict[str, Any]
    bound: str
    bound_version: int
    status: str
    promises: tuple[str, ...]
    epsilon: float
    lower: str
    upper: str
    witness: dict[str, float]
    target: dict[str, float]
    bits: int
    arithmetic: str
    version: str
    schema: int = SCHEMA

    def save(self, path: str | Path) -> None:
        """Write the JSON file, whole or not at all."""
        text = json.dumps({"certificate": asdict(self)}, indent=2, allow_nan=False) + "\n"
        replaced(path, lambda file: file.write(text.encode()))


def certify(result: Result) -> Certificate:
    """Prove the answer: enclose delta at its epsilon by balls, and compare.

    Raises :class:`Refused` where there is no enclosure for the bound or the run, :class:`NotConverged` if the floating
    point answer is on the unsafe side (a defect; please report), :class:`PrecisionLimit` if the enclosure stays wide.
    """
    if result.quantity not in ("epsilon", "delta", "sigma") or result.outcome is not Outcome.OK:
        raise Refused(
            f"expected an answered epsilon, delta or sigma query to certify, got {result.quantity} with outcome "
            f"{result.outcome}"
        )
    assert result.epsilon is not None
    profile = profile_of(result.bound, result.mechanism, result.run)
    witness = profile.witness(result.epsilon)
    ball, bits = enclosure(profile, result.epsilon, witness)
    check_side(result, ball)
    return stated(result, ball, bits, witness)


def stated(result: Result, ball: "arb", bits: int, witness: dict[str, float]) -> Certificate:
    """The certificate of an answer whose enclosure is known."""
    import flint

    from privproj import __version__
    from privproj.rigorous.balls import decimal_ends

    lower, upper = decimal_ends(ball)
    return Certificate(
        mechanism={k: v for k, v in result.mechanism.items() if k != "assumes"},
        run={k: v for k, v in result.run.items() if v is not None},
        bound=result.bound,
        bound_version=result.bound_version,
        status=str(result.status),
        promises=result.promises,
        epsilon=result.epsilon,  # pyright: ignore[reportArgumentType]
        lower=lower,
        upper=str(min(Decimal(upper), Decimal(1))),
        witness=witness,
        target=target_field(result),
        bits=bits,
        arithmetic=f"ball arithmetic, python-flint {flint.__version__}",
        version=__version__,
    )


def certified(result: Result, certificate: Certificate) -> Result:
    """The result with the ends of its certificate among its numerics."""
    note = {name: getattr(certificate, name) for name in ("lower", "upper", "bits", "arithmetic", "witness")}
    return replace(result, numerics={**result.numerics, "certified": note})


def target_field(result: Result) -> dict[str, float]:
    """What the enclosure has to stay below: the delta of an epsilon or sigma query, or the delta that was answered."""
    if result.delta is not None and result.delta > 1.01e-300:
        return {"delta": result.delta}
    assert result.log10_delta is not None
    return {"log10_delta": result.log10_delta}


def check_side(result: Result, ball: "arb") -> None:
    """Raise unless the answer is on the safe side of the enclosure."""
    if not meets(target_field(result), ball):
        raise NotConverged(
            f"the floating-point {result.quantity} is on the unsafe side of its enclosure; please report it"
        )


def meets(target: dict[str, float], ball: "arb") -> bool:
    """True if the whole ball is at most the target (a delta of 1 is met by definition)."""
    from flint import arb, ctx

    with ctx.workprec(320):
        if "delta" in target:
            return bool(ball.upper() <= arb(target["delta"])) or target["delta"] >= 1.0
        return bool(ball.upper() <= arb(10) ** arb(target["log10_delta"]))


def enclosure(profile: "Profile", epsilon: float, witness: dict[str, float], first: int = 0) -> "tuple[arb, int]":
    """``(ball, bits)`` of the profile, from the ``first`` precision of the ladder on."""
    from flint import arb

    from privproj.rigorous.balls import LADDER, enclosed

    return enclosed(lambda: profile.delta(arb(epsilon), witness), LADDER[first:])


def profile_of(bound: str, mechanism: dict[str, Any], run: dict[str, Any]) -> "Profile":
    """What encloses this bound for these parameters; raises :class:`Refused` where nothing does."""
    needs_flint()
    built = rebuilt(mechanism)
    found = find(type(built), bound)
    steps = check_run(found, run)
    if found.provable is None:
        raise Refused(f"no enclosure for {found.name}; certificates cover {', '.join(provable_names())}")
    if run.get("relation") == NeighbouringRelation.REPLACE:
        built = built.for_replacement()
    return found.provable(built, steps)


def rebuilt(mechanism: dict[str, Any]) -> Mechanism:
    """The mechanism with these parameters; raises :class:`InvalidParameter` where they are not its own."""
    parts = {name: value for name, value in mechanism.items() if name not in ("name", "assumes")}
    if "layers" in parts:
        raise Refused("certificates are about one projected layer; expected dim and rank, not layers")
    kind = mechanism_named(str(mechanism.get("name")))
    for name in parts:
        if name not in kind.__dataclass_fields__:
            raise InvalidParameter("mechanism", name, f"parameters of {kind.name} in the certificate")
    return kind(**parts)


def check_run(bound: Bound, run: dict[str, Any]) -> int:
    """The number of releases; raises :class:`Refused` where delta has no closed form or single integral."""
    steps = whole("steps", run.get("steps", 1), "a whole number of steps >= 1")
    several = steps > 1 and not bound.provable_steps
    if several or (run.get("sampling_rate") or 1.0) != 1.0 or (run.get("group_size") or 1) > 1:
        raise Refused(
            "certificates are about one release on the whole data set (any number for the gaussian profile); "
            "a composed run has its errors bounded by the composer instead"
        )
    return steps


def provable_names() -> list[str]:
    """``mechanism.bound`` of every bound that can be certified."""
    from privproj.bounds import registry

    return [f"{bound.mechanism.name}.{bound.name}" for bound in registry() if bound.provable is not None]


def needs_flint() -> None:
    """Raise :class:`InvalidParameter` where python-flint is not installed."""
    from importlib.util import find_spec

    if find_spec("flint") is None:
        raise InvalidParameter("certify", "no python-flint", "python-flint", "pip install 'privproj[certify]'")


def load(path: str | Path) -> Certificate:
    """A certificate from its file; raises :class:`InvalidParameter` for a file that is none."""
    try:
        content = json.loads(Path(path).read_text())["certificate"]
        found = Certificate(**{**content, "promises": tuple(content["promises"])})
        decimals = [Decimal(found.lower), Decimal(found.upper)]
        tables = [dict(found.mechanism), dict(found.run), dict(found.witness), dict(found.target)]
    except OSError as error:
        raise InvalidParameter("certificate", path, "a readable file", str(error.strerror)) from None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        raise InvalidParameter("certificate", path, "a certificate as --certificate writes it") from None
    if found.schema != SCHEMA or not all(end.is_finite() for end in decimals) or not tables[0]:
        raise InvalidParameter("certificate", path, f"a certificate of schema {SCHEMA} with finite ends")
    privacy_epsilon(found.epsilon, zero=True)
    return found


@dataclass(frozen=True)
class Verdict:
    """What checking a certificate found: each claim, and whether it holds."""

    claims: dict[str, bool]
    lower: str
    upper: str
    second_opinion: str

    @property
    def holds(self) -> bool:
        """True if every claim holds."""
        return all(self.claims.values())


def verify(certificate: Certificate) -> Verdict:
    """Check a certificate from its parameters alone: a new enclosure at a higher precision, and mpmath's value.

    Raises like :func:`certify`.
    """
    from privproj.rigorous.balls import decimal_ends

    profile = profile_of(certificate.bound, certificate.mechanism, certificate.run)
    check_witness(certificate)
    ball, _ = enclosure(profile, certificate.epsilon, certificate.witness, first=1)
    lower, upper = decimal_ends(ball)
    value = second_opinion(certificate)
    return Verdict(
        {
            "the enclosure holds": overlap(certificate, Decimal(lower), Decimal(upper)),
            "the target is met": bool(certificate.target) and meets(numbers(certificate.target, "target"), ball),
            "status and promises are those of the bound": same_foundation(certificate),
            **agreement(certificate, value),
        },
        lower,
        upper,
        value or "none for this bound",
    )


def overlap(certificate: Certificate, lower: Decimal, upper: Decimal) -> bool:
    """True if the new enclosure lies in the claimed one, widened by the relative width that either may have."""
    from privproj.rigorous.balls import EXACT

    low, high = Decimal(certificate.lower), Decimal(certificate.upper)
    return EXACT.multiply(low, 1 - SLACK) <= lower and min(upper, Decimal(1)) <= EXACT.multiply(high, 1 + SLACK)


def check_witness(certificate: Certificate) -> None:
    """Raise :class:`InvalidParameter` for free parameters that prove nothing."""
    for name, value in numbers(certificate.witness, "witness").items():
        top = 1.0 if name == "tau" else math.inf
        if name not in ("tau", "tangent") or not 0.0 < value <= top:
            raise InvalidParameter("witness", f"{name}={value}", "a tau in (0, 1] or a positive tangent")


def numbers(given: object, name: str) -> dict[str, float]:
    """A table of finite numbers; raises :class:`InvalidParameter` for anything else."""
    if not isinstance(given, dict):
        raise InvalidParameter(name, given, "a table of numbers in the certificate")
    for value in given.values():
        if isinstance(value, bool) or not isinstance(value, float | int) or not math.isfinite(value):
            raise InvalidParameter(name, value, "finite numbers in the certificate")
    return {str(key): float(value) for key, value in given.items()}


def same_foundation(certificate: Certificate) -> bool:
    """True if the certificate claims the status and the promises that the bound has for these parameters."""
    built = rebuilt(certificate.mechanism)
    bound = find(type(built), certificate.bound)
    return (certificate.status, certificate.promises) == (str(bound.status_for(built)), bound.promises_of(built))


def second_opinion(certificate: Certificate) -> str | None:
    """The value in mpmath, by other code and another quadrature; None where there is none for these parameters."""
    from privproj import reference

    name = f"{certificate.mechanism['name']}.{certificate.bound}"
    known = signature(reference.DELTAS[name]).parameters if name in reference.DELTAS else {}
    given = {**certificate.mechanism, **certificate.run}
    parts = {key: value for key, value in given.items() if key in known and (key, value) != ("steps", 1)}
    try:
        value = reference.value(f"{name}.delta", 20, epsilon=certificate.epsilon, **parts)
    except (LookupError, TypeError, ArithmeticError, ValueError):
        return None
    return reference.mp.nstr(value, 20)


def agreement(certificate: Certificate, value: str | None) -> dict[str, bool]:
    """The claim that mpmath finds the same; no claim where it has nothing to say."""
    if value is None:
        return {}
    from privproj.rigorous.balls import EXACT

    upper = Decimal(certificate.upper)
    away = EXACT.subtract(Decimal(value), upper).copy_abs()
    return {"independent code in mpmath agrees": away <= EXACT.multiply(AGREES, upper)}
