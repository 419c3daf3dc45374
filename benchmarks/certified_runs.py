"""Compare random runs composed in floating point with their enclosures by ball arithmetic.

Usage: python benchmarks/certified_runs.py [--runs 5000] [--seed 1] [--jobs 1] [--long] [--write]

Results are saved as they are computed, in benchmarks/results/certified_runs.json. ``--write`` writes the table of the
saved results into docs/certified.md and computes nothing.
"""

import argparse
import json
import math
import random
import signal
import time
import warnings
from multiprocessing import Pool
from pathlib import Path

from privproj.composition.compose import releases_of
from privproj.contrib.certify.certificate import (
    ball_meets,
    check_provable,
    is_run,
    prove_run,
    target_field,
)
from privproj.contrib.certify.grids import propose_grid
from privproj.errors import ConvergenceError, PrecisionError, PrivprojError
from privproj.schedule import from_data

RESULTS = Path(__file__).parent / "results" / "certified_runs.json"
PAGE = Path(__file__).parents[1] / "docs" / "certified.md"
SECTION = "\n## Training runs\n"
LOOSE = 1e-3
LARGEST_WINDOW = 1 << 16
SECONDS = 300


def log_uniform(rng, low, high):
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def mechanism(rng, kind, level, replace):
    """Return the entry and the bound of a random mechanism of this kind.

    Its release is about as noisy as a Gaussian release with the noise multiplier ``level``.
    """
    if kind == "m2":
        dim = round(log_uniform(rng, 4, 3e4))
        rank = min(dim - 1, round(log_uniform(rng, 1, dim)))
        bound = "rank-free" if replace else rng.choice(["exact-rank1", "rank-free"])
        return {"mechanism": kind, "dim": dim, "rank": rank, "noise_multiplier": level * (rank / dim) ** 0.5}, bound
    if kind == "sketch-public":
        bound = "rank-free" if replace else rng.choice(["exact-rank1", "rank-free"])
        rank = round(log_uniform(rng, 2, 1e4))
        return {"mechanism": kind, "rank": rank, "noise_multiplier": level}, bound
    if kind == "sketch":
        rank = round(log_uniform(rng, 1, 1e3))
        return {"mechanism": kind, "rank": rank, "gamma": max(2.0, level * rank**0.5)}, "exact-rank1"
    return {"mechanism": kind, "noise_multiplier": level}, {"gaussian": "analytic"}.get(kind)


def phase(rng, relation, alone):
    """Return a random phase as an entry of a run file."""
    weights = [8, 3, 3, 1, 0 if relation == "replace" else 1]
    kind = rng.choices(["gaussian", "laplace", "m2", "sketch-public", "sketch"], weights)[0]
    whole = 0.2 if kind != "gaussian" or not alone else 0.02
    rate = 1.0 if kind == "sketch" or rng.random() < whole else log_uniform(rng, 1e-4, 1.0)
    # Few are long: a window has about 300 sqrt(T) cells.
    steps = round(1e5 ** (rng.random() ** 1.4 if rate < 1.0 else 0.6 * rng.random()))
    # The loss of a run is about q sqrt(T) / z where z is above 1.
    level = max(0.35, rate * steps**0.5 * log_uniform(rng, 0.05, 10.0))
    given, bound = mechanism(rng, kind, level, relation == "replace")
    given |= {"sampling_rate": rate, "steps": steps}
    if rate < 1.0:
        given["sampling"] = "fixed" if relation == "replace" else "poisson"
    return given | ({"bound": bound} if bound else {})


def draw(rng):
    """Return a random run as the data of a run file, and the decimal logarithm of its target delta."""
    relation = rng.choices(["add-remove", "zero-out", "replace"], [4, 1, 2])[0]
    count = rng.choices([1, 2, 3], [8, 2, 1])[0]
    phases = [phase(rng, relation, count == 1) for _ in range(count)]
    power = -rng.choice([rng.uniform(3.0, 8.0), rng.uniform(3.0, 30.0)])
    return {"relation": relation, "phase": phases}, power


def compared(seed, number, long):
    """Return the record of one random run: its parameters and the outcome of the comparison."""
    rng = random.Random(f"{seed} {number}")
    data, power = draw(rng)
    found = {"number": number, "kinds": sorted({p["mechanism"] for p in data["phase"]}), "log10_delta": power}
    found |= {"phases": len(data["phase"]), "relation": data["relation"]}
    signal.signal(signal.SIGALRM, _too_slow)
    signal.alarm(SECONDS)
    try:
        found |= _compare(data, power, long)
    except TimeoutError:
        found["outcome"] = f"skipped: a running time of more than {SECONDS} s"
    except ConvergenceError as error:
        found |= {"outcome": "ConvergenceError", "words": str(error)[:300]}
    except PrecisionError as error:
        found["outcome"] = "refused: " + str(error).split(";")[0].split(", got")[0]
    except PrivprojError as error:
        found["outcome"] = "refused: " + str(error).split(";")[0].split(", got")[0][:120]
    except Exception as error:
        found |= {"outcome": "crash", "words": repr(error)[:300]}
    finally:
        signal.alarm(0)
    if found["outcome"] in ("crash", "ConvergenceError") or found.get("findings"):
        found["data"] = data
    return found


