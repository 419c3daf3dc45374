"""Implement ``privproj check``: test bounds for regressions in CI."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameterError
from privproj.io.files import check_not_same_file, read_bounded, read_data, write_text
from privproj.io.regression import Entry, change_text, entries_from
from privproj.lazy import import_extra

from .kinds import REGRESSION_FILE, expecting
from .options import Once, command_with, file_argument, json_option, option, requirements_option
from .output import complain, one_line, write
from .render import SYMBOLS, as_json, fit_line, label_lines, requirement_lines, wrap_line

OF_A_FOLDER = "*bounds.toml"  # files of a folder that are checked, also by the pre-commit hook

# remedy for a folder without such files
NO_FILE = "this folder contains none. Give the path of each file, or rename the files"


@command_with(
    "check",
    file_argument(nargs=-1),
    option("--update", "Set expect and bound_version to the current values.", is_flag=True),
    option("--reference", "Also compare epsilon, delta and sigma of one release with mpmath.", is_flag=True),
    Once(["--junit"], help="Write a JUnit report to a file.", metavar="FILE"),
    json_option(),
    requirements_option(),
)
def command(file: tuple[str, ...], update: bool, reference: bool, junit: str | None, json: bool, verbose: bool) -> int:
    """Evaluate every query of the files again, and compare the results with the expected values.

    In a folder, privproj checks all files that match *bounds.toml.

    The exit code is 1 if an entry is out of its tolerance, exceeds its limit, has another status than the expected one,
    has no result, or (with --reference) differs from mpmath. It is 2 if a file is malformed.

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
      expect = 1.0888   # expected value; give expect, at_most or both
      rtol = 1e-3       # relative tolerance, at most 0.1 (default 1e-6)
      at_most = 1.2     # largest allowed value
      status = "proved" # or "conditional"; if omitted, both pass
      bound_version = 5 # optional; the report states if the version has changed
    """
    names = files_of(file)
    for name in names:
        if update and not name.endswith(".toml"):
            raise InvalidParameterError("FILE", name, "a TOML file if --update is given")
        check_not_same_file("--junit", junit, name)
    entries, errors = checked(names, junit, reference)
    if update and not errors:
        for name, text in [(name, updated(name, entries)) for name in names]:
            write_text(name, text)
    held = [(entry.updated() if update else entry).holds for entry in entries]
    if json:
        write(as_json({"results": records(entries), "held": sum(held), "entries": len(held), "errors": errors}))
    elif entries:
        write(as_text(entries, named=len(names) > 1, update=update and not errors, verbose=verbose))
        rewritten = " (changed values were rewritten)" if update and not errors else ""
        agreeing = sum(entry.compared == "agrees" for entry in entries)
        skipped = sum(entry.compared.startswith("not compared") for entry in entries)
        with_mpmath = f"; {agreeing} agree with mpmath, {skipped} were not compared" if reference else ""
        write(f"{sum(held)} of {len(held)} entries pass{rewritten}{with_mpmath}")
    codes = [complain(sentence, 2) for sentence in errors.values()]
    return max(codes, default=0 if all(held) else 1)


def files_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named files, and the files *bounds.toml of each named folder."""
    files: list[str] = []
    for name in names:
        if not name:
            raise InvalidParameterError("FILE", "nothing", "a file or a folder")
        inner = sorted(map(str, Path(name).rglob(OF_A_FOLDER))) if Path(name).is_dir() else [name]
        if not inner:
            raise InvalidParameterError("FILE", name, f"a folder with a file {OF_A_FOLDER}", NO_FILE)
        files += inner
    return tuple(dict.fromkeys(files))


def checked(files: tuple[str, ...], junit: str | None, reference: bool = False) -> tuple[list[Entry], dict[str, str]]:
    """Evaluate the entries of bounds files; return verdicts, and errors by file.

    ``junit`` is the path of a JUnit report to write, or None.
    """
    # Until all entries are evaluated, the JUnit report states that the check did not finish.
    verdicts, errors = [], {}
    if junit is not None and (Path(junit).is_file() or not Path(junit).exists()):  # a pipe cannot be rewritten
        write_text(junit, as_junit([], {"privproj check": "did not finish"}))
    for name in files:
        try:
            with expecting(REGRESSION_FILE, name):
                entries = entries_from(read_data(name), name)
        except InvalidParameterError as error:
            errors[name] = one_line(str(error))
            continue
        verdicts += [entry.checked(reference) for entry in entries]
    if junit is not None:
        write_text(junit, as_junit(verdicts, errors))
    return verdicts, errors


