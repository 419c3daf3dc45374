"""Compare privproj with scipy and five accounting packages: time, error, peak memory and tightness of every bound.

Usage: python benchmarks/peers.py [--quick] [--again] [--only JOB] [--peer-python PATH]

``--peer-python`` is the interpreter with the peers (``pip install dp-accounting prv-accountant opacus riskcal``; by
default the current one). ``--again`` prints the last results and measures nothing. ``--only JOB`` measures one job
again and keeps the other results. ``--quick`` omits the long runs. Results are in benchmarks/results/peers.json, which
``benchmarks/all.py`` writes into docs/benchmarks.md.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import mpmath as mp
from beta_tail import parameters
from clock import environment, process
from peer_jobs import JOBS
from peer_pages import tables
from peer_references import DIGITS, reference
from tightness import tightness

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "peers.json"
TIMEOUT = 60

OWN = ("privproj", "scipy")
PACKAGES = ("dp-accounting", "prv-accountant", "opacus", "riskcal")
DELTAS = (1e-5, 1e-20, 1e-100)
RUNS = ({"z": 1.0, "q": 0.01, "T": 10**3}, {"z": 0.6, "q": 0.001, "T": 10**5}, {"z": 2.0, "q": 0.05, "T": 10**6})
SAMPLED = {"q": 0.01, "T": 1000}
RATES = [10.0 ** (-4.0 * (1.0 - i / 40.0)) for i in range(40)]

# rows of the sweep for each way to compute the Beta-tail bound
POINTS = {
    "privproj kernel, compiled": 100_000,
    "privproj call, compiled": 100_000,
    "privproj call, plain": 1000,
    "privproj one shot": 1,
    "scipy (naive)": 100,
}

# epsilons at which the Gaussian delta at noise multiplier 1 is evaluated: near 1e-5, at 1e-20, and near 1e-100
EPSILONS = (4.37718086, 9.5109362405743805, 21.44)


def settings(quick):
    """Yield ``(job, parameters)`` of every measurement."""
    for eps in EPSILONS:
        yield "gaussian delta", {"z": 1.0, "eps": eps}
    for delta in DELTAS:
        yield "gaussian epsilon", {"z": 1.0, "delta": delta}
    for delta in DELTAS:
        yield "gaussian sigma", {"eps": 1.0, "delta": delta}
    yield "beta-tail", {}
    yield "rank-free delta", {"dim": 2048, "rank": 16, "z": 0.5, "eps": 0.7}
    yield "rank-free epsilon", {"dim": 2048, "rank": 16, "z": 0.5, "delta": 1e-5}
    for rank, eps in ((16, 0.19), (256, 0.2), (16, 1.0), (256, 2.0)):
        yield "wishart delta", {"dim": 1000, "rank": rank, "misalignment": 8e-6, "eps": eps}
    for run in RUNS[:1] if quick else RUNS:
        for grid in (1e-3, 1e-4):
            yield "dp-sgd epsilon", {**run, "delta": 1e-5, "grid": grid}
    yield "trade-off", {"z": 1.0, **SAMPLED, "rates": RATES, "grid": 1e-3 if quick else 1e-4}
    if not quick:
        yield "dp-sgd sigma", {"eps": 3.0, "delta": 1e-5, **SAMPLED}


def sweep():
    """Return the rows of the Beta-tail sweep, rows that mpmath computes quickly first."""
    rows = list(zip(*parameters(max(POINTS.values())), strict=True))
    return sorted(rows, key=lambda row: row[0] > 10**5 or row[1] > 64)


def requested(tool, job, given, rows):
    return {"rows": rows[: POINTS[tool]]} if job == "beta-tail" else given


def run(tool, job, given, peer_python, *options, timeout=TIMEOUT):
    """Return the JSON output of one job in a separate process, or the reason of its failure."""
    python = sys.executable if tool.startswith(OWN) else peer_python
    command = [python, HERE / "peer_jobs.py", tool, job, *options]
    variables = environment(str(HERE.parent) if python == sys.executable else "")
    try:
        done = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, timeout=timeout, env=variables
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {timeout} s"}
    if done.returncode == -signal.SIGXCPU:
        return {"failed": f"needs more than {options[0]} s"}
    if done.returncode:
        return {"failed": f"ended with code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def error(job, answer, truth):
    """Return the signed error of largest size.

    The error is relative, or a difference for a trade-off function.
    """
    values = answer.get("values") or [answer["value"]]
    wanted = truth if isinstance(truth, list) else [truth]
    with mp.workdps(DIGITS):
        gaps = [
            mp.mpf(v) - w if job == "trade-off" else mp.mpf(v) / w - 1 for v, w in zip(values, wanted, strict=False)
        ]
    return float(max(gaps, key=abs))


def truth_of(job, given, rows):
    """Return the reference values of a job; of a sweep for the first eight rows only."""
    return reference(job, {"rows": rows[:8]} if job == "beta-tail" else given)


def measure(job, given, rows, peer_python):
    """Return the results of all tools for one job."""
    truth, load, found = truth_of(job, given, rows), os.getloadavg()[0], []
    for tool in JOBS[job]:
        parts = requested(tool, job, given, rows)
        row = {"tool": tool, "points": len(parts.get("rows", [0])), **run(tool, job, parts, peer_python)}
        if truth and "answer" in row:
            row["error"] = error(job, row["answer"], truth[0])
        print(
            f"{job} {given if len(str(given)) < 99 else ''} {tool}: {row.get('failed') or row['seconds']}",
            file=sys.stderr,
        )
        found.append(row)
    return {"job": job, "parameters": {k: v for k, v in given.items() if k != "rates"}, "rows": found,
            "half_width": truth[1] if truth else None, "load": max(load, os.getloadavg()[0])}  # fmt: skip


def start_up(peer_python, repeats):
    """Return the least and the median CPU seconds of a peer's command line and of ``python -c pass``."""
    peer = Path(peer_python).parent / "compute-dp-epsilon"
    options = "--noise-multiplier 1 --delta 1e-5 --num-compositions 1000 --sampling-probability 0.01"
    commands = {"python -c pass": [sys.executable, "-c", "pass"]}
    if peer.exists():
        commands["prv-accountant compute-dp-epsilon, DP-SGD, 1000 steps"] = [peer, *options.split()]
    times = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            times[name].append(process(command)[0])
    return [{"command": n, "seconds": min(t), "median": sorted(t)[len(t) // 2]} for n, t in times.items()]


def versions(peer_python):
    code = (
        "import json; from importlib.metadata import version, PackageNotFoundError as E\n"
        "def v(n):\n try: return version(n)\n except E: return 'not installed'\n"
        f"print(json.dumps({{n: v(n) for n in {PACKAGES!r}}}))"
    )
    done = subprocess.run([peer_python, "-c", code], capture_output=True, text=True, check=True)
    own = {name: version(name) for name in ("privproj", "numpy", "scipy", "numba")}
    return {"python": platform.python_version(), **own, **json.loads(done.stdout)}


def again(only, peer_python):
    """Return the last results, with the jobs in ``only`` measured again."""
    results, rows = json.loads(RESULTS.read_text()), sweep()
    kept = [entry for entry in results["jobs"] if entry["job"] not in only]
    anew = [measure(job, given, rows, peer_python) for job, given in settings(results["quick"]) if job in only]
    start = {"start_up": start_up(peer_python, 15)} if "start-up" in only else {}
    return {**results, **start, "jobs": kept + anew}


def measured(quick, peer_python):
    rows = sweep()
    jobs = [measure(job, given, rows, peer_python) for job, given in settings(quick)]
    start = start_up(peer_python, 5 if quick else 15)
    found = {"quick": quick, "timeout": TIMEOUT, "versions": versions(peer_python), "cores": os.cpu_count()}
    return {**found, "jobs": jobs, "start_up": start, "tightness": tightness()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("quick", "again"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--only", action="append", default=[], choices=[*JOBS, "start-up"])
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    if not options.again:
        python = options.peer_python
        found = again(options.only, python) if options.only else measured(options.quick, python)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(tables(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
