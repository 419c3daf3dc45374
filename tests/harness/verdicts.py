"""The laws that every answer keeps, each asked of the package's public functions and of the judge."""

import math
import signal
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import privproj
from privproj.errors import InvalidParameter, PrivprojError
from privproj.result import Outcome
from tests.harness import judge

CLOSE = 0.01
"""An exact type profile is within this of the truth (where delta exceeds :data:`SMALL`)."""
SMALL = 1e-12
FAR = 500.0
"""No larger epsilon is judged from above: its delta is at most that of this one."""
SLOW = 5.0
"""Seconds of processor time of one answer."""
EXACT_TYPE = {"analytic", "exact", "rank-free", "exact-rank1", "known-projection", "known-projection-rank1", "residual",
              "secret-projection", "gaussian"}  # fmt: skip
LOOSER = {
    "two-sided": "analytic", "rdp": "analytic", "zcdp": "analytic", "classical": "analytic", "classical-2": "analytic",
    "beta-tail": "beta-tail-sharp", "rank-free": "exact-rank1", "mixture-rdp": "exact-rank1", "gaussian": "rank-free",
    "good-event": "good-event-q", "known-projection": "known-projection-rank1", "operator-norm": None,
    "quantile": "quantile-sharp", "quantile-sharp": "exact", "early": "early-exact-tail", "rdp-tight": "rdp-best",
}  # fmt: skip
"""A bound, and one that is never above it."""
SKETCH_LOOSER = {"rdp": "rdp-tight", "tcdp": "rdp-tight", "rdp-tight": "rdp-best"}
SOLVED_FOR = {
    "sigma": "noise_multiplier",
    "rank": "rank",
    "misalignment": "misalignment",
    "rate": "sampling_rate",
    "steps": "steps",
}


@dataclass
class Verdict:
    """What came of one question: flags for the table, and the laws broken (name, sentence)."""

    asked: object
    flags: set = field(default_factory=set)
    broken: list = field(default_factory=list)
    value: object = None
    seconds: float = 0.0
    asking: str = ""
    """The public question that took longest, or that was not answered in time."""

    def fail(self, law, words):
        self.broken.append((law, words))


def answer(asked, query=None, **changes):
    """The public function's result for a question."""
    query = query or asked.query
    target = {key: changes.pop(key, getattr(asked, key)) for key in ("epsilon", "delta")}
    target = {key: value for key, value in target.items() if value is not None and key != query}
    bound = changes.pop("bound", asked.bound)
    run = {**asked.run, **changes.pop("run", {})}
    if query in ("epsilon", "delta"):
        target = {"delta" if query == "epsilon" else "epsilon": target["delta" if query == "epsilon" else "epsilon"]}
    return getattr(privproj, query)(asked.built(**changes), bound=bound, **target, **run)


class Overtime(Exception):
    """A question took too long, with all that is asked about it."""


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


def judged(asked, ask=answer, deep=True, seconds=60.0):
    """The verdict on a question; ``ask`` is what answers it, ``deep`` asks the dearer laws too."""
    found = Verdict(asked)
    try:
        with alarm(seconds):
            examined(found, ask, deep)
    except Overtime:
        found.flags.add("overtime")
    return found


def timed(found, ask):
    """``ask``, with the longest answer noted."""

    def asked_of(question, **changes):
        slowest, found.asking = found.asking, question.command()
        start = time.process_time()
        try:
            return ask(question, **changes)
        finally:
            spent = time.process_time() - start
            if spent > SLOW:
                found.flags.add("slow")
            if spent <= found.seconds:
                found.asking = slowest
            found.seconds = max(found.seconds, spent)

    return asked_of


def examined(found, ask, deep):
    """All laws of one question."""
    ask = timed(found, ask)
    try:
        result = ask(found.asked)
    except PrivprojError as error:
        return refused(found, error)
    except Overtime:
        raise
    except Exception as error:  # the law is that there is none
        return found.fail("traceback", f"{type(error).__name__}: {error}")
    found.value = result.value
    formed(found, result)
    if result.value is not None and result.outcome is Outcome.OK and not found.broken:
        against_truth(found, result)
        if deep:
            inverses(found, result, ask)
            others(found, result, ask)


def refused(found, error):
    """An error that the package raises on purpose, by its exit code."""
    flag = {2: "usage", 3: "refused", 5: "unanswered"}.get(error.exit_code, "unanswered")
    found.flags.add(flag)
    found.value = f"{flag}: {error}"
    if isinstance(error, InvalidParameter) != (error.exit_code == 2):
        found.fail("outcome", f"{type(error).__name__} with exit code {error.exit_code}")


def formed(found, result):
    """A number in its domain, with an outcome that fits."""
    value, query = result.value, found.asked.query
    if value is None or value == math.inf:
        found.flags.add("vacuous")
        if result.outcome is not Outcome.VACUOUS:
            found.fail("outcome", f"{value} with outcome {result.outcome}")
        return
    if math.isnan(value) or value < 0.0 or (value == 0.0 and query != "epsilon"):
        found.fail("number", f"{query} {value}")
    if query == "delta" and (value > 1.0 or (value >= 1.0) != (result.outcome is Outcome.VACUOUS)):
        found.fail("outcome", f"delta {value} with outcome {result.outcome}")
    if result.lower is not None and result.upper is not None and not result.lower <= result.upper:
        found.fail("ends", f"{result.lower} > {result.upper}")


