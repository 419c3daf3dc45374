"""Compare results for thousands of random settings with their enclosures by ball arithmetic: side and distance.

Usage: python benchmarks/certified.py [--settings 5000] [--seed 1] [--write]
"""

import argparse
import json
import math
import random
import time
from collections import defaultdict
from pathlib import Path

import privproj
from privproj.contrib.certify.certificate import _question_of, ball_meets, ball_profile, enclosure, target_field
from privproj.errors import PrecisionError

RESULTS = Path(__file__).parent / "results" / "certified.json"
PAGE = Path(__file__).parents[1] / "docs" / "certified.md"
SECTION = "\n## Runs\n"  # where the table of certified_runs.py begins, which stays


def log_uniform(rng, low, high):
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def shape(rng, top=1e6):
    dim = round(log_uniform(rng, 2, top))
    return dim, min(dim - 1, round(log_uniform(rng, 1, dim)))


def noise(rng, gain=1.0):
    return log_uniform(rng, 1e-3, 30.0) * gain


def depth(rng):
    """A target for ``-log10 delta``: mostly what people use, sometimes down to 1e-1000."""
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


def question(rng, draw):
    """A random epsilon, delta or sigma question, answered; None where the tool refuses or nothing fits."""
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
    """``(safe, log10 delta, relative margin)`` of an answer against its enclosure."""
    phase = _question_of(found).only
    profile = ball_profile(phase, phase.run.steps)
    ball, _ = enclosure(profile, found.epsilon, profile.witness(found.epsilon))
    log10 = float(ball.mid().log()) / math.log(10.0)
    return ball_meets(target_field(found), ball), log10, (found.log10_delta - log10) * math.log(10.0)


def drawn(found):
    """A setting in words."""
    parameters = {k: v for k, v in found.mechanism.items() if k != "requirements"}
    return f"{found.quantity} {parameters} {found.bound} epsilon={found.epsilon!r} log10_delta={found.log10_delta!r}"


def measured(settings, seed):
    """One row for each bound: how many, how many unsafe, margins, times."""
    rng, rows = random.Random(seed), defaultdict(list)
    for i in range(settings):
        found = question(rng, DRAWS[i % len(DRAWS)])
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
    keys = list(rows[0])
    lines = ["| " + " | ".join(keys) + " |", "| " + " | ".join("---" for _ in keys) + " |"]
    shown = [[f"{v:.1e}" if k.endswith("margin") else str(v) for k, v in row.items()] for row in rows]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in shown)])


TEXT = """# Floating point against proofs

`python benchmarks/certified.py --settings {settings} --write` draws random settings (dimensions to 1e6, deltas from
0.9 to 1e-1000), answers each in floating point, encloses the same delta by ball arithmetic, and compares. An answer is
unsafe if the enclosure does not lie below it. Margins are relative distances of the answer above the enclosure.

{table}

Settings in which no finite epsilon exists or the tool refuses: {nothing}. Enclosures that stayed too wide: {wide}.
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--settings", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = measured(options.settings, options.seed)
    nothing, wide = len(rows.pop("nothing to certify", [])), rows.pop("enclosure too wide", [])
    found = [summary(name, rows[name]) for name in sorted(rows)]
    page = TEXT.format(settings=options.settings, table=table(found), nothing=nothing, wide=len(wide))
    print(page, *wide[:5], sep="\n")
    if options.write:
        RESULTS.write_text(json.dumps({"settings": options.settings, "seed": options.seed, "rows": found}, indent=2))
        _, *runs = PAGE.read_text().partition(SECTION)
        PAGE.write_text(page + "".join(runs))
    raise SystemExit(any(row["unsafe"] for row in found))


if __name__ == "__main__":
    main()
