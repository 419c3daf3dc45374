"""Many cases, none of which stops the others: counts by exit code, slowest cases, one example of each failure."""

import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings

from tests.fuzz.laws import broken, call
from tests.fuzz.strategies import Case, everything

BATCH = 500
SETTINGS = settings(
    max_examples=BATCH,
    derandomize=False,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Tally:
    """What has been seen so far; ``running`` holds the case being run, should one kill the process."""

    codes: Counter = field(default_factory=Counter)
    commands: Counter = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    failures: dict[str, tuple[Case, str]] = field(default_factory=dict)
    repeats: Counter = field(default_factory=Counter)
    largest: float = 0.0
    running: Path | None = None

    @property
    def cases(self) -> int:
        """How many cases have run."""
        return sum(self.codes.values())

    def judge(self, case: Case) -> list[str]:
        """Run a case and count it; returns the kinds of its failures."""
        if self.running is not None:
            self.running.write_text(repr(case))
        seen = call(case)
        self.codes[str(seen.code)] += 1
        self.commands[case.words[0][:20] if case.words else ""] += 1
        self.slowest = sorted([*self.slowest, (seen.seconds, str(case)[:600])], reverse=True)[:10]
        self.largest = max(self.largest, seen.growth)
        return [self.fail(case, sentence) for sentence in broken(case, seen)]

    def fail(self, case: Case, sentence: str) -> str:
        """Keep the shortest case of each kind of failure."""
        kind = kind_of(sentence)
        self.repeats[kind] += 1
        if kind not in self.failures or len(str(case)) < len(str(self.failures[kind][0])):
            self.failures[kind] = (case, sentence)
        return kind


def kind_of(sentence: str) -> str:
    """A failure without its numbers and names; where it happened is kept, but for one that takes too long."""
    if sentence.startswith("traceback: overtime"):
        return "traceback: overtime"
    at = re.search(r"\[[^\[]*\]$", sentence)
    head = re.sub(r"'[^']*'|\"[^\"]*\"|-?\d[\d.e+-]*", "#", sentence[: at.start()] if at else sentence)
    return head[:90] + (at.group() if at else "")


def drive(tally: Tally, cases: int, seed: int, minutes: float = 1e9) -> Tally:
    """Run so many more cases by hypothesis, in batches that start from seeds in a row, or until the time is up."""
    end, last = time.monotonic() + 60.0 * minutes, tally.cases + cases
    while tally.cases < last and time.monotonic() < end:
        batch(tally, seed, min(BATCH, last - tally.cases), end)
        seed += 1
    return tally


def batch(tally: Tally, seed: int, cases: int, end: float = float("inf")) -> None:
    """One batch."""

    @hypothesis.seed(seed)
    @settings(SETTINGS, max_examples=cases)
    @hypothesis.given(everything())
    def judge(case: Case) -> None:
        if time.monotonic() < end:
            tally.judge(case)

    judge()


# --- smaller ones ---------------------------------------------------------------------------------


def minimised(case: Case, kind: str, seconds: float = 20.0) -> Case:
    """A smaller case of the same failure: words, lines, then stretches of bytes left out while it stays."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        smaller = next((c for c in shorter(case) if time.monotonic() < end and shows(c, kind)), None)
        if smaller is None:
            return case
        case = smaller
    return case


def shows(case: Case, kind: str) -> bool:
    """True if the case fails in this way."""
    return kind in map(kind_of, broken(case, call(case)))


def shorter(case: Case) -> list[Case]:
    """Cases with something left out."""
    words = case.words
    found = [replace(case, words=words[:i] + words[i + n :]) for n in (2, 1) for i in range(1, len(words))]
    for name, data in case.files.items():
        lines = data.split(b"\n")
        parts = [b"\n".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))] if len(lines) > 1 else []
        width = len(data) // 2
        while width:
            parts += [data[:i] + data[i + width :] for i in range(0, len(data), width)][:64]
            width //= 2
        found += [replace(case, files={**case.files, name: part}) for part in parts if part != data]
    return found
