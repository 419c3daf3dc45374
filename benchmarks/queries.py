"""Compare random queries with an independent evaluation.

Usage: python benchmarks/queries.py -n 20000 --seed 1 -o failures.json

Prints a table of counts by kind of query, and writes queries that violate an invariant or are slow to a JSON file.
"""

import argparse
import json
import os
import sys
import time
from multiprocessing import Pool
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")
ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tests.differential.queries import query_of_seed  # noqa: E402
from tests.differential.query_rules import check_query  # noqa: E402
from tests.differential.report import Report  # noqa: E402

LIMIT = float(os.environ.get("QUERY_SECONDS", "60"))  # processor seconds of one query with all its laws


def checked(seed: int):
    """Return the check of one query."""
    return check_query(query_of_seed(seed), seconds=LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="first query is seed * 10^6")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("-o", "--output", default="queries.json")
    options = parser.parse_args()
    start, report = time.time(), Report()
    first = options.seed * 10**6
    with Pool(options.processes) as pool:
        for check in pool.imap_unordered(checked, range(first, first + options.n), chunksize=4):
            report.add(check)
            report.keep(check)
            if check.broken or {"slow", "overtime", "usage"} & check.flags:
                row = {"flags": sorted(check.flags), "broken": check.broken, "command": check.example,
                       "seconds": check.seconds, "slowest": check.slowest, "value": str(check.value),
                       "query": check.query.plain()}  # fmt: skip
                with Path(options.output).open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if report.examples % 200 == 0:
                print(f"{report.examples} after {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(report.table()))


if __name__ == "__main__":
    main()
