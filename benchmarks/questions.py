"""Random questions against an independent evaluation.

Usage: python benchmarks/questions.py -n 20000 --seed 1 -o failures.json

Prints a table of counts by kind of question, and writes the questions that broke a law to a JSON file.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness import questions, verdicts  # noqa: E402

COLUMNS = ("questions", "judged", "judged above", "not judged", "unsafe", "useless", "inverse", "basic", "order",
           "monotone", "ends", "number", "outcome", "traceback", "slow", "overtime", "refused", "usage", "unanswered",
           "vacuous")  # fmt: skip
SHORT = ("asked", "judged", "above", "not", "unsafe", "useless", "inverse", "basic", "order", "monot.", "ends",
         "number", "outcome", "trace", "slow", "overtime", "refused", "usage", "unansw.", "vacuous")  # fmt: skip


def examined(seed: int) -> dict:
    """One question, as plain values."""
    asked = questions.question(seed)
    found = verdicts.judged(asked, seconds=LIMIT)
    return {
        "kind": asked.kind, "query": asked.query, "seed": seed, "flags": sorted(found.flags), "seconds": found.seconds,
        "broken": found.broken, "command": asked.command(), "slowest": found.asking, "value": str(found.value),
        "question": asked.plain(),
    }  # fmt: skip


LIMIT = float(os.environ.get("QUESTION_SECONDS", "60"))
"""Seconds of processor time of one question with all its laws."""


def table(rows: list[dict]) -> list[str]:
    """Counts by kind."""
    counts: dict[str, Counter] = {}
    for row in rows:
        for key in (row["kind"], "all"):
            counts.setdefault(key, Counter())["questions"] += 1
            counts[key].update(row["flags"])
            counts[key].update({law for law, _ in row["broken"]})
    lines = [f"{'kind':34}" + "".join(f"{name:>9}" for name in SHORT)]
    return lines + [
        f"{kind:34}" + "".join(f"{counts[kind][name] or '-':>9}" for name in COLUMNS) for kind in sorted(counts)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="first question is seed * 10^6")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", default="questions.json")
    options = parser.parse_args()
    start, rows = time.time(), []
    first = options.seed * 10**6
    with Pool(options.processes) as pool:
        for row in pool.imap_unordered(examined, range(first, first + options.n), chunksize=4):
            rows.append(row)
            if row["broken"] or {"slow", "overtime", "usage"} & set(row["flags"]):
                with Path(options.output).open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if len(rows) % 200 == 0:
                print(f"{len(rows)} after {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