def _too_slow(*_):
    raise TimeoutError


def _compare(data, power, long):
    """Return the outcome of a run: both epsilons, and the list of its findings."""
    delta, requested = 10.0**power, from_data(data)
    check_provable(requested.phases)
    if not is_run(requested.phases):
        reason = "no privacy loss grid (one release on the whole dataset, or releases that compose in closed form)"
        return {"outcome": f"skipped: {reason}"}
    if not long:
        releases = [release for phase in requested.phases for release in releases_of(*phase.profile())]
        grid = propose_grid(releases, math.log(delta))
        if max(window.size for window in grid.windows) > LARGEST_WINDOW:
            return {"outcome": f"skipped: a privacy loss grid of more than {LARGEST_WINDOW} cells"}
    start = time.process_time()
    plain = requested.epsilon(delta=delta)
    if plain.outcome != "ok":
        return {"outcome": f"no epsilon: {plain.outcome}"}
    seconds_float, start = time.process_time() - start, time.process_time()
    run, certified = prove_run(requested.phases, math.log(delta), plain.value)
    seconds = time.process_time() - start
    target, findings = target_field(plain), []
    # delta at the float value is at least its certified lower end; at the float lower end at most its upper end.
    if not ball_meets(target, run.lower(plain.value)):
        findings.append("unsafe float value")
    if plain.lower is not None and plain.lower > 0 and run.upper(plain.lower) < delta * (1 - 1e-12):
        findings.append("unsafe float lower end")
    if certified > plain.value * (1 + LOOSE) + 1e-9:
        findings.append("loose certificate")
    if plain.value > certified * (1 + LOOSE) + 1e-9:
        findings.append("loose float")
    return {
        "outcome": "compared",
        "findings": findings,
        "value": plain.value,
        "lower": plain.lower,
        "certified": certified,
        "gap": certified / plain.value - 1 if plain.value > 0 else 0.0,
        "cells": max(window.size for window in run.grid.windows),
        "bits": run.bits,
        "steps": sum(query.run.steps for query in requested.phases),
        "seconds": round(seconds, 2),
        "seconds_float": round(seconds_float, 2),
    }


def _star(arguments):
    warnings.simplefilter("ignore")
    return compared(*arguments)


def measured(runs, seed, jobs, long):
    """Compare all runs, and write the file of results every 20 seconds."""
    rows, last = [], time.monotonic()
    with Pool(jobs, maxtasksperchild=500) as pool:
        for row in pool.imap_unordered(_star, ((seed, number, long) for number in range(runs))):
            rows.append(row)
            if row.get("findings") or row["outcome"] in ("crash", "ConvergenceError"):
                print(json.dumps(row), flush=True)
            if time.monotonic() - last > 20:
                keep(rows, seed)
                last = time.monotonic()
    keep(rows, seed)


def keep(rows, seed):
    rows = sorted(rows, key=lambda row: row["number"])
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps({"seed": seed, "runs": len(rows), "rows": rows}, indent=0) + "\n")
    part.replace(RESULTS)


def table(rows):
    """Return the Markdown table of the page: gaps and times by the mechanisms of a run."""
    ratio = "relative difference"
    heads = f"mechanism | runs | {ratio}, median | {ratio}, largest | CPU time of `certify`, median (s)"
    lines = [f"| {heads} |", "| --- " * 5 + "|"]
    kinds = [row["kinds"][0] if len(row["kinds"]) == 1 else "several mechanisms" for row in rows]
    for kind in sorted(set(kinds)):
        own = [row for row, name in zip(rows, kinds, strict=True) if name == kind]
        gaps, times = sorted(row["gap"] for row in own), sorted(row["seconds"] for row in own)
        middle = len(own) // 2
        lines.append(f"| {kind} | {len(own)} | {gaps[middle]:.1e} | {gaps[-1]:.1e} | {times[middle]} |")
    return "\n".join(lines)


TEXT = """
The table compares the results of `privproj epsilon` (floating-point arithmetic) and `privproj certify` (ball
arithmetic) for {compared} random training runs. The runs have up to 1e5 steps, sampling rates from 1e-4 to 1, and
deltas from 1e-3 to 1e-30. **No certificate shows that a result is too small.**

`privproj epsilon` gives the computed epsilon, and `privproj certify` the certified epsilon. Their relative difference
is (certified epsilon) / (computed epsilon) - 1. It is negative if the certified epsilon is smaller.

{table}

{skipped} other runs were not compared. Most of them have a privacy loss grid that is too large for this comparison.

`python benchmarks/certified_runs.py` repeats the comparison.
"""


def written():
    """Write the table of the saved results into docs/certified.md, after its first section."""
    found = json.loads(RESULTS.read_text())
    rows = [row for row in found["rows"] if row["outcome"] == "compared"]
    if any("unsafe" in finding for row in rows for finding in row["findings"]):
        raise SystemExit("a result is unsafe")
    text = TEXT.format(skipped=found["runs"] - len(rows), compared=len(rows), table=table(rows))
    first = PAGE.read_text().split(SECTION)[0].rstrip() + "\n"
    PAGE.write_text(first + SECTION + text)
    print(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.write:
        written()
        return
    measured(options.runs, options.seed, options.jobs, options.long)


if __name__ == "__main__":
    main()
