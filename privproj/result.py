"""Define the result of a query, and how it is displayed."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from privproj.assumptions import Requirement, short_name
from privproj.errors import InvalidParameterError
from privproj.numerics.interval import UNKNOWN, Enclosure

SCHEMA = 2  # Version of the fields of a result as JSON


class Status(StrEnum):
    """The status of a bound: proved, conditional, asymptotic or refuted.

    Attributes:
        PROVED: The bound is proved for all data.
        CONDITIONAL: The bound is proved for data that meet its assumptions, which privproj does not check.
        ASYMPTOTIC: The bound has an unknown constant, so it has no value.
        REFUTED: The bound is known to be false.

    >>> from privproj import M2, Status, epsilon
    >>> epsilon(M2(dim=64, rank=4, noise_multiplier=1.0), delta=1e-5).status is Status.PROVED
    True
    """

    PROVED = "proved"
    CONDITIONAL = "conditional"
    ASYMPTOTIC = "asymptotic"
    REFUTED = "refuted"


class Outcome(StrEnum):
    """The outcome of the evaluation of a bound.

    Only a result with ``OK`` is a guarantee.

    Attributes:
        OK: The value is finite.
        VACUOUS: There is no guarantee: epsilon is infinite, delta is 1, or no parameter meets the target.
        NOT_CONVERGED: A search or a quadrature did not reach its accuracy.
        PRECISION_LIMIT: The value is below the resolution of the arithmetic.
        UNSUPPORTED: The bound does not support this query, or it is refuted.

    >>> from privproj import Gaussian, Outcome, sigma
    >>> sigma(Gaussian(), epsilon=1.0, delta=1e-5).outcome is Outcome.OK
    True
    """

    OK = "ok"
    VACUOUS = "vacuous"
    NOT_CONVERGED = "not_converged"
    PRECISION_LIMIT = "precision_limit"
    UNSUPPORTED = "unsupported"


class Side(StrEnum):
    """The relation of a value to the true quantity of the mechanism.

    The true quantity is the epsilon, delta or parameter of the mechanism itself, if all assumptions hold.

    Attributes:
        UPPER: The true quantity is at most the value.
        EXACT: The value is the true quantity, up to outward rounding.
        LOWER: The true quantity is at least the value, for example the number of steps that meet a target.
        NONE: Nothing is claimed, because the bound is refuted.

    >>> from privproj import Gaussian, Side, epsilon
    >>> epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).side is Side.EXACT
    True
    """

    UPPER = "upper bound"
    EXACT = "exact"
    LOWER = "lower bound"
    NONE = "none"


def round_outward(value: float, *, up: bool = True) -> str:
    """Return a value as text with four significant digits, rounded up or down.

    A positive number is never shown as 0.
    """
    if value == math.inf:
        return "infinite"
    if isinstance(value, int) or value == 0.0:
        return str(int(value))
    return f"{_round_to(4, value, up):#.4g}".rstrip(".")


def limit_text(value: float, *, up: bool) -> str:
    """Return a number as text with six significant digits, rounded up or down."""
    return f"{_round_to(6, value, up):g}"


def _round_to(digits: int, value: float, up: bool) -> float:
    from decimal import ROUND_CEILING, ROUND_FLOOR, Context

    return float(Context(prec=digits, rounding=ROUND_CEILING if up else ROUND_FLOOR).create_decimal(repr(float(value))))


def risk_text(risk: Mapping[str, float]) -> str:
    """Return an attack risk as text: the advantage, or the true and false positive rate."""
    if "advantage" in risk:
        return f"advantage {limit_text(risk['advantage'], up=True)}"
    return f"true positive rate {limit_text(risk['tpr'], up=True)} at {_fpr_text(risk)}"


def _fpr_text(risk: Mapping[str, float]) -> str:
    """Return the false positive rate of an attack risk as text, rounded down."""
    return f"false positive rate {limit_text(risk['fpr'], up=False)}"


# neighboring relations as text
NEIGHBORS = {
    "add-remove": "add or remove one record",
    "replace": "replace one record",
    "zero-out": "set one record to zero",
}


NAMES_IN_TEXT = {"poisson": "Poisson", "fixed": "fixed-size"}  # schemes that sample a batch for each step


def _run_text(run: Mapping[str, Any]) -> str:
    """Return the steps, the sampling scheme and the group size of a run as text."""
    count, sampling, rate = run.get("steps"), run.get("sampling"), run.get("sampling_rate")
    in_epochs = "batches" in run or sampling in ("partition", "shuffle", "balls-in-bins")
    unit = "epoch" if in_epochs else "step"
    text = f"{count} {unit}{'' if count == 1 else 's'}"
    name = NAMES_IN_TEXT.get(str(sampling), sampling)
    if sampling is None:
        text += " on the whole dataset" if rate is not None else ", sampling differs between phases"
    else:
        text += f", {name} sampling" + ("" if in_epochs or rate is None else f" at rate {rate:.4g}")
    size = run.get("group_size", 1)
    return text if size in (None, 1) else f"{text}, up to {size} records per user"


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """A lower bound of the true value of the mechanism (docs/proofs.md, C27 and C28).

    No valid accounting of the same releases gives a smaller value.

    Attributes:
        quantity: The quantity that is bounded: "epsilon", "log10_delta" or "advantage".
        value: The lower bound.
        for_whom: The adversary for whom the bound holds; empty for any adversary who observes the outputs.
        gap: The reason why the upper bound is far above the lower bound; empty if it is not, or if none is known.

    >>> from privproj import M2, epsilon, lower_bound
    >>> below = lower_bound(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5))
    >>> round(below.value, 3), below.for_whom
    (0.738, 'an adversary who observes the projections')
    """

    quantity: str
    value: float
    for_whom: str = ""
    gap: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the lower bound as entries of ``numerics`` in the JSON object of a result."""
        details = {"lower_bound_adversary": self.for_whom, "gap": self.gap}
        return {f"{self.quantity}_lower_bound": self.value, **{key: text for key, text in details.items() if text}}


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """The result of a query: a value, and what it depends on.

    ``print(result)`` shows the value with its side, bound, run, assumptions and warnings. ``float(result)`` is the
    value, and a result compares with numbers by its value. ``format(result, ".3f")`` rounds to the safe side: a lower
    bound down, any other value up. All of these except ``print`` raise an error for a result that is not a guarantee.

    Attributes:
        quantity: The quantity: epsilon, delta, sigma, rank, steps, rate, misalignment, advantage, tpr (at the false
            positive rate of ``risk``) or gdp_mu.
        value: The value, rounded to the safe side: ``inf`` if no finite epsilon exists, None if no parameter meets the
            target or the evaluation failed.
        interval: An enclosure of the exact value of the named bound. The interval encloses the true value only if
            ``side`` is exact. Reading the interval computes it, which takes time if the run is composed numerically.
            The interval has no lower end for balls-in-bins with several batches per record.
        side: The relation of the value to the true quantity of the mechanism, a :class:`Side`.
        mechanism: The name and all parameters of the mechanism, and under "requirements" its requirements.
        run: All parameters of the run, and under "requirements" its requirements.
        bound: The name of the bound.
        bound_version: The version of the bound, which changes whenever a value of the bound may change.
        status: The status of the bound for these parameters, a :class:`Status`.
        data_assumptions: The assumptions on the data; empty for a bound that holds for all data.
        source: The theorem, and the claim of docs/proofs.md that proves it here.
        outcome: The outcome of the evaluation, an :class:`Outcome`.
        epsilon: The epsilon of the guarantee, as a target or as the result; None if there is none.
        delta: The delta of the guarantee, as a target or as the result; None if there is none, or if a target is below
            the range of doubles.
        log10_delta: The decimal logarithm of that delta.
        risk: The attack risk if it is the target, by name: ``advantage``, or ``tpr`` and ``fpr``; otherwise None.
        noise_multiplier: The ratio of the noise standard deviation (for Laplace noise, the scale) to the sensitivity;
            None for mechanisms without one.
        noise_std: The noise standard deviation for a given clipping norm, in the units of that norm; None if no
            clipping norm was given.
        numerics: Details of the computation by name; empty for a closed form.
        lower_bound: The lower bound of the true value, a :class:`LowerBound`; None if it is not known or was not
            computed. :func:`privproj.accounting.lower_bounds.with_details` computes it.
        alternatives: Related values by name. For shuffled batches, ``balls_in_bins_instead`` and ``poisson_not_valid``
            are the values for other sampling schemes (from ``with_details``). For truncated batches,
            ``smallest_harmless_max_batch_size`` is the smallest maximum size with which truncation takes at most 1 % of
            delta.
        warnings: Warnings, one sentence each.
        query: The composition that was evaluated, from which ``with_details`` computes more; None if there are no more
            details.
        target: The target of that query.

    >>> from privproj import M2, epsilon
    >>> result = epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)
    >>> round(result.value, 4), str(result.side), result.bound, str(result.status), result.data_assumptions
    (0.7382, 'upper bound', 'rank-free', 'proved', ())
    >>> format(result, ".2f"), result <= 1.0
    ('0.74', True)
    >>> print(result)
    epsilon = 0.7382  (upper bound, delta = 1e-05)
      bound:     rank-free (proved)
      run:       1 step on the whole dataset
      neighbors: add or remove one record
      requires:  fresh-projection, full-gradient-clipping, secret-seed
    """

    quantity: str
    value: float | int | None
    interval: Enclosure = field(default=UNKNOWN, compare=False)
    side: Side
    mechanism: dict[str, object]
    run: dict[str, object]
    bound: str
    bound_version: int
    status: Status
    data_assumptions: tuple[str, ...]
    source: str
    outcome: Outcome
    epsilon: float | None = None
    delta: float | None = None
    log10_delta: float | None = None
    risk: dict[str, float] | None = None
    noise_multiplier: float | None = None
    noise_std: float | None = None
    numerics: dict[str, object] = field(default_factory=dict)
    lower_bound: LowerBound | None = None
    alternatives: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default_factory=tuple)
    query: Any = field(default=None, compare=False)
    target: Any = field(default=None, compare=False)

    @property
    def lower(self) -> float | None:
        """The lower end of ``interval``; None if it is not known."""
        return self.interval.lower if 0.0 <= self.interval.lower < math.inf else None

    @property
    def upper(self) -> float | None:
        """The upper end of ``interval``; None if it is not known."""
        return None if self.interval.upper == math.inf and self.value != math.inf else self.interval.upper

    def __getstate__(self) -> dict[str, Any]:
        # Bounds hold functions, which cannot be pickled: a copy has numbers alone.
        return {**vars(self), "interval": Enclosure(*self.interval), "query": None, "target": None}

    def __hash__(self) -> int:
        return hash((self.quantity, self.value, self.bound, self.bound_version, self.epsilon, self.log10_delta))

    def __float__(self) -> float:
        if self.value is None or not self.usable or self.side is Side.NONE:
            raise InvalidParameterError("result", self._value_text, "a guarantee to be used as a number")
        return float(self.value)

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

        number = float(self)
        if isinstance(self.value, int) and spec[-1] == "d":
            return format(self.value, spec)
        if "." not in spec and spec[-1] in "eEfFgG%":
            spec = f"{spec[:-1]}.6{spec[-1]}"  # the default of floats
        with localcontext(rounding=ROUND_FLOOR if self.side is Side.LOWER else ROUND_CEILING):
            return format(Decimal(repr(number)), spec)

    def __lt__(self, other: object) -> bool:
        return self._compared(other, lambda x, y: x < y)

    def __le__(self, other: object) -> bool:
        return self._compared(other, lambda x, y: x <= y)

    def __gt__(self, other: object) -> bool:
        return self._compared(other, lambda x, y: x > y)

    def __ge__(self, other: object) -> bool:
        return self._compared(other, lambda x, y: x >= y)

    def _compared(self, other: object, holds: Callable[[float, float], bool]) -> bool:
        if not isinstance(other, float | int | Result):
            return NotImplemented
        # A result with an infinite epsilon can be compared, although it is not a guarantee.
        values = [
            one.value if isinstance(one, Result) and one.value == math.inf and one.side is not Side.NONE else float(one)
            for one in (self, other)
        ]
        return holds(*values)  # pyright: ignore[reportArgumentType]

    def __repr__(self) -> str:
        return f"<{self.one_line}>"

    def __str__(self) -> str:
        lines = [f"  {label + ':':<10} {text}" for label, text in [*self._details(), *self._requires()]]
        warnings = [f"warning: {text}" for text in self.warnings]
        return "\n".join([self._value_text.replace(" (", "  (", 1), *lines, *warnings])

    def _repr_html_(self) -> str:
        """Return the text of ``print(result)`` as a table, for notebooks."""
        from html import escape

        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(label)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
            for label, text in [*self._details(), *self._requires()]
        )
        warnings = "".join(f"<p><b>warning:</b> {escape(text)}</p>" for text in self.warnings)
        return f"<p><b>{escape(self._value_text)}</b></p><table>{cells}</table>{warnings}"

    @property
    def one_line(self) -> str:
        """The text of ``print(result)`` in one line."""
        details = "; ".join(f"{label} {text}" if label == "bound" else text for label, text in self._details())
        return f"{self._value_text}; {details}{''.join(f'; warning: {text}' for text in self.warnings)}"

    @property
    def _value_text(self) -> str:
        if self.value is None:
            return f"{self.quantity}: no value ({self.outcome.replace('_', ' ')})"
        number = round_outward(self.value, up=self.side is not Side.LOWER)
        side = "NOT A GUARANTEE" if self.side is Side.NONE else str(self.side)
        target = re.sub(r"\b(epsilon|delta|slack|advantage|rate) (?=[\d.])", r"\1 = ", self.target_text)
        target = f", {target}" if target else ""
        return f"{self.quantity} = {number} ({side}{target}){conditional_text(self.data_assumptions)}"

    def _details(self) -> list[tuple[str, str]]:
        assumed = "this assumption" if len(self.data_assumptions) == 1 else "these assumptions"
        proved = f"proved under {assumed}" if self.status is Status.CONDITIONAL else str(self.status)
        relation = str(self.run.get("relation"))
        return [
            *(("assumes", text) for text in self.data_assumptions),
            ("bound", f"{self.bound} ({proved})"),
            ("run", _run_text(self.run)),
            ("neighbors", NEIGHBORS.get(relation, relation)),
        ]

    def _requires(self) -> list[tuple[str, str]]:
        names = [short_name(text) or text for text in self.requirements]
        return [("requires", ", ".join(names))] if names and self.value is not None else []

    @property
    def target_text(self) -> str:
        """The epsilon, delta or attack risk of the target as text; empty if there is none."""
        if self.risk is not None:  # a risk that is the value itself is not repeated
            risks = {"tpr": _fpr_text, "advantage": lambda _: ""}
            return risks.get(self.quantity, risk_text)(self.risk)
        targets = {"epsilon": self.epsilon, "slack" if self.quantity == "gdp_mu" else "delta": self.delta}
        requested = {name: value for name, value in targets.items() if value is not None and name != self.quantity}
        parts = [f"{name} {limit_text(value, up=True)}" for name, value in requested.items()]
        if self.delta is None and self.log10_delta is not None and self.quantity != "delta":
            parts.append(f"delta 10^{limit_text(self.log10_delta, up=True)}")
        return " and ".join(parts)

    @property
    def usable(self) -> bool:
        """True if the value is a guarantee."""
        return self.outcome is Outcome.OK

    @property
    def requirements(self) -> tuple[str, ...]:
        """The requirements on the user's program as text, first of the mechanism, then of the run."""
        lists: Any = (self.mechanism.get("requirements", ()), self.run.get("requirements", ()))
        return tuple(dict.fromkeys(sentence for sentences in lists for sentence in sentences))

    def as_dict(self) -> dict[str, object]:
        """Return the JSON object that the command line prints.

        Returns:
            The fields by name, with the version of the package and of the schema (``privproj/schema.json``). Numbers
            that are not finite are None.
        """
        from privproj.version import __version__

        ends = {"lower": self.lower, "upper": self.upper}
        below = {} if self.lower_bound is None else self.lower_bound.as_dict()
        numerics = {**self.numerics, **below, **self.alternatives}
        names = [one.name for one in fields(self) if one.name not in ("lower_bound", "alternatives", "query", "target")]
        values = [ends if name == "interval" else {name: getattr(self, name)} for name in names]
        plain = {name: as_plain_value(value) for pair in values for name, value in {**pair}.items()}
        plain["numerics"] = as_plain_value(numerics)
        plain["requires"] = [short_name(text) or text for text in self.requirements]
        plain["interval_contains"] = "the true value" if self.side is Side.EXACT else "the value of the named bound"
        if self.outcome not in (Outcome.OK, Outcome.UNSUPPORTED):
            plain["value"] = None
        return {**plain, "version": __version__, "schema": SCHEMA}


