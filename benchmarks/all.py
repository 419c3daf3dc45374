"""Run all benchmarks and write docs/benchmarks.md, on a machine without other load.

Usage: python benchmarks/all.py [--peers DIR | --peer-python PATH] [--quick] [--again]

``--peers DIR`` creates or reuses a virtual environment with the current versions of all peers; ``--peer-python`` is the
interpreter of an existing one. The page reports peers that are missing. ``--again`` measures nothing and writes the
page from the last results.
"""

import argparse
import json
import subprocess
import sys
import venv
from pathlib import Path

import large_epsilons
import peers
import speed
import sweep
from peer_pages import document

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def environment_of_peers(folder):
    """Return the Python of a virtual environment with all peers; create it if it does not exist."""
    python = Path(folder) / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        for package in peers.PACKAGES:  # one by one: what cannot be installed is missing alone
            subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=False)
    return str(python)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", metavar="DIR")
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH")
    for name in ("quick", "again"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    if not options.again:
        python = environment_of_peers(options.peers) if options.peers else options.peer_python
        # In a process of its own: those that it starts have at least the peak memory of their parent.
        subprocess.run([sys.executable, speed.__file__, "--write", "--growth"], check=True)
        peers.RESULTS.write_text(json.dumps(peers.measured(options.quick, python), indent=1) + "\n")
        sweep.KEPT.write_text(json.dumps(sweep.measured(), indent=1) + "\n")
        large_epsilons.write(python)
    kept = [json.loads(path.read_text()) for path in (peers.RESULTS, speed.KEPT, sweep.KEPT, large_epsilons.RESULTS)]
    PAGE.write_text(document(*kept))


if __name__ == "__main__":
    main()
