"""Recognize the kind of a file, such as a ledger, from its contents."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from os.path import isfile
from typing import Any

from privproj.accounting.schedule import Composition
from privproj.errors import InvalidParameterError
from privproj.io.files import LARGEST_FILE, LARGEST_TOML, LONG_KEY, parse_json, read_bounded, read_data
from privproj.io.run_file import from_data
from privproj.plugins import load, plugin_table

LEDGER, RUN_FILE, REGRESSION_FILE, GRID_FILE = "a ledger", "a run file", "a regression file", "a grid file"

LEDGER_BEGINS = b'{"ledger"'  # first bytes of a ledger

# kinds of files in TOML or JSON by a key that only they have, with the command that reads them
KEYS = {"phase": (RUN_FILE, "run"), "bound": (REGRESSION_FILE, "check"), "grid": (GRID_FILE, "sweep")}


def kind_of(content: bytes) -> tuple[str, str]:
    """Return the kind of a file, such as "a ledger", and the commands that read it.

    Both texts are empty for a file of no known kind.
    """
    if content.startswith(LEDGER_BEGINS):
        return LEDGER, "use `privproj ledger` or `privproj verify`"
    if len(content) > LARGEST_FILE:
        return "", ""
    for place in plugin_table("DOCUMENTS").values():
        document = load(place)
        if document.recognizes(content):
            return document.noun.partition(" that ")[0], "use `privproj verify`"
    table = _table_in(content)
    for key, (noun, command) in KEYS.items():
        if isinstance(table.get(key), list | dict):
            return noun, f"use `privproj {command}`"
    if {"quantity", "outcome", "bound"} <= set(table):
        return "the result of a query in JSON", "no command reads results"
    return "", ""


def _table_in(content: bytes) -> Mapping[str, Any]:
    """Return the table of a TOML or JSON file; an empty table for any other file."""
    with suppress(ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        text = content.decode("utf-8-sig")
        is_json = text.lstrip().startswith("{")
        if not is_json and (len(content) > LARGEST_TOML or LONG_KEY.search(text)):
            return {}
        data = parse_json(text, float) if is_json else tomllib.loads(text)
        return data if isinstance(data, dict) else {}
    return {}


def remedy_for(content: bytes) -> str:
    """Return the kind of a file and the commands that read it, as text; may be empty."""
    noun, commands = kind_of(content)
    return f"it is {noun}; {commands}" if noun else ""


@contextmanager
def expecting(kind: str, file: str) -> Iterator[None]:
    """Replace an error in this context if the file is of another known kind.

    The new error states the actual kind.
    """
    try:
        yield
    except InvalidParameterError:
        content = b""
        with suppress(InvalidParameterError):
            # Standard input and pipes can be read only once.
            content = read_bounded(file) if isfile(file) else b""
        if kind_of(content)[0] in ("", kind):
            raise
        raise InvalidParameterError("FILE", file, kind, remedy_for(content)) from None


def read_run_file(file: str) -> Composition:
    """Return the phases of a training run from a run file."""
    with expecting(RUN_FILE, file):
        return from_data(read_data(file), file)
