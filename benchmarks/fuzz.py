"""Fuzzing of the command line outside pytest: counts by exit code, slowest calls, failures made small.

Usage: python benchmarks/fuzz.py --cases 100000 [--minutes M] [--engine hypothesis|atheris|both] [--seed S]

Writes benchmarks/results/fuzz.json. The generators and the laws are those of tests/fuzz. atheris is optional; it
mutates bytes by coverage of the package, half of them taken as files and words, half as choices of the same generators.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.json"
sys.path.insert(0, str(ROOT / "tests"))
TRACED = [
    "privproj_cli", "privproj.accounting", "privproj.io", "privproj.run", "privproj.mechanisms",
]  # fmt: skip
"""What atheris measures the coverage of: all that reads what people write, not the numerical code."""


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--engine", choices=["hypothesis", "atheris", "both"], default="both")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def record(tally, seconds, small=True):
    """A tally as plain values; failures are made small first."""
    from fuzz.drive import minimised

    failures = [
        {"what": words, "times": tally.repeats[kind], "case": str(minimised(case, kind) if small else case)}
        for kind, (case, words) in sorted(tally.failures.items())
    ]
    return {
        "cases": tally.cases,
        "seconds": round(seconds, 1),
        "exit_codes": dict(sorted(tally.codes.items())),
        "commands": dict(tally.commands.most_common(30)),
        "largest_growth_mib": round(tally.largest, 1),
        "slowest": [{"seconds": round(spent, 2), "case": case} for spent, case in tally.slowest],
        "failures": failures,
    }


def by_hypothesis(given):
    """Cases drawn by hypothesis in this process."""
    from fuzz.drive import Tally, drive

    start = time.process_time()
    tally = drive(Tally(running=Path("/tmp/privproj-fuzz-running.txt")), given.cases, given.seed, given.minutes)
    return record(tally, time.process_time() - start)


def by_atheris(given):
    """Cases drawn by atheris in a process of its own, since it never returns."""
    if find_spec("atheris") is None:
        return {"skipped": "atheris is not installed (pip install atheris)"}
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "found.json"
        words = ["--cases", given.cases, "--minutes", given.minutes, "--seed", given.seed, "--output", part]
        command = [sys.executable, __file__, "--corpus", folder, *map(str, words)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        return json.loads(part.read_text()) if part.exists() else {"crashed": done.stderr[-2000:]}


def child(given):
    """The process that atheris drives; it ends itself when the cases or the minutes are used up."""
    import atheris

    with atheris.instrument_imports(include=TRACED):
        from fuzz.drive import Tally
    tally, start, spent = Tally(), time.monotonic(), time.process_time()
    target = mixed(tally)

    def one(data):
        target(data)
        if tally.cases >= given.cases or time.monotonic() - start > 60.0 * given.minutes:
            given.output.write_text(json.dumps(record(tally, time.process_time() - spent, small=False)))
            os._exit(0)

    limits = [f"-seed={given.seed % 2**31 or 1}", "-max_len=4096", "-rss_limit_mb=0", "-timeout=300"]
    sown(given.corpus)
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={given.corpus}/", str(given.corpus)], one)
    atheris.Fuzz()


def sown(folder):
    """Write files that are whole and calls that work, for atheris to start from."""
    from fuzz.strategies import SEEDS

    for number, data in enumerate(SEEDS):
        (folder / str(number)).write_bytes(data)


def mixed(tally):
    """Bytes as a case: a first byte below 128 starts a raw one, others make choices for the generators."""
    from fuzz.drive import SETTINGS
    from fuzz.strategies import everything, from_bytes
    from hypothesis import given as drawn

    structured = SETTINGS(drawn(everything())(tally.judge)).hypothesis.fuzz_one_input
    return lambda data: tally.judge(from_bytes(data)) if data[:1] < b"\x80" else structured(data[1:])


def shown(engine, found):
    """A few lines on one engine."""
    if "cases" not in found:
        return f"{engine}: {found}"
    lines = [f"{engine}: {found['cases']} cases in {found['seconds']} s of CPU, exit codes {found['exit_codes']}"]
    lines += [f"  slow {entry['seconds']:6.2f} s  {entry['case'].splitlines()[0][:150]}" for entry in found["slowest"]]
    lines += [f"  FAIL x{entry['times']} {entry['what']}\n    {entry['case'][:1000]}" for entry in found["failures"]]
    return "\n".join(lines)


def main():
    given = options()
    if given.corpus:
        child(given)
    engines = {"hypothesis": by_hypothesis, "atheris": by_atheris}
    chosen = list(engines) if given.engine == "both" else [given.engine]
    found = {"seed": given.seed, **{name: engines[name](given) for name in chosen}}
    given.output.write_text(json.dumps(found, indent=1) + "\n")
    for name in chosen:
        print(shown(name, found[name]))
    return int(any(found[name].get("failures") or "crashed" in found[name] for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
