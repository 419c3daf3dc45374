"""Measure the time of every user-visible task, relative to fixed plain Python code in the same run, and its growth.

Usage: python benchmarks/speed.py [--only WORD] [--before TREE] [--growth] [--write | --check]

``--write`` saves the ratios in benchmarks/results/speed.json. ``--check`` measures again and compares with the saved
ratios; the exit code is 1 if a task is more than 1.6 times slower, twice in a row. ``--before TREE`` measures another
checkout too, alternating. Each warm task runs in a separate process with one thread. Its time is CPU time, which
depends less on other processes. The reference code runs between the calls.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

from clock import environment, memory, process, tidy, timed, yardstick

HERE = Path(__file__).parent
KEPT = HERE / "results" / "speed.json"
TOLERANCE = 1.6
TIMEOUT = 120
BUDGET, LEAST_CALLS, MOST_CALLS, SLOW = 2.0, 3, 15, 15.0
COLD_ROUNDS, COLD_BUDGET = 9, 8.0
RUN = "from privproj_cli.main import main; main()"


def environment_of(tree):
    """Return environment variables that select the package of a checkout.

    The folder ``.shim`` of the checkout may have its command line under the name ``privproj_cli``.
    """
    return environment(os.pathsep.join([str(HERE), str(tree), str(Path(tree) / ".shim")]))


def spread(seconds):
    """Return the median and the quartiles of times in seconds."""
    low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {"seconds": middle, "low": low, "high": high}


# --- warm: in the process of the work ---------------------------------------------------------------


def measure_here(call):
    """Return time, ratio to :func:`yardstick` and peak memory of a warm call."""
    first, _ = timed(call, 1.0)
    yardstick()
    times, yards = [], []
    while first < SLOW and len(times) < MOST_CALLS and (len(times) < LEAST_CALLS or sum(times) < BUDGET):
        yards.append(timed(yardstick)[0])
        times.append(timed(call, 1.0 + 1e-7 * (len(times) + 1))[0])
    size = tidy()
    call(1.0 + 1e-6)
    times, yards = times or [first], yards or [timed(yardstick)[0] for _ in range(3)]
    peak = max(0.0, memory("VmHWM") - size)
    return {**spread(times), "ratio": min(times) / min(yards), "first": first, "peak_mib": peak}


def answer_child(name, size):
    """Measure one warm task, or one size of a growing task, and print JSON."""
    import works

    if size:
        found = works.GROWTH[name][1]
        print(json.dumps(measure_here(lambda n: found(int(size), n))))
    else:
        print(json.dumps(measure_here(works.WARM[name])))


# --- in the process of the command ------------------------------------------------------------------


def warm(name, tree, size=""):
    """Return :func:`measure_here` of a task in a new process, or the reason of its failure."""
    command = [sys.executable, str(HERE / "speed.py"), "--child", name, "--size", str(size)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment_of(tree))
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {TIMEOUT} s"}
    lines = done.stdout.splitlines()
    return (
        json.loads(lines[-1]) if not done.returncode and lines else {"failed": (done.stderr.splitlines() or [""])[-1]}
    )


def cold(argv, trees, rounds=COLD_ROUNDS):
    """Return the CPU seconds of a command in each checkout, and those of ``python -c pass``."""
    commands = [
        [sys.executable, "-c", "pass"] if argv is None else [sys.executable, "-c", RUN, *argv.split()] for _ in trees
    ]
    bases, found = [], [[] for _ in trees]
    peaks = [0.0 for _ in trees]
    for _ in range(rounds):
        bases.append(process([sys.executable, "-c", "pass"], environment_of(trees[0]))[0])
        for i, (command, tree) in enumerate(zip(commands, trees, strict=True)):
            seconds, peaks[i], code = process(command, environment_of(tree))
            if code not in (0, 3, 4):
                found[i] = None
                return [{"failed": f"ended with code {code}"} for _ in trees]
            found[i].append(seconds)
        if sum(map(sum, found)) > COLD_BUDGET:
            break
    return [
        {**spread(times), "ratio": min(times) / min(bases), "peak_mib": peak}
        for times, peak in zip(found, peaks, strict=True)
    ]


def measured(only, trees, keep=None):
    """Return the measurements and the limit of every task, by name."""
    import works

    checks, found = works.checks(), {}
    for kind, listed in (("cold", works.COLD), ("warm", works.WARM)):
        for name in listed:
            label = f"{kind}: {name}"
            if only and not any(word in label for word in only):
                continue
            if kind == "cold":
                arguments, limit = listed[name]
                rows = cold(arguments and arguments.format(checks=checks), trees)
            else:
                limit, rows = works.LIMITS.get(name), [warm(name, tree) for tree in trees]
            found[label] = {
                **rows[0],
                "limit": limit,
                "load": os.getloadavg()[0],
                **({"before": rows[1]} if len(rows) > 1 else {}),
            }
            print(line(label, found[label]), file=sys.stderr, flush=True)
            if keep:
                keep(label, found[label])
    os.unlink(checks)
    return found


def line(name, row):
    """Return the measurement of one task as a line of text."""
    if "failed" in row:
        return f"{name:<44} {row['failed']}"
    before = row.get("before", {}).get("seconds")
    gain = f"; before {1e3 * before:.4g} ms, {before / row['seconds']:.2f} times" if before else ""
    return f"{name:<44} {1e3 * row['seconds']:10.4g} ms, {row['ratio']:9.4g} yardsticks{gain}"


def growth(only, tree, keep=None):
    """Return time and memory of growing tasks by size, and the exponents of fitted powers."""
    import works

    found = {}
    for name, (sizes, _) in works.GROWTH.items():
        if only and not any(word in f"growth: {name}" for word in only):
            continue
        rows = {}
        for size in sizes:
            rows[size] = warm(name, tree, size)
            print(f"growth: {name}, {size:g}: {rows[size]}", file=sys.stderr, flush=True)
            if "failed" in rows[size]:
                break
        good = {size: row for size, row in rows.items() if "failed" not in row}
        found[name] = {
            "rows": rows,
            "time": power({size: row["seconds"] for size, row in good.items()}),
            "memory": power({size: max(row["peak_mib"], 0.1) for size, row in good.items()}),
        }
        if keep:
            keep(name, found[name])
    return found


def power(values):
    """Return the exponent of the power of the size that fits best; None for one size.

    The fit is by least squares of logarithms.
    """
    if len(values) < 2:
        return None
    x, y = [math.log(size) for size in values], [math.log(value) for value in values.values()]
    return statistics.linear_regression(x, y).slope


def slower(kept, found):
    """Return the tasks that are more than :data:`TOLERANCE` times slower than saved, or fail."""
    return [
        name
        for name, row in found.items()
        if "ratio" in kept.get(name, {}) and row.get("ratio", math.inf) > TOLERANCE * kept[name]["ratio"]
    ]


def versions():
    from importlib.metadata import version

    return {"python": platform.python_version(), **{name: version(name) for name in ("numpy", "scipy", "numba")}}


def check(only):
    """Measure, compare with the saved ratios, and return the exit code.

    Tasks that seem slower are measured twice.
    """
    kept = json.loads(KEPT.read_text())["works"]
    found = measured(only, [HERE.parent])
    suspects = slower(kept, found)
    again = measured(suspects, [HERE.parent]) if suspects else {}
    lost = [name for name in slower(kept, again) if name in suspects]
    for name in lost:
        print(f"{name}: {again[name].get('ratio', math.inf):.4g} yardsticks, {kept[name]['ratio']:.4g} were kept")
    print(f"{len(found)} works, {len(lost)} more than {TOLERANCE} times slower than before")
    return 1 if lost else 0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("write", "check", "growth"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="WORD")
    parser.add_argument("--before", metavar="TREE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--size", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        answer_child(options.child, options.size)
        return 0
    if options.check:
        return check(options.only)
    trees = [HERE.parent, *([Path(options.before)] if options.before else [])]
    measured(options.only, trees, partial(write, "works") if options.write else None)
    if options.growth:
        growth(options.only, HERE.parent, partial(write, "growth") if options.write else None)
    return 0


def write(part, name, row):
    """Save the measurement of one task, and keep those of all others."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {"works": {}, "growth": {}}
    kept[part][name] = row
    KEPT.write_text(json.dumps({**kept, "versions": versions(), "cores": os.cpu_count()}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
