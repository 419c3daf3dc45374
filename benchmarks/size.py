"""Measure the size of an installation, the purpose of each dependency, and which queries load it.

Usage: python benchmarks/size.py (prints a Markdown table, which docs/installation.md contains)

The size is the sum over the files of the installed distributions that the core requires, without extras.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution

# purpose of each package that pyproject.toml requires
USES = {
    "numpy": "used for runs of several releases and for arrays of parameters",
    "scipy": "special functions for user-level privacy, mechanisms `m1` and `wishart`, and audits",
    "mpmath": "values outside the range of double precision, for `wishart` and certificates",
    "click": "command line",
    "dp-accounting": "used only for runs that contain dp-accounting events",
    "numba": "machine code for large sweeps, for example `m2` with 400 or more noise multipliers",
}

# first query of each kind
QUERIES = {
    "one release": "epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.5 --delta 1e-5",
    "a run": "epsilon gaussian --noise-multiplier 1 --sampling-rate 0.01 --steps 1000 --delta 1e-5",
}

# program whose last line is every module that a command has loaded
LOADED = (
    "import json, sys; from privproj_cli.main import exit_code; "
    "exit_code({arguments}); print(json.dumps([*sys.modules]))"
)


def required(name, found=None):
    """Return a distribution and all that it requires, each with the distributions that require it."""
    found = {name: []} if found is None else found
    for line in distribution(name).requires or ():
        other = re.match(r"[\w.-]+", line)[0].lower().replace("_", "-")
        if "extra ==" in line or not is_installed(other):
            continue
        is_new = other not in found
        found.setdefault(other, []).append(name)
        if is_new:
            required(other, found)
    return found


def is_installed(name):
    """Return whether the distribution is installed."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def megabytes(name, bytecode=False):
    """Return the size of the files of a distribution, without bytecode or that of its bytecode."""
    files = [path.locate() for path in distribution(name).files or () if (path.suffix == ".pyc") == bytecode]
    return sum(path.stat().st_size for path in files if path.exists()) / 1e6


def loaded_by(arguments):
    """Return the names of the top-level modules that a command loads."""
    program = LOADED.format(arguments=arguments.split())
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return {module.partition(".")[0] for module in json.loads(out.splitlines()[-1])}


def modules_of(name):
    """Return the names under which a distribution is imported."""
    tops = {path.parts[0].removesuffix(".py") for path in distribution(name).files or () if path.suffix == ".py"}
    return {top for top in tops if top.isidentifier()}


def rows():
    """Yield a row for each distribution: name, megabytes, purpose, and whether each of the queries loads it."""
    loading = {kind: loaded_by(arguments) for kind, arguments in QUERIES.items()}
    for name, users in required("privproj").items():
        sentence = USES.get(name, f"required by {', '.join(users)}") if users else "privproj itself"
        loads = ["yes" if modules_of(name) & modules or not users else "no" for modules in loading.values()]
        yield name, megabytes(name), sentence, " | ".join(loads)


def main():
    found = sorted(rows(), key=lambda row: -row[1])
    print("| package | size (MB) | purpose |", *(f"loaded for {kind} |" for kind in QUERIES))
    print("| --- | --- | --- " + "| --- " * len(QUERIES) + "|")
    for name, size, sentence, loads in found:
        print(f"| {name} | {size:.1f} | {sentence} | {loads} |")
    compiled = sum(megabytes(row[0], bytecode=True) for row in found)
    total = sum(row[1] for row in found) + compiled
    print(f"\nBytecode that pip compiles during installation adds {compiled:.1f} MB, so the total is {total:.0f} MB.")


if __name__ == "__main__":
    main()
