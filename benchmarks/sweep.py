"""Compare a sweep with the same library calls in one process, and with a sweep that is killed at random times.

Usage: python benchmarks/sweep.py [--rows 100000] [--query delta|epsilon] [--kills 5] [--workers 1]

``benchmarks/all.py`` calls :func:`measured`, which compares one worker with two, and a long table with a short one.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clock import process

import privproj

KEPT = Path(__file__).parent / "results" / "sweep.json"
COMMAND = str(Path(sys.executable).with_name("privproj"))


def grid(rows, query):
    """Return a grid file of rank-free queries with this many rows, as data."""
    ranks, target = [2, 4, 8, 16], {"delta": {"epsilon": 1.0}, "epsilon": {"delta": 1e-5}}[query]
    noise = [0.2 + 10.0 * i / rows for i in range(rows // 20)]
    axes = {"dim": [512, 1024, 2048, 4096, 8192], "rank": ranks, "noise_multiplier": noise}
    return {"query": query, "mechanism": "m2", **target, "grid": axes}


def measured():
    return [one_sweep(rows, workers) for rows, workers in ((10**5, 1), (10**6, 1), (10**6, 2))]


def one_sweep(rows, workers):
    """Return CPU and wall seconds and peak memory of one sweep command."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        file, out = (Path(folder) / name for name in ("grid.json", "out.csv"))
        file.write_text(json.dumps(grid(rows, "delta")))
        start = time.perf_counter()
        cpu, peak, code = process([COMMAND, "sweep", file, "-o", out, "--workers", workers])
        wall = time.perf_counter() - start
    if code:
        raise RuntimeError(f"a sweep of {rows} rows ended with code {code}")
    return {"rows": rows, "workers": workers, "cpu": cpu, "wall": wall, "peak_mib": peak, "load": load}


def library(found):
    """Return the CPU seconds of the same queries by library calls."""
    ask = getattr(privproj, found["query"])
    target = {name: found[name] for name in ("epsilon", "delta") if name in found}
    axes, start = found["grid"], time.process_time()
    for dim in axes["dim"]:
        for rank in axes["rank"]:
            for noise in axes["noise_multiplier"]:
                ask(privproj.M2(dim=dim, rank=rank, noise_multiplier=noise), **target)
    return time.process_time() - start


def swept(file, out, workers, kill_after=None):
    """Return whether a sweep command succeeded before it was killed.

    The command runs in a new process group. It is killed after ``kill_after`` seconds, or never for None.
    """
    line = [COMMAND, "sweep", str(file), "-o", str(out), "--workers", str(workers)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(kill_after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
    return process.returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=float, default=1e5)
    parser.add_argument("--query", choices=["delta", "epsilon"], default="delta")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    found = grid(int(options.rows), options.query)
    with tempfile.TemporaryDirectory() as folder:
        file, whole, killed = (Path(folder) / name for name in ("grid.json", "whole.csv", "killed.csv"))
        file.write_text(json.dumps(found))
        plain = library(found)
        before = os.times()
        assert swept(file, whole, options.workers)
        after = os.times()
        ours = after.children_user + after.children_system - before.children_user - before.children_system
        wall = after.elapsed - before.elapsed
        print(f"{int(options.rows)} rows: library {plain:.1f} s CPU, sweep {ours:.1f} s CPU ({wall:.1f} s wall)")
        print(f"ratio sweep / library {ours / plain:.2f}")
        kills = sum(
            not swept(file, killed, options.workers, random.uniform(0.1, 0.9) * wall / 3) for _ in range(options.kills)
        )
        while not swept(file, killed, options.workers):
            pass
        same = killed.read_bytes() == whole.read_bytes()
        print(f"killed {kills} times: the table is {'the same' if same else 'ANOTHER'}")


if __name__ == "__main__":
    main()
