"""Outcomes of single checks, and a run over many random examples that counts them and does not stop at a failure."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

BATCH = 500  # examples between two looks at the clock
SETTINGS = settings(
    max_examples=BATCH,
    derandomize=False,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


class RuleBroken(AssertionError):
    """A law does not hold. :func:`failure` makes a subclass for each law, so that hypothesis shrinks each one."""


@cache
def failure(rule: str) -> type[RuleBroken]:
    """Return the exception class of a law."""
    return type(rule, (RuleBroken,), {})


@dataclass
class Check:
    """The outcome of one example."""

    row: str  # line of the report that counts this example
    example: str  # what to type
    flags: set[str] = field(default_factory=set)
    broken: list[tuple[str, str]] = field(default_factory=list)  # pairs of law and sentence that begins with it
    seconds: float = 0.0  # processor time
    growth: float = 0.0  # MiB by which the peak memory of the process rose

    def fail(self, rule: str, sentence: str) -> None:
        """Record a broken law."""
        self.broken.append((rule, f"{rule}: {sentence}"))

    def raise_first(self, known: Iterable[str] = ()) -> None:
        """Raise the failure of the first broken law that is not known yet."""
        for rule, sentence in self.broken:
            if rule not in known:
                raise failure(rule)(f"{sentence}\n    {self.example}")


@dataclass
class Report:
    """Counts by row, the slowest examples, and one smallest example of each broken law."""

    counts: dict[str, Counter] = field(default_factory=dict)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    repeats: Counter = field(default_factory=Counter)
    growth: float = 0.0
    running: Path | None = None  # file that holds the current example, in case the process is killed

    @property
    def examples(self) -> int:
        """Return the number of examples so far, those of shrinking included."""
        return sum(row["examples"] for row in self.counts.values())

    @property
    def totals(self) -> Counter:
        """Return the counts of all rows together."""
        return sum(self.counts.values(), Counter())

    def add(self, check: Check) -> None:
        """Count an example."""
        rules = {rule for rule, _ in check.broken}
        self.counts.setdefault(check.row, Counter()).update(["examples", *check.flags, *rules])
        self.repeats.update(rules)
        self.slowest = sorted([*self.slowest, (check.seconds, check.example[:600])], reverse=True)[:10]
        self.growth = max(self.growth, check.growth)

    def keep(self, check: Check, known: Iterable[str] = ()) -> None:
        """Keep the shortest example of each broken law; of several, the last one unless the law is ``known``."""
        for rule, sentence in check.broken:
            text = f"{sentence}\n    {check.example}"
            most = len(self.failures.get(rule, text)) - (rule in known)
            if len(text) <= most:
                self.failures[rule] = text

    def table(self) -> list[str]:
        """Return the lines of a table of counts: a row of numbers below the names of the counts."""
        columns = [name for name, _ in self.totals.most_common()]
        rows = {**dict(sorted(self.counts.items())), "all": self.totals}
        head = f"{'':34}" + "".join(f"{name[:12]:>13}" for name in columns)
        return [head, *(f"{row:34}" + "".join(f"{c[n] or '-':>13}" for n in columns) for row, c in rows.items())]

    def plain(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "examples": self.examples,
            "counts": {row: dict(counts) for row, counts in sorted(self.counts.items())},
            "totals": dict(self.totals),
            "largest_growth_mib": round(self.growth, 1),
            "slowest": [{"seconds": round(spent, 2), "example": example} for spent, example in self.slowest],
            "failures": [{"law": k, "times": self.repeats[k], "example": text} for k, text in self.failures.items()],
        }


def run_examples(
    report: Report,
    strategy: SearchStrategy,
    check: Callable[[Any], Check],
    examples: int,
    seed: int,
    minutes: float = 1e9,
) -> Report:
    """Check random examples in batches of consecutive seeds, each new failure shrunk by hypothesis."""
    end, last = time.monotonic() + 60.0 * minutes, report.examples + examples

    def run_batch(known: set[str], size: int, seed: int) -> None:
        @hypothesis.seed(seed)
        @settings(SETTINGS, max_examples=size)
        @hypothesis.given(strategy)
        def test(example: Any) -> None:
            if time.monotonic() > end:
                return
            if report.running is not None:
                report.running.write_text(repr(example))
            outcome = check(example)
            report.add(outcome)
            report.keep(outcome, known)  # hypothesis replays the smallest example last
            outcome.raise_first(known)

        with suppress(RuleBroken, ExceptionGroup):  # the report keeps the smallest example
            test()

    while report.examples < last and time.monotonic() < end:
        run_batch(set(report.failures), min(BATCH, last - report.examples), seed)
        seed += 1
    return report


def check_examples(strategy: SearchStrategy, check: Callable[[Any], Check], examples: int) -> None:
    """Check random examples that are the same in every run, and fail with the smallest example of each broken law."""

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), print_blob=False)
    @hypothesis.given(strategy)
    def test(example: Any) -> None:
        check(example).raise_first()

    test()


def distribution_of(sentence: str) -> str:
    """Return a sentence without its numbers and quoted names; the place in brackets is kept, except for a timeout."""
    if sentence.startswith("traceback: overtime"):
        return "traceback: overtime"
    at = re.search(r"\[[^\[]*\]$", sentence)
    head = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d[\d.e+-]*", "#", sentence[: at.start()] if at else sentence)
    return head[:90] + (at.group() if at else "")
