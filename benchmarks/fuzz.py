"""Fuzz the command line outside pytest, and report counts by exit code, slowest calls and smallest failures.

Usage: python benchmarks/fuzz.py --cases 100000 [--minutes M] [--engine hypothesis|atheris|both] [--seed S]

Writes benchmarks/results/fuzz.json. The generators and the invariants are those of tests/differential. atheris is
optional; it mutates bytes by coverage of the package. Half of the inputs are raw files and arguments, half are choices
of the generators.
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
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
# Packages whose coverage guides atheris: those that parse input, not the numerical code.
TRACED = [
    "privproj_cli", "privproj.accounting", "privproj.io", "privproj.run", "privproj.mechanisms",
]  # fmt: skip


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--engine", choices=["hypothesis", "atheris", "both"], default="both")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def record(report, seconds):
    """Return a report as plain values."""
    return {"seconds": round(seconds, 1), **report.plain()}


def by_hypothesis(given):
    """Run examples drawn by hypothesis in this process."""
    from tests.differential.command_line_rules import check_case
    from tests.differential.command_lines import everything
    from tests.differential.report import Report, run_examples

    start = time.process_time()
    report = Report(running=Path("/tmp/privproj-fuzz-running.txt"))
    run_examples(report, everything(), check_case, given.cases, given.seed, given.minutes)
    return record(report, time.process_time() - start)


def by_atheris(given):
    """Run examples drawn by atheris in a separate process, because it never returns."""
    if find_spec("atheris") is None:
        return {"skipped": "atheris is not installed (pip install atheris)"}
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "found.json"
        arguments = ["--cases", given.cases, "--minutes", given.minutes, "--seed", given.seed, "--output", part]
        command = [sys.executable, __file__, "--corpus", folder, *map(str, arguments)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        return json.loads(part.read_text()) if part.exists() else {"crashed": done.stderr[-2000:]}


def child(given):
    """Run in the process of atheris, and end it when the examples or the minutes are used up."""
    import atheris

    with atheris.instrument_imports(include=TRACED):
        from tests.differential.report import Report
    report, start, spent = Report(), time.monotonic(), time.process_time()
    target = mixed(report)

    def one(data):
        target(data)
        if report.examples >= given.cases or time.monotonic() - start > 60.0 * given.minutes:
            given.output.write_text(json.dumps(record(report, time.process_time() - spent)))
            os._exit(0)

    limits = [f"-seed={given.seed % 2**31 or 1}", "-max_len=4096", "-rss_limit_mb=0", "-timeout=300"]
    sown(given.corpus)
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={given.corpus}/", str(given.corpus)], one)
    atheris.Fuzz()


def sown(folder):
    """Write valid files and command lines, from which atheris starts."""
    from tests.differential.command_lines import SEEDS

    for number, data in enumerate(SEEDS):
        (folder / str(number)).write_bytes(data)


def mixed(report):
    """Return a function of bytes: a first byte below 128 starts a raw case, others make choices for the generators."""
    from hypothesis import given as drawn

    from tests.differential.command_line_rules import check_case
    from tests.differential.command_lines import everything, from_bytes
    from tests.differential.report import SETTINGS

    def test(case):
        check = check_case(case)
        report.add(check)
        report.keep(check)

    structured = SETTINGS(drawn(everything())(test)).hypothesis.fuzz_one_input
    return lambda data: test(from_bytes(data)) if data[:1] < b"\x80" else structured(data[1:])


def shown(engine, found):
    """Return a few lines on one engine."""
    if "examples" not in found:
        return f"{engine}: {found}"
    codes = {name: count for name, count in found["totals"].items() if name.startswith("exit code")}
    lines = [f"{engine}: {found['examples']} cases in {found['seconds']} s of CPU, {codes}"]
    lines += [f"  slow {e['seconds']:6.2f} s  {e['example'].splitlines()[0][:150]}" for e in found["slowest"]]
    lines += [f"  FAIL x{entry['times']} {entry['example'][:1000]}" for entry in found["failures"]]
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
