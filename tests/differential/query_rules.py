"""The laws that every result of a query keeps, checked with the public functions and the independent reference.

========== =============================================================================================
unsafe     an upper bound on delta is at least the true delta (:mod:`tests.differential.true_delta`)
useless    an exact bound is within 1 % of the true epsilon or delta
inverse    epsilon(delta(e)) <= e and delta(epsilon(d)) <= d; a calibrated parameter meets its target
monotone   more noise, fewer steps or a smaller sampling rate does not increase epsilon or delta
basic      epsilon is at most that of basic composition
order      a looser bound is not below a tighter one
number     a result is a number in its domain
outcome    status and exit code fit the number
ends       the lower end of the enclosure is not above the upper end
traceback  errors are subclasses of PrivprojError
========== =============================================================================================
"""

import math
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import privproj
from privproj.errors import InvalidParameterError, PrivprojError
from privproj.result import Outcome
from tests.differential import true_delta
from tests.differential.queries import Query
from tests.differential.report import Check

CLOSE = 0.01  # relative distance of an exact bound to the true value, where delta exceeds SMALL
SMALL = 1e-12  # delta; the grids of a composition do not resolve smaller ones
FAR = 500.0  # epsilon; larger ones are compared with the delta at this one
SLOW = 5.0  # seconds of processor time of one result
# A bound, and one that is never above it.
LOOSER = {
    "two-sided": "analytic", "rdp": "analytic", "zcdp": "analytic", "classical": "analytic", "classical-2": "analytic",
    "beta-tail": "beta-tail-sharp", "rank-free": "exact-rank1", "mixture-rdp": "exact-rank1", "gaussian": "rank-free",
    "good-event": "good-event-q", "known-projection": "known-projection-rank1", "operator-norm": None,
    "quantile": "quantile-sharp", "quantile-sharp": "exact", "early": "early-exact-tail", "rdp-tight": "rdp-best",
}  # fmt: skip
SKETCH_LOOSER = {"rdp": "rdp-tight", "tcdp": "rdp-tight", "rdp-tight": "rdp-best"}
SOLVED_FOR = {
    "sigma": "noise_multiplier",
    "rank": "rank",
    "misalignment": "misalignment",
    "rate": "sampling_rate",
    "steps": "steps",
}


@dataclass
class QueryCheck(Check):
    """The outcome of one query."""

    query: Query | None = None
    value: object = None
    slowest: str = ""  # the command that took longest, or that ran into the time limit


def evaluate(query, name=None, **changes):
    """Return the result of the public function for a query; ``name`` and ``changes`` replace parts of the query."""
    name = name or query.query
    target = {key: changes.pop(key, getattr(query, key)) for key in ("epsilon", "delta")}
    target = {key: value for key, value in target.items() if value is not None and key != name}
    bound = changes.pop("bound", query.bound)
    run = {**query.run, **changes.pop("run", {})}
    if name in ("epsilon", "delta"):
        target = {"delta" if name == "epsilon" else "epsilon": target["delta" if name == "epsilon" else "epsilon"]}
    return getattr(privproj, name)(query.built(**changes), bound=bound, **target, **run)


class Overtime(Exception):
    """A query and its laws exceeded the time limit."""


@contextmanager
def alarm(seconds):
    """Raise :class:`Overtime` after so much processor time of this process."""

    def ring(*_):
        raise Overtime

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def check_query(query, evaluate=evaluate, all_rules=True, seconds=60.0):
    """Return the :class:`QueryCheck` of a query; ``all_rules`` adds laws on several queries."""
    check = QueryCheck(query.kind, query.command(), query=query)
    try:
        with alarm(seconds):
            check_rules(check, evaluate, all_rules)
    except Overtime:
        check.flags.add("overtime")
    return check


def check_rules(check, evaluate, all_rules):
    """Check all laws of one query, and record the slowest evaluation."""

    def timed(query, **changes):
        previous, check.slowest = check.slowest, query.command()
        start = time.process_time()
        try:
            return evaluate(query, **changes)
        finally:
            spent = time.process_time() - start
            if spent > SLOW:
                check.flags.add("slow")
            if spent <= check.seconds:
                check.slowest = previous
            check.seconds = max(check.seconds, spent)

    try:
        result = timed(check.query)
    except PrivprojError as error:
        return error_rule(check, error)
    except Overtime:
        raise
    except Exception as error:  # the law is that there is none
        return check.fail("traceback", f"{type(error).__name__}: {error}")
    check.value = result.value
    number_rule(check, result)
    if result.value is not None and result.outcome is Outcome.OK and not check.broken:
        reference_rules(check, result)
        if all_rules:
            inverse_rule(check, result, timed)
            with suppress(PrivprojError):
                (monotone_rule, basic_rule, order_rule)[check.query.seed % 3](check, result, timed)


def error_rule(check, error):
    """Classify an error by its exit code; only an invalid parameter has exit code 2."""
    flag = {2: "usage", 3: "refused", 5: "unanswered"}.get(error.exit_code, "unanswered")
    check.flags.add(flag)
    check.value = f"{flag}: {error}"
    if isinstance(error, InvalidParameterError) != (error.exit_code == 2):
        check.fail("outcome", f"{type(error).__name__} with exit code {error.exit_code}")


def number_rule(check, result):
    """Check that the value is in its domain and fits the outcome of the result."""
    value, name = result.value, check.query.query
    if value is None or value == math.inf:
        check.flags.add("vacuous")
        if result.outcome is not Outcome.VACUOUS:
            check.fail("outcome", f"{value} with outcome {result.outcome}")
        return
    if math.isnan(value) or value < 0.0 or (value == 0.0 and name != "epsilon"):
        check.fail("number", f"{name} {value}")
    if name == "delta" and (value > 1.0 or (value >= 1.0) != (result.outcome is Outcome.VACUOUS)):
        check.fail("outcome", f"delta {value} with outcome {result.outcome}")
    if result.lower is not None and result.upper is not None and not result.lower <= result.upper:
        check.fail("ends", f"{result.lower} > {result.upper}")


