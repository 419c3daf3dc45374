"""CPU time of one-shot commands as multiples of ``python -c pass``, in one run.

Usage: BIN/python benchmarks/startup.py (measure an installation from a wheel: an editable one starts slower)
"""

import resource
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.7787 --delta 1e-5"
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import click": [sys.executable, "-c", "import click"],
    "--help": [BIN / "privproj", "--help"],
    "epsilon gaussian": [BIN / "privproj", *["epsilon", "gaussian", "--noise-multiplier", "1", "--delta", "1e-5"]],
    "epsilon m2 beta-tail": [BIN / "privproj", "epsilon", *M2.split(), "--change-rank", "10", "--bound", "beta-tail"],
    "epsilon m2 rank-free": [BIN / "privproj", "epsilon", *M2.split()],
}


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    times = {name: [] for name in COMMANDS}
    for _ in range(15):
        for name, command in COMMANDS.items():
            times[name].append(cpu_seconds(command))
    base = {"min": min(times["python -c pass"]), "median": sorted(times["python -c pass"])[7]}
    for name, seen in times.items():
        low, middle = min(seen), sorted(seen)[7]
        print(f"{name:<22} {low * 1e3:6.1f} ms  {low / base['min']:5.2f}x min  {middle / base['median']:5.2f}x median")


if __name__ == "__main__":
    main()
