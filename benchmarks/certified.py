"""Compare results for thousands of random settings with their enclosures by ball arithmetic: side and distance.

Usage: python benchmarks/certified.py [--settings 5000] [--seed 1] [--write | --again]
"""

import argparse
import json
import math
import random
import time
from collections import defaultdict
from pathlib import Path

import privproj
from privproj.contrib.certify.certificate import (
    ball_meets,
    ball_profile,
    composition_of_result,
    enclosure,
    target_field,
)
from privproj.errors import PrecisionError

RESULTS = Path(__file__).parent / "results" / "certified.json"
PAGE = Path(__file__).parents[1] / "docs" / "certified.md"
SECTION = "\n## Training runs\n"  # where the table of certified_runs.py begins, which stays


def log_uniform(rng, low, high):
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def shape(rng, top=1e6):
    dim = round(log_uniform(rng, 2, top))
    return dim, min(dim - 1, round(log_uniform(rng, 1, dim)))


def noise(rng, gain=1.0):
    return log_uniform(rng, 1e-3, 30.0) * gain


def depth(rng):
    """Return a random target ``-log10 delta``, usually at most 12 and sometimes up to 1000."""
    return rng.choice([rng.uniform(0.05, 12.0), log_uniform(rng, 1.0, 300.0), log_uniform(rng, 300.0, 1000.0)])


def gaussian(rng):
    return privproj.Gaussian(noise_multiplier=noise(rng)), "analytic"


def m2(bound):
    def draw(rng):
        dim, rank = shape(rng)
        k = round(log_uniform(rng, 1, dim)) if bound.startswith("beta") else None
        return privproj.M2(dim=dim, rank=rank, change_rank=k, noise_multiplier=noise(rng, (rank / dim) ** 0.5)), bound

    return draw


def wishart(rng):
    dim, rank = shape(rng, 3000)
    if rng.random() < 0.2:
        dim, rank = rank + 1, dim
    return privproj.Wishart(dim=dim, rank=rank, misalignment=max(log_uniform(rng, 1e-12, 0.5) / dim, 1e-15)), "exact"


def sketch(rng):
    return privproj.Sketch(rank=round(log_uniform(rng, 1, 1e5)), gamma=log_uniform(rng, 1.0, 1e6)), "exact-rank1"


def public(bound):
    def draw(rng):
        rank = round(log_uniform(rng, 1, 1e5))
        return privproj.PublicSketch(rank=rank, noise_multiplier=noise(rng)), bound

    return draw


DRAWS = (
    gaussian,
    m2("beta-tail"),
    m2("beta-tail-sharp"),
    m2("exact-rank1"),
    m2("rank-free"),
    wishart,
    sketch,
    public("exact-rank1"),
    public("rank-free"),
)


def query(rng, draw):
    """Return the result of a random epsilon or delta query; None if it has no result."""
    mechanism, bound = draw(rng)
    power = -depth(rng)
    try:
        found = privproj.epsilon(mechanism, bound=bound, log10_delta=power)
        if found.outcome != "ok" or not found.value < 1e8:
            return None
        if found.value > 0.0 and rng.random() < 0.5:
            return found
        return privproj.delta(mechanism, bound=bound, epsilon=found.value * rng.uniform(0.5, 1.1))
    except privproj.PrivprojError:
        return None


def compared(found):
    """Return ``(is_safe, log10 delta, relative margin)`` of a result against its enclosure."""
    phase = composition_of_result(found).only
    profile = ball_profile(phase, phase.run.steps)
    ball, _ = enclosure(profile, found.epsilon, profile.witness(found.epsilon))
    log10 = float(ball.mid().log()) / math.log(10.0)
    return ball_meets(target_field(found), ball), log10, (found.log10_delta - log10) * math.log(10.0)


def drawn(found):
    parameters = {k: v for k, v in found.mechanism.items() if k != "requirements"}
    return f"{found.quantity} {parameters} {found.bound} epsilon={found.epsilon!r} log10_delta={found.log10_delta!r}"


def measured(settings, seed):
    """Return, for each bound, a list of :func:`compared` rows with their CPU seconds."""
    rng, rows = random.Random(seed), defaultdict(list)
    for i in range(settings):
        found = query(rng, DRAWS[i % len(DRAWS)])
        if found is None or found.outcome != "ok":
            rows["nothing to certify"].append(None)
            continue
        name, start = f"{found.mechanism['name']}.{found.bound}", time.process_time()
        try:
            row = compared(found)
            rows[name].append((*row, time.process_time() - start))
            if not row[0]:
                print(f"UNSAFE by {-row[2]:.1e}:", drawn(found))
        except PrecisionError:
            rows["enclosure too wide"].append(drawn(found))
    return rows


def summary(name, rows):
    safe, depths, margins, times = zip(*rows, strict=True)
    return {
        "bound": name,
        "settings": len(rows),
        "unsafe": safe.count(False),
        "least log10 delta": round(min(depths), 1),
        "least margin": min(margins),
        "largest margin": max(margins),
        "median ms": round(1e3 * sorted(times)[len(times) // 2], 1),
    }


def table(rows):
    """Return the Markdown table of the page."""
    heads = "bound | results | smallest delta | smallest relative error | largest relative error"
    lines = [f"| {heads} |", "| --- " * 5 + "|"]
    for row in rows:
        margins = f"{row['least margin']:.1e} | {row['largest margin']:.1e}"
        lines.append(f"| {row['bound']} | {row['settings']} | 10^{row['least log10 delta']:.0f} | {margins} |")
    return "\n".join(lines)


TEXT = """\
<!-- Written by benchmarks/certified.py and benchmarks/certified_runs.py: edit their texts there. -->

# Results against ball arithmetic

privproj computes results in floating-point arithmetic. This page compares these results with
[certificates](certificates.md). privproj computes certificates in ball arithmetic, which bounds all rounding errors.

## One release

We made random queries for epsilon and delta of one release. The dimensions are up to 1e6, and the deltas are from 0.9
to below 1e-1000. A certificate gives an interval that contains the exact delta of the bound. **All {settings} results
are valid upper bounds:** the delta of each result is above the interval of its certificate.

In the table, the relative error is (delta of the result)/(certified delta) - 1.

{table}

{rest} other queries were not compared. Most of them have no finite result or are not supported by certificates.

`python benchmarks/certified.py --settings {drawn} --write` repeats the comparison.
"""


def write(found):
    """Write the first section of docs/certified.md; the section on training runs does not change."""
    rows = found["rows"]
    if any(row["unsafe"] for row in rows):
        raise SystemExit("a result is unsafe")
    settings = sum(row["settings"] for row in rows)
    rest = found["nothing"] + found["wide"]
    page = TEXT.format(drawn=found["settings"], settings=settings, table=table(rows), rest=rest)
    _, *runs = PAGE.read_text().partition(SECTION)
    PAGE.write_text(page + "".join(runs))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--again", action="store_true", help="only write docs/certified.md from the last results")
    options = parser.parse_args()
    if options.again:
        write(json.loads(RESULTS.read_text()))
        return
    rows = measured(options.settings, options.seed)
    nothing, wide = len(rows.pop("nothing to certify", [])), rows.pop("enclosure too wide", [])
    results = {"settings": options.settings, "seed": options.seed, "nothing": nothing, "wide": len(wide)}
    results["rows"] = [summary(name, rows[name]) for name in sorted(rows)]
    print(*results["rows"], *wide[:5], sep="\n")
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=2))
        write(results)
    raise SystemExit(any(row["unsafe"] for row in results["rows"]))


if __name__ == "__main__":
    main()
