"""Profiles of hypothesis, the mark ``extra``, and fixtures that several folders share.

Hypothesis draws the same examples in every run, so a failure means that the program changed. To search for new
counterexamples, run ``pytest --hypothesis-profile=explore``.
"""

import os

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # before numpy is imported: every process of the run has one core

import re
import shlex
import sys
from functools import cache

import pytest
from helpers import EXTRA, ROOT
from hypothesis import settings
from privproj_cli.main import exit_code

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=300)
settings.load_profile("fixed")


# --- tests of extras ------------------------------------------------------------------------------


@cache
def file_needs(path):
    """Return whether a file is skipped as a whole without an extra."""
    return re.search(r"^(\w+ = )?needs\(", path.read_text(), re.MULTILINE) is not None


@cache
def calls_needs(function):
    """Return whether a function calls :func:`helpers.needs`, directly or through functions of its module."""
    seen, left = {function}, [function]
    for one in left:
        names = set(one.__code__.co_names)
        if "needs" in names:
            return True
        near = {other for name in names if hasattr(other := one.__globals__.get(name), "__code__")}
        left += near - seen
        seen |= near
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests of optional features ``full``, and ``extra`` what calls ``needs`` in its file, test or fixtures."""
    for item in items:
        if item.path.is_relative_to(ROOT / "tests" / "contrib"):
            item.add_marker("full")
        fixtures = [found[-1].func for found in item._fixtureinfo.name2fixturedefs.values()]
        functions = [getattr(f, "hypothesis", f) for f in (item.function, *fixtures)]
        functions = [getattr(f, "inner_test", f) for f in functions]
        if "extras_of" in item.function.__code__.co_names:
            continue  # marked by what its parameter asks for
        if file_needs(item.path) or any(calls_needs(f) for f in functions if hasattr(f, "__code__")):
            item.add_marker("extra")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    """Report an error for a test that is skipped without an extra and lacks the mark ``extra``."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and EXTRA in str(report.longrepr) and not item.get_closest_marker("extra"):
        report.outcome, report.longrepr = "failed", "this test needs an extra: mark it extra"


def pytest_terminal_summary(terminalreporter):
    """Print one line on the tests that were skipped without an extra."""
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
    """Reset the count of vectorized rows, which decides whether a test compiles kernels (that takes seconds)."""
    yield
    if jit := sys.modules.get("privproj.numerics.jit"):
        jit._rows_run.clear()


@pytest.fixture
def run(capsys):
    """Return a function that runs a command line and returns exit code, standard output and standard error."""

    def call(line):
        code = exit_code(shlex.split(line))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call