def completed(query, result):
    """Return the query with the calibrated parameter inserted, and the claimed ``(epsilon, delta)``."""
    name = SOLVED_FOR.get(query.query)
    if name is None:
        values = {"epsilon": query.epsilon, "delta": query.delta, query.query: float(result.value)}
        return query, values["epsilon"], values["delta"]
    value = result.value
    if name in ("steps", "sampling_rate"):
        run = {**query.run, name: value}
        if name == "sampling_rate":
            run["sampling"] = result.run["sampling"] or query.run.get("sampling")
        return replace(query, run={k: v for k, v in run.items() if v is not None}), query.epsilon, query.delta
    return replace(query, parameters={**query.parameters, name: value}), query.epsilon, query.delta


def reference_rules(check, result):
    """Compare the claimed delta with the enclosure of the true one."""
    query, eps, delta = completed(check.query, result)
    low, high = true_delta.enclosure(query, eps, delta)
    if low is None:
        check.flags.add("not checked")
        return
    check.flags.add("checked")
    if low > delta:
        check.fail(
            "unsafe", f"epsilon {eps!r}: delta is at least {low!r}, claimed {delta!r} ({low / delta - 1:.2e} above)"
        )
    if high is None or high == math.inf or check.query.query not in ("epsilon", "delta"):
        return
    check.flags.add("checked above")
    useless_rule(check, query, eps, delta, high)


def useless_rule(check, query, eps, delta, high):
    """Check that the result is within :data:`CLOSE` of the named bound, where delta exceeds :data:`SMALL`."""
    if query.query == "delta":
        if delta > SMALL and delta > high * (1 + CLOSE) and delta > 2e-12 + high:
            check.fail("useless", f"epsilon {eps!r}: delta {delta!r}, at most {high!r}")
        return
    if eps <= 1e-9 or delta <= SMALL:
        return
    _, smaller = true_delta.enclosure(query, min(eps * (1 - CLOSE), FAR), delta)
    if smaller is not None and smaller <= delta:
        check.fail("useless", f"delta {delta!r}: epsilon {eps!r}, {eps * (1 - CLOSE)!r} meets it")


def inverse_rule(check, result, evaluate):
    """Check that evaluating delta and epsilon at the result meets the target exactly."""
    query, eps, delta = completed(check.query, result)
    back = replace(query, epsilon=eps, delta=delta)
    for name, given, limit in (("delta", eps, delta), ("epsilon", delta, eps)):
        if name == check.query.query or not (0.0 < delta < 1.0):
            continue
        try:
            other = evaluate(replace(back, query=name)).value
        except PrivprojError as error:
            if error.exit_code != 5:
                check.fail("inverse", f"{name} of the result: {error}")
            continue
        if other is None or not other <= limit:
            over = "" if not isinstance(other, float) or limit == 0 else f" ({other / limit - 1:.2e} above)"
            check.fail("inverse", f"{name} at {given!r} is {other!r} > {limit!r}{over}")


def monotone_rule(check, result, evaluate):
    """Check that more noise, fewer steps or a smaller rate does not increase the result by more than 1e-6."""
    query = check.query
    if query.query not in ("epsilon", "delta"):
        return
    easier = {}
    if query.run.get("steps", 1) > 2:
        easier["fewer steps"] = replace(query, run={**query.run, "steps": query.run["steps"] * 9 // 10})
    if "sampling_rate" in query.run:
        easier["a smaller rate"] = replace(query, run={**query.run, "sampling_rate": query.run["sampling_rate"] * 0.9})
    if "noise_multiplier" in query.parameters:
        quiet = {**query.parameters, "noise_multiplier": query.parameters["noise_multiplier"] * 1.05}
        easier["more noise"] = replace(query, parameters=quiet)
    for text, other in easier.items():
        value = evaluate(other).value
        if value is not None and value > result.value * (1 + 1e-6):
            check.fail("monotone", f"{text}: {query.query} {value!r} > {result.value!r}")


def basic_rule(check, result, evaluate):
    """Check that epsilon is at most ``T epsilon_1(delta / T)``."""
    query = check.query
    steps = query.run.get("steps", 1)
    if steps == 1 or query.query != "epsilon":
        return
    part = evaluate(replace(query, delta=query.delta / steps, run={**query.run, "steps": 1})).value
    if part is not None and result.value > steps * part * (1 + 1e-9):
        check.fail("basic", f"delta {query.delta!r}: {result.value!r} > {steps} x {part!r}")


def order_rule(check, result, evaluate):
    """Check that a looser bound is not below a tighter one."""
    query = check.query
    tighter = (SKETCH_LOOSER if query.mechanism == "sketch" else LOOSER).get(query.bound)
    if (
        tighter is None
        or query.query not in ("epsilon", "delta")
        or (query.mechanism == "m1" and query.bound == "operator-norm")
    ):
        return
    if query.mechanism == "sketch-public" and tighter != "exact-rank1":
        return
    if "layers" in query.parameters or query.run.get("relation") == "replace" or query.run.get("sampling") == "fixed":
        return
    other = evaluate(replace(query, bound=tighter))
    floor = other.lower if other.lower is not None else (other.value or 0.0) * (1 - 1e-3)
    if floor > result.value * (1 + 1e-6):
        check.fail("order", f"{query.bound} {result.value!r} < {tighter} {floor!r}")
