"""Compare every bound with mpmath at fixed settings (``tests/reference/settings.txt``).

``python benchmarks/reference_suite.py`` writes ``benchmarks/results/reference.json`` and prints a table. ``--quick``
takes one setting of each starred line. Reference values in the file are reused without ``--fresh``. ``--again`` only
writes docs/reference.md from the file.
"""

import argparse
import json
import math
import signal
import sys
import time
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from pathlib import Path

import mpmath as mp

import privproj
from privproj.numerics.interval import next_up
from privproj.profiles.approximate_dp import advanced_epsilon

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from reference.settings import REFUTED, settings

from privproj import reference

RESULTS = Path(__file__).parent / "results" / "reference.json"
PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
TEXT = """\
<!-- Written by benchmarks/reference_suite.py: edit its text there. -->

# Results against mpmath

This page compares {compared} results of privproj, mostly epsilons and deltas, with reference values. The reference
values have 14 to 50 digits and come from independent implementations in mpmath (`privproj/reference`).

**All {compared} results are on the safe side of the reference value**: upper bounds are not below the reference value,
and lower bounds are not above it.

The relative error is the distance between result and reference value, divided by the reference value. For a delta below
1e-290, log(delta) is compared instead. The largest relative error is {error}, except for two Renyi bounds of the
mechanism `sketch` (`rdp-best` and `rdp-tight`). For deltas below 1e-300, log(delta) of these two bounds has a relative
error of at most {loose}.

{table}

`python benchmarks/reference_suite.py --write` repeats the comparison. {missing} other cases are not compared, because
mpmath needs more than {seconds} s, or because no finite value exists.
"""
TITLES = {"rule": "composition of (epsilon, delta)"}
LOOSE = ("sketch.rdp-best", "sketch.rdp-tight")  # Renyi curves, loose near their last order
SECONDS = 40
TINY = 1e-290


@dataclass(frozen=True)
class Row:
    """The comparison of one setting with mpmath.

    ``error`` and ``margin`` are relative. For deltas below 1e-290 they are those of the logarithm.
    """

    setting: str
    bound: str
    outcome: str
    reference: str | None = None
    value: float | None = None
    lower: float | None = None
    log10_value: float | None = None
    error: float | None = None
    margin: float | None = None
    below: float | None = None
    digits: int = 50
    seconds: float = 0.0


def out_of_time(*_):
    raise TimeoutError


def truth(setting, seconds=SECONDS):
    """Return the reference value as text; None if it takes too long."""
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(seconds)
    try:
        return mp.nstr(reference.value(setting.quantity, **dict(setting.parameters)), 50, strip_zeros=False)
    except (TimeoutError, ArithmeticError, mp.libmp.NoConvergence) as error:
        print(f"no reference for {setting}: {error!r}", file=sys.stderr)
        return None
    finally:
        signal.alarm(0)


RULES = {
    "rule.basic-composition.epsilon": lambda epsilon, steps: next_up(steps * epsilon),
    "rule.advanced-composition.epsilon": lambda epsilon, steps, slack: advanced_epsilon(epsilon, steps, slack),
}


def answer(setting):
    """Return ``(outcome, value, lower, log10 delta)`` of privproj."""
    parameters = dict(setting.parameters)
    if setting.bound in REFUTED:
        parameters["allow_refuted"] = True
    if setting.quantity in RULES:
        return "ok", RULES[setting.quantity](**parameters), None, None
    try:
        result = privproj.evaluate(setting.quantity, **parameters)
    except privproj.PrivprojError as error:
        return getattr(error, "outcome", "unsupported"), None, None, None
    of_delta = setting.quantity.endswith(".delta")
    return str(result.outcome), result.value, result.lower, result.log10_delta if of_delta else None


def compared(setting, known=None, limit=SECONDS):
    """Return the row of a setting; ``known`` is a reference of an earlier run."""
    start = time.perf_counter()
    exact = known or truth(setting, limit)
    seconds = time.perf_counter() - start
    outcome, value, lower, log10_value = answer(setting)
    about = {"setting": str(setting), "bound": setting.bound, "outcome": outcome, "reference": exact}
    about["digits"] = reference.reference_digits(setting.quantity, dict(setting.parameters))
    if exact is None or value is None or math.isinf(value):
        return Row(**about, value=value, seconds=seconds)
    with mp.workdps(60):
        margin, below = margins(mp.mpf(exact), value, lower, log10_value)
        margin = -margin if setting.quantity.endswith(".gain") else margin
    numbers = {"value": value, "lower": lower, "log10_value": log10_value, "seconds": seconds}
    return Row(**about, **numbers, error=abs(margin), margin=margin, below=below)