def as_text(entries: list[Entry], *, named: bool, update: bool, verbose: bool = False) -> str:
    """Return the report of ``privproj check`` as text, with a line for each entry."""
    lines, warnings = [], dict[str, None]()
    for entry in entries:
        text = line(entry, f"{entry.file}: " if named else "")
        lines += fit_line(text[:5], text[5:])
        for label, sentence in remarks(entry, update):
            if label == "warning":
                warnings[sentence] = None
            else:
                lines += wrap_line(f"     {label + ':':<10} ", sentence)
        if verbose and entry.result is not None:
            requires = label_lines({"requires": requirement_lines(entry.result.requirements, True)})
            lines += [f"   {text}" for text in requires]
    return "\n".join([*lines, *wrap_line("warning: ", *warnings)])


def remarks(entry: Entry, update: bool = False) -> Iterator[tuple[str, str]]:
    """Yield labeled texts about one entry of a bounds file, such as warnings."""
    if not entry.holds:
        query = entry.parameters
        arguments = ", ".join(f"{key}={value}" for key, value in query.items() if key != "mechanism")
        yield "problem", entry.problem
        yield "query", f"{entry.query} of {query['mechanism']}, {arguments}"
    if entry.compared.startswith("not compared"):
        yield "mpmath", entry.compared
    for key, now in entry.rewritten.items() if update else ():
        old = entry.expected.get(key)
        by = f" ({change_text(old, now)})" if key == "expect" and old is not None else ""
        yield "rewritten", f"{key} = {old!r}, now {now!r}{by}"
    if entry.result is not None:
        yield from (("assumes", sentence) for sentence in entry.result.data_assumptions)
        yield from (("warning", sentence) for sentence in entry.result.warnings)


def records(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return the verdicts on entries of bounds files as data for JSON."""
    names = ("file", "name", "holds", "problem", "query", "expected", "seconds", "compared")
    return [
        {**{name: getattr(entry, name) for name in names}, "parameters": entry.parameters, "result": entry.result}
        for entry in entries
    ]


def line(entry: Entry, place: str = "") -> str:
    """Return one line with the verdict on an entry, its value and the name of its bound."""
    mark, result, value = "ok  " if entry.holds else "FAIL", entry.result, "no value"
    if result is not None:
        of = f"{result.side}, {result.mechanism['name']}.{result.bound}, {result.status}"
        value = f"{SYMBOLS.get(result.quantity, result.quantity)} = {result.value!r}  ({of})"
    return f"{mark} {place}{entry.name}: {value}"


def updated(file: str, entries: list[Entry]) -> str:
    """Return the text of a bounds file with the expected values replaced by new ones."""
    tomlkit = import_extra("tomlkit", "--update", "check")
    text = read_bounded(file).decode()
    marked = text.startswith("\ufeff")  # a byte-order mark
    document: Any = tomlkit.parse(text[marked:])
    changes = [entry.rewritten for entry in entries if entry.file == file]
    for table, rewritten in zip(document["bound"], changes, strict=True):
        table.update(rewritten)
    return text[:marked] + tomlkit.dumps(document)


def as_junit(entries: list[Entry], errors: dict[str, str]) -> str:
    """Return a JUnit report in XML on the entries and the malformed files."""
    from xml.etree import ElementTree as Tree

    failures = sum(not entry.holds for entry in entries)
    counts = {"tests": len(entries) + len(errors), "failures": failures, "errors": len(errors)}
    root = Tree.Element("testsuites", {name: str(count) for name, count in counts.items()})
    suite = Tree.SubElement(root, "testsuite", {**root.attrib, "name": "privproj check"})
    for entry in entries:
        case = Tree.SubElement(suite, "testcase", classname=entry.file, name=entry.name, time=f"{entry.seconds:.3f}")
        rests = [line(entry), *(f"{label}: {sentence}" for label, sentence in remarks(entry))]
        rests += [f"requires: {sentence}" for sentence in (entry.result.requirements if entry.result else ())]
        if entry.problem:
            Tree.SubElement(case, "failure", message=entry.problem).text = "\n".join(rests)
        Tree.SubElement(case, "system-out").text = "\n".join(rests)
    for file, sentence in errors.items():
        case = Tree.SubElement(suite, "testcase", classname=file, name="file is valid")
        Tree.SubElement(case, "error", message=sentence)
    return Tree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


COMMANDS = {"check": command}
