"""``privproj check``: CI regression of bounds."""

import time
from dataclasses import replace
from typing import Any

import click

from privproj.errors import InvalidParameter, MissingPackage
from privproj.records.regression import CheckVerdict, entries_from

from .files import read_data, refuse_same_file, write_text
from .options import Once, option, with_options
from .render import wrap_line
from .run import file_argument

HELP = """Regression of bounds for CI: every entry of a TOML file is asked again and compared.

Exit code 1 if any entry moved out of its tolerance, exceeds its limit or has no answer, 2 if the file is malformed.

\b
An entry:
  [[bound]]
  name = "finetune-2026-q3"
  query = "epsilon"
  mechanism = "m2"
  dim = 2048
  rank = 16
  noise_multiplier = 0.156
  sampling_rate = 0.01
  steps = 2000
  delta = 1e-5
  expect = 1.0888   # with rtol (default 1e-6), or at_most, or both
  rtol = 1e-3
  at_most = 1.2
"""


def check_file(file: str, update: bool, junit: str | None) -> int:
    if update and not file.endswith(".toml"):
        raise InvalidParameter("FILE", file, "a TOML file with --update")
    refuse_same_file("--junit", junit, file)
    found, times = [], []
    for entry in entries_from(read_data(file), file):
        start = time.perf_counter()
        found.append(entry.check())
        times.append(time.perf_counter() - start)
    for verdict in found:
        warned = [words for text in verdict.warnings for words in wrap_line("     warning: ", text)]
        click.echo("\n".join([line(verdict), *warned]))
    if junit is not None:
        write_text(junit, as_junit(file, found, times))
    if update:
        write_text(file, updated(file, found))
        found = [replace(verdict, problem=verdict.entry.judged(verdict.value, None)) for verdict in found]
    failed = [verdict for verdict in found if not verdict.holds]
    click.echo(f"{len(found) - len(failed)} of {len(found)} entries hold" + (", expect rewritten" if update else ""))
    return 1 if failed else 0


def line(verdict: CheckVerdict) -> str:
    """Say in one line whether an entry holds, and its value."""
    mark = "ok  " if verdict.holds else "FAIL"
    shown = "no value" if verdict.value is None else f"{verdict.entry.query} = {verdict.value:.9g}"
    return f"{mark} {verdict.entry.name}: {shown}" + (f" ({verdict.problem})" if verdict.problem else "")


def updated(file: str, found: list[CheckVerdict]) -> str:
    """Return the text of the file with ``expect`` rewritten; everything else, comments too, is as it was."""
    try:
        import tomlkit
    except ImportError:
        raise MissingPackage("tomlkit", "--update", "check") from None
    with open(file, encoding="utf-8") as source:
        document: Any = tomlkit.load(source)
    for entry, verdict in zip(document["bound"], found, strict=True):
        if "expect" in entry and verdict.value is not None:
            whole = isinstance(entry["expect"], int) and verdict.value.is_integer()
            entry["expect"] = int(verdict.value) if whole else verdict.value
    return tomlkit.dumps(document)


def as_junit(file: str, found: list[CheckVerdict], times: list[float]) -> str:
    """Return the verdicts as a JUnit report in XML."""
    from xml.etree import ElementTree as Tree

    failures = str(sum(not verdict.holds for verdict in found))
    suite = Tree.Element("testsuite", name=f"privproj check {file}", tests=str(len(found)), failures=failures)
    for verdict, seconds in zip(found, times, strict=True):
        case = Tree.SubElement(suite, "testcase", classname=file, name=verdict.entry.name, time=f"{seconds:.3f}")
        if verdict.problem:
            Tree.SubElement(case, "failure", message=verdict.problem).text = line(verdict)
        if verdict.warnings:
            Tree.SubElement(case, "system-out").text = "\n".join(f"warning: {text}" for text in verdict.warnings)
    return Tree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


command = with_options(
    [
        file_argument(),
        option("--update", "Rewrite expect with today's values, nothing else.", is_flag=True),
        Once(["--junit"], help="Write a JUnit report.", metavar="FILE"),
    ],
    check_file,
    name="check",
    help=HELP,
    short_help="CI regression of bounds.",
)