def margins(exact, value, lower, log10_value):
    """Return ``(value/exact - 1, 1 - lower/exact)``; for a tiny delta from logarithms."""
    if log10_value is not None and exact < TINY:
        return float(1 - log10_value / mp.log10(exact)) if exact > 0 else 0.0, None
    if exact == 0:
        return float(value), None if lower is None else float(-lower)
    return float(mp.mpf(value) / exact - 1), None if lower is None else float(1 - mp.mpf(lower) / exact)


def relevant(row):
    return row.error is not None


def table(rows):
    """Return a Markdown table with one line for each bound."""
    lines = [
        "| bound | settings | compared | digits | unsupported or vacuous | largest relative error | "
        "smallest margin (value) | smallest margin (lower) | worst setting |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for bound in dict.fromkeys(row.bound for row in rows):
        mine = [row for row in rows if row.bound == bound]
        lines.append(line_of(bound, mine, [row for row in mine if relevant(row)]))
    return "\n".join(lines)


def line_of(bound, mine, compared_rows):
    rejected = sum(row.outcome != "ok" for row in mine)
    if not compared_rows:
        return f"| {bound} | {len(mine)} | 0 | | {rejected} | | | | |"
    worst = max(compared_rows, key=lambda row: row.error)
    below = [row.below for row in compared_rows if row.below is not None]
    ends = f"{min(row.margin for row in compared_rows):.1e} | " + (f"{min(below):.1e}" if below else "-")
    least_digits = min(row.digits for row in compared_rows)
    where = worst.setting.removeprefix(worst.bound)
    counts = f"{len(mine)} | {len(compared_rows)} | {least_digits} | {rejected}"
    return f"| {bound} | {counts} | {worst.error:.1e} | {ends} | {where} |"


def rounded(value, *, up):
    """Return a number with two digits, rounded in one direction."""
    context = Context(prec=2, rounding=ROUND_CEILING if up else ROUND_FLOOR)
    return f"{context.create_decimal(value):.1e}" if value else "0"


def page(rows):
    """Return docs/reference.md, with a row for each mechanism."""
    lines = [
        "| mechanism | number of bounds | number of results | largest relative error | smallest relative error |",
        "| --- | --- | --- | --- | --- |",
    ]
    shown = [row for row in rows if relevant(row)]
    for name in dict.fromkeys(row.bound.split(".")[0] for row in rows):
        mine = [row for row in shown if row.bound.startswith(f"{name}.")]
        bounds = len({row.bound for row in mine})
        errors = [row.error for row in mine]
        largest, smallest = rounded(max(errors), up=True), rounded(min(errors), up=False)
        lines.append(f"| {TITLES.get(name, name)} | {bounds} | {len(mine)} | {largest} | {smallest} |")
    if min(margin for row in shown for margin in (row.margin, row.below) if margin is not None) < 0.0:
        raise SystemExit("a result is not on the safe side: see the table")
    return TEXT.format(
        compared=len(shown), missing=len(rows) - len(shown), seconds=SECONDS, table="\n".join(lines),
        error=rounded(max(row.error for row in shown if row.bound not in LOOSE), up=True),
        loose=rounded(max(row.error for row in shown if row.bound in LOOSE), up=True),
    )  # fmt: skip


def save(rows):
    RESULTS.write_text(json.dumps({"rows": list(rows)}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--again", action="store_true", help="only write docs/reference.md from the last results")
    parser.add_argument("--write", action="store_true", help="write docs/reference.md too")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="given to each reference")
    chosen = parser.parse_args()
    if chosen.again:
        PAGE.write_text(page([Row(**row) for row in json.loads(RESULTS.read_text())["rows"]]))
        return
    kept = {}
    if RESULTS.exists() and not chosen.fresh:
        kept = {row["setting"]: row for row in json.loads(RESULTS.read_text())["rows"] if row["reference"]}
    rows = []
    for setting in settings(chosen.quick):
        old = kept.get(str(setting))
        row = compared(setting, old["reference"] if old else None, chosen.seconds)
        rows.append(row if old is None else Row(**{**asdict(row), "seconds": old["seconds"]}))
        kept[str(setting)] = asdict(rows[-1])
        if old is None:
            save(kept.values())
    if not chosen.quick:
        save([asdict(row) for row in rows])
    print(table(rows))
    if chosen.write:
        PAGE.write_text(page(rows))
    print(f"\n{len(rows)} settings, {sum(row.seconds for row in rows):.0f} s of reference")


if __name__ == "__main__":
    main()
