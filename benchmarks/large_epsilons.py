"""Compare accountants on DP-SGD with little noise, where epsilon is large and some tools give no result.

Usage: python benchmarks/large_epsilons.py [--quick] [--again] [--peer-python PATH]

Each tool runs each query once, in a new process with a limit on time and memory. ``--peer-python`` is the interpreter
with the peers, as for ``peers.py``. ``--again`` prints the last results and measures nothing. ``--quick`` prints the
table of a short run and writes nothing. Results are in benchmarks/results/large_epsilons.json, which
``benchmarks/all.py`` writes into docs/benchmarks.md.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import peers
from peer_pages import large_table

RESULTS = Path(__file__).parent / "results" / "large_epsilons.json"
LIMIT = 60  # seconds of CPU time for one query
TIMEOUT = 900  # seconds until a query is stopped on a machine with other load
TOOLS = ("privproj", "dp-accounting PLD", "dp-accounting RDP", "prv-accountant", "Opacus RDP", "Opacus PRV")

RUN = {"q": 0.01, "T": 1000, "delta": 1e-6}
# title of a column -> job of peer_jobs.py and its parameters; a grid of None is the default of the tool
QUERIES = {
    "epsilon, z 0.15": ("dp-sgd epsilon", {"z": 0.15, **RUN, "grid": None}),
    "epsilon, z 0.05": ("dp-sgd epsilon", {"z": 0.05, **RUN, "grid": None}),
    "noise multiplier, epsilon 1000": ("dp-sgd sigma", {"eps": 1000.0, **RUN}),
}
QUICK_QUERIES = {"epsilon, z 0.3, T 10": ("dp-sgd epsilon", {"z": 0.3, **RUN, "T": 10, "grid": None})}


def measured(queries, peer_python, limit=LIMIT):
    """Return the results by query and tool: value and CPU seconds, or the reason of a failure."""
    results = {}
    for title, (job, parameters) in queries.items():
        results[title] = {}
        for tool in TOOLS:
            found = peers.run(tool, job, parameters, peer_python, str(limit), timeout=TIMEOUT)
            row = found if "failed" in found else {"value": found["answer"]["value"], "seconds": found["first"]}
            results[title][tool] = row
            print(f"{title}, {tool}: {row}", file=sys.stderr)
    return results


def write(peer_python):
    results = {"limit": LIMIT, "versions": peers.versions(peer_python), "queries": measured(QUERIES, peer_python)}
    results["load"] = os.getloadavg()[2]  # average of 15 minutes
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("quick", "again"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    if options.quick:
        print(large_table(measured(QUICK_QUERIES, options.peer_python)))
        return
    if not options.again:
        write(options.peer_python)
    print(large_table(json.loads(RESULTS.read_text())["queries"]))


if __name__ == "__main__":
    main()