class Row(Protocol):
    """A result that :class:`Rows` displays as one row."""

    def as_row(self) -> dict[str, object]:
        """Return the values of the row, by column name."""
        ...


AnyRow = TypeVar("AnyRow", bound=Row)


class Rows(tuple[AnyRow, ...]):
    """A tuple of results that displays one row per line.

    Args:
        iterable: The rows.

    >>> from privproj import Gaussian, compare
    >>> compare(Gaussian(noise_multiplier=1.0), delta=1e-5).to_dict()["bound"][:2]
    ['analytic', 'gdp']
    """

    __slots__ = ()

    def to_dict(self) -> dict[str, list[object]]:
        """Return the columns by name, to build a data frame.

        Returns:
            Lists of one length, for ``pandas.DataFrame(rows.to_dict())`` or ``polars.DataFrame(rows.to_dict())``.
            Missing values are None.
        """
        rows = [row.as_row() for row in self]
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))


def conditional_text(assumptions: Sequence[str]) -> str:
    """Return ", only under an assumption on the data" for a result with assumptions, or ""."""
    if not assumptions:
        return ""
    return f", only under an assumption{' on the data' if set(assumptions) - {Requirement.MEASURED_ROUNDING} else ''}"


def as_plain_value(value: object) -> object:
    """Return a value in the types of JSON; ``nan`` and infinities become None."""
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple | list):
        return [as_plain_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): as_plain_value(item) for key, item in value.items()}
    return value
