"""The laws are tried on the same cases in every run, so that a red run means a changed program.

To look for new counterexamples: ``pytest --hypothesis-profile=explore``.
"""

import os

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # before numpy is imported: every process of the run has one core

import re
import shlex
import sys
from functools import cache

import pytest
from helpers import EXTRA
from hypothesis import settings
from privproj_cli.main import exit_code

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=300)
settings.load_profile("fixed")


# --- tests of extras ------------------------------------------------------------------------------


@cache
def file_needs(path):
    """True for a file that is skipped as a whole where an extra is missing."""
    return re.search(r"^(\w+ = )?needs\(", path.read_text(), re.MULTILINE) is not None


def calls_needs(function, seen):
    """True if a function, or one of its file that it names, calls :func:`helpers.needs`."""
    names = set(function.__code__.co_names)
    seen.add(function)
    near = [function.__globals__.get(name) for name in names]
    return "needs" in names or any(
        calls_needs(other, seen) for other in near if hasattr(other, "__code__") and other not in seen
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark ``extra`` what calls ``needs``: the file, the test, or a fixture of it."""
    for item in items:
        fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
        functions = [getattr(f, "hypothesis", f) for f in (item.function, *fixtures)]
        functions = [getattr(f, "inner_test", f) for f in functions]
        if "extras_of" in item.function.__code__.co_names:
            continue  # marked by what its parameter asks for
        if file_needs(item.path) or any(calls_needs(f, set()) for f in functions if hasattr(f, "__code__")):
            item.add_marker("extra")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """A test that an extra would run, and that CI would not find by its mark, is an error."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and EXTRA in str(report.longrepr) and not item.get_closest_marker("extra"):
        report.outcome, report.longrepr = "failed", "this test needs an extra: mark it extra"


def pytest_terminal_summary(terminalreporter):
    """One line for all tests that extras would run."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if EXTRA in str(report.longrepr)]
    files = sum(report.when == "collect" for report in skipped if hasattr(report, "when"))
    files += sum(not hasattr(report, "when") for report in skipped)
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped) - files} tests and {files} files of extras skipped: pip install -e '.[all]' runs them"
        )


# --- fixtures -------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _rows_of_its_own():
    """No test makes machine code because of what the tests before it asked: that takes seconds where none is kept."""
    yield
    if jit := sys.modules.get("privproj.numerics.jit"):
        jit._rows_run.clear()


@pytest.fixture
def run(capsys):
    """Run a command line; returns (exit code, standard output, standard error)."""

    def call(line):
        code = exit_code(shlex.split(line))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call
