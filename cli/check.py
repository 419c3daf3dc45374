"""``privproj check``: CI regression of bounds."""

import time
from typing import Any

import click

from privproj.errors import InvalidParameter, MissingPackage
from privproj.records.atomic import read_bounded
from privproj.records.regression import CheckVerdict, entries_from

from .files import read_data, refuse_same_file, write_text
from .options import Once, option, with_options
from .output import one_line
from .render import assumption_lines, wrap_line

HELP = """Regression of bounds for CI: every entry of the files is asked again and compared.

Exit code 1 if any entry moved out of its tolerance, exceeds its limit, has another status than the one it pins, or has
no answer; 2 if a file is malformed.

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
  expect = 1.0888   # with rtol (default 1e-6, at most 0.1), or at_most, or both
  rtol = 1e-3
  at_most = 1.2
  status = "proved" # or "conditional"; without it either passes, and promises are printed
"""


Checked = dict[str, list[tuple[CheckVerdict, float]]]
"""The verdicts on the entries of each file, and how many seconds each took."""


def check_files(file: tuple[str, ...], update: bool, junit: str | None) -> int:
    for name in file:
        if update and not name.endswith(".toml"):
            raise InvalidParameter("FILE", name, "a TOML file with --update")
        refuse_same_file("--junit", junit, name)
    found = checked(file, junit)
    if update:
        texts = {name: updated(name, [verdict for verdict, _ in listed]) for name, listed in found.items()}
        for name, text in texts.items():
            write_text(name, text)
    place = "{}: " if len(found) > 1 else ""
    verdicts = [(place.format(name), verdict) for name, listed in found.items() for verdict, _ in listed]
    click.echo(as_text(verdicts))
    held = sum((verdict.updated() if update else verdict).holds for _, verdict in verdicts)
    click.echo(f"{held} of {len(verdicts)} entries hold" + (", expect rewritten" if update else ""))
    return 0 if held == len(verdicts) else 1


def checked(files: tuple[str, ...], junit: str | None) -> Checked:
    """Check all files and write the report, in which an error stands too: an earlier one would be taken for it."""
    try:
        entries = {name: entries_from(read_data(name), name) for name in files}
        found = {name: [timed(entry) for entry in listed] for name, listed in entries.items()}
    except BaseException as error:
        if junit is not None:
            write_text(junit, as_junit({}, one_line(f"{type(error).__name__}: {error}")))
        raise
    if junit is not None:
        write_text(junit, as_junit(found))
    return found


def as_text(verdicts: list[tuple[str, CheckVerdict]]) -> str:
    """Say each verdict behind its place, with what corrects it, and in the end what all numbers take for granted."""
    lines, assumed = [], {}
    for place, verdict in verdicts:
        lines.append(line(verdict, place))
        for label, words in notes(verdict):
            lines += wrap_line(f"     {label}: ", words) if label != "assumes" else []
        if verdict.result is not None:
            assumed[place + str(verdict.entry.name)] = verdict.result.assumes
    return "\n".join([*lines, *assumption_lines(assumed)])


def timed(entry: Any) -> tuple[CheckVerdict, float]:
    """Check an entry; returns its verdict and the seconds that it took."""
    start = time.perf_counter()
    return entry.check(), time.perf_counter() - start


def line(verdict: CheckVerdict, place: str = "") -> str:
    """Say in one line whether an entry holds, its value, and what that is."""
    mark, found, shown = "ok  " if verdict.holds else "FAIL", verdict.result, "no value"
    if found is not None:
        of = f"{found.side}, {found.mechanism['name']}.{found.bound}, {found.status}"
        shown = f"{found.quantity} = {found.value!r} ({of})"
    return f"{mark} {place}{verdict.entry.name}: {shown}" + (f"; {verdict.problem}" if verdict.problem else "")


def notes(verdict: CheckVerdict) -> list[tuple[str, str]]:
    """Return what a number asks of the data, what corrects it, and what it takes for granted, each behind its name."""
    found = verdict.result
    if found is None:
        return []
    kinds = (("promise", found.promises), ("warning", found.warnings), ("assumes", found.assumes))
    return [(label, words) for label, sentences in kinds for words in sentences]


def updated(file: str, found: list[CheckVerdict]) -> str:
    """Return the text of the file with ``expect`` rewritten; everything else, comments too, is as it was."""
    try:
        import tomlkit
    except ImportError:
        raise MissingPackage("tomlkit", "--update", "check") from None
    document: Any = tomlkit.parse(read_bounded(file).decode())
    for entry, verdict in zip(document["bound"], found, strict=True):
        if "expect" in entry and verdict.result is not None and verdict.result.value is not None:
            value = verdict.result.value
            entry["expect"] = int(value) if isinstance(entry["expect"], int) and value == int(value) else float(value)
    return tomlkit.dumps(document)


def as_junit(found: Checked, error: str = "") -> str:
    """Return the verdicts on each file as a JUnit report in XML, or the error for which there are none."""
    from xml.etree import ElementTree as Tree

    verdicts = [verdict for listed in found.values() for verdict, _ in listed]
    failures = sum(not verdict.holds for verdict in verdicts)
    counts = {"tests": len(verdicts) + bool(error), "failures": failures, "errors": int(bool(error))}
    root = Tree.Element("testsuites", {name: str(count) for name, count in counts.items()})
    suite = Tree.SubElement(root, "testsuite", {**root.attrib, "name": "privproj check"})
    for file, listed in found.items():
        for verdict, seconds in listed:
            case = Tree.SubElement(suite, "testcase", classname=file, name=verdict.entry.name, time=f"{seconds:.3f}")
            if verdict.problem:
                Tree.SubElement(case, "failure", message=verdict.problem).text = line(verdict)
            rests = [f"{label}: {words}" for label, words in notes(verdict)]
            Tree.SubElement(case, "system-out").text = "\n".join([line(verdict), *rests])
    if error:
        case = Tree.SubElement(suite, "testcase", classname="privproj check", name="every file can be checked")
        Tree.SubElement(case, "error", message=error)
    return Tree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


command = with_options(
    [
        click.Argument(["file"], type=str, metavar="FILE...", nargs=-1, required=True),
        option("--update", "Rewrite expect with today's values, nothing else.", is_flag=True),
        Once(["--junit"], help="Write a JUnit report.", metavar="FILE"),
    ],
    check_files,
    name="check",
    help=HELP,
    short_help="CI regression of bounds.",
)