def completed(asked, result):
    """The question with what was found put in, and ``(epsilon, delta)`` that is claimed of it."""
    name = SOLVED_FOR.get(asked.query)
    if name is None:
        values = {"epsilon": asked.epsilon, "delta": asked.delta, asked.query: float(result.value)}
        return asked, values["epsilon"], values["delta"]
    value = result.value
    if name in ("steps", "sampling_rate"):
        run = {**asked.run, name: value}
        if name == "sampling_rate":
            run["sampling"] = result.run["sampling"] or asked.run.get("sampling")
        return replace(asked, run={k: v for k, v in run.items() if v is not None}), asked.epsilon, asked.delta
    return replace(asked, parameters={**asked.parameters, name: value}), asked.epsilon, asked.delta


def against_truth(found, result):
    """Never below the truth, and not useless."""
    asked, eps, delta = completed(found.asked, result)
    low, high = judge.truth(asked, eps, delta)
    if low is None:
        found.flags.add("not judged")
        return
    found.flags.add("judged")
    if low > delta:
        found.fail(
            "unsafe", f"epsilon {eps!r}: delta is at least {low!r}, claimed {delta!r} ({low / delta - 1:.2e} above)"
        )
    if high is None or found.asked.query not in ("epsilon", "delta"):
        return
    found.flags.add("judged above")
    useless(found, asked, eps, delta, high)


def useless(found, asked, eps, delta, high):
    """An answer far above the bound that was named, where a percent means something."""
    if asked.query == "delta":
        if delta > SMALL and delta > high * (1 + CLOSE) and delta > 2e-12 + high:
            found.fail("useless", f"epsilon {eps!r}: delta {delta!r}, at most {high!r}")
        return
    if eps <= 1e-9 or delta <= SMALL:
        return
    _, smaller = judge.truth(asked, min(eps * (1 - CLOSE), FAR), delta)
    if smaller is not None and smaller <= delta:
        found.fail("useless", f"delta {delta!r}: epsilon {eps!r}, {eps * (1 - CLOSE)!r} meets it")


def inverses(found, result, ask):
    """Asked back, the answer meets its target exactly."""
    asked, eps, delta = completed(found.asked, result)
    back = replace(asked, epsilon=eps, delta=delta)
    for query, given, limit in (("delta", eps, delta), ("epsilon", delta, eps)):
        if query == found.asked.query or not (0.0 < delta < 1.0):
            continue
        try:
            other = ask(replace(back, query=query)).value
        except PrivprojError as error:
            if error.exit_code != 5:
                found.fail("inverse", f"{query} of the answer: {error}")
            continue
        if other is None or not other <= limit:
            over = "" if not isinstance(other, float) or limit == 0 else f" ({other / limit - 1:.2e} above)"
            found.fail("inverse", f"{query} at {given!r} is {other!r} > {limit!r}{over}")


def others(found, result, ask):
    """Laws that compare two questions, one of them chosen by the seed."""
    asked = found.asked
    law = (monotone, basic, order)[asked.seed % 3]
    with suppress(PrivprojError):
        law(found, asked, result, ask)


def monotone(found, asked, result, ask):
    """More noise, fewer steps, a smaller rate: no larger epsilon or delta (but for 1e-6)."""
    if asked.query not in ("epsilon", "delta"):
        return
    easier = {}
    if asked.run.get("steps", 1) > 2:
        easier["fewer steps"] = replace(asked, run={**asked.run, "steps": asked.run["steps"] * 9 // 10})
    if "sampling_rate" in asked.run:
        easier["a smaller rate"] = replace(asked, run={**asked.run, "sampling_rate": asked.run["sampling_rate"] * 0.9})
    if "noise_multiplier" in asked.parameters:
        quiet = {**asked.parameters, "noise_multiplier": asked.parameters["noise_multiplier"] * 1.05}
        easier["more noise"] = replace(asked, parameters=quiet)
    for words, other in easier.items():
        value = ask(other).value
        if value is not None and value > result.value * (1 + 1e-6):
            found.fail("monotone", f"{words}: {asked.query} {value!r} > {result.value!r}")


def basic(found, asked, result, ask):
    """Never above basic composition of the parts."""
    steps = asked.run.get("steps", 1)
    if steps == 1 or asked.query != "epsilon":
        return
    part = ask(replace(asked, delta=asked.delta / steps, run={**asked.run, "steps": 1})).value
    if part is not None and result.value > steps * part * (1 + 1e-9):
        found.fail("basic", f"delta {asked.delta!r}: {result.value!r} > {steps} x {part!r}")


def order(found, asked, result, ask):
    """A looser bound is not below a tighter one."""
    tighter = (SKETCH_LOOSER if asked.mechanism == "sketch" else LOOSER).get(asked.bound)
    if (
        tighter is None
        or asked.query not in ("epsilon", "delta")
        or (asked.mechanism == "m1" and asked.bound == "operator-norm")
    ):
        return
    if asked.mechanism == "sketch-public" and tighter != "exact-rank1":
        return
    if "layers" in asked.parameters or asked.run.get("relation") == "replace" or asked.run.get("sampling") == "fixed":
        return
    other = ask(replace(asked, bound=tighter))
    floor = other.lower if other.lower is not None else (other.value or 0.0) * (1 - 1e-3)
    if floor > result.value * (1 + 1e-6):
        found.fail("order", f"{asked.bound} {result.value!r} < {tighter} {floor!r}")


def tally(verdicts):
    """Counts by kind: questions, flags, laws broken."""
    counts = {}
    for verdict in verdicts:
        row = counts.setdefault(verdict.asked.kind, Counter())
        row["questions"] += 1
        row.update(verdict.flags)
        row.update({law for law, _ in verdict.broken})
    return counts
