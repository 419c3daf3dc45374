"""Data in TOML and JSON, read and written: one clear sentence where a file is malformed, never half a file."""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter
from privproj.records.atomic import read_bounded, write_atomically

KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
"""A part of a key in TOML."""

LONG_KEY = re.compile(rf"(?<![\w-]){KEY}(?:[ \t]*+\.[ \t]*+{KEY}){{50}}", re.ASCII)
"""A key of more parts than any file needs: the time and the memory that one takes grow with their square."""


LARGEST_TOML = 2 << 20
"""Bytes of a file in TOML: its parser takes a hundred times as much memory for hostile keys. Contract."""


STANDARD_INPUT = "-"
"""The name under which a file is read from standard input. Contract."""


def read_data(path: str) -> dict[str, Any]:
    """Read the data of a TOML or JSON file, of standard input for ``-``, where JSON begins with a brace."""
    try:
        if path == STANDARD_INPUT:
            text = read_input(LARGEST_TOML).decode()
            is_json = text.lstrip().startswith("{")
        else:
            is_json = path.endswith(".json")
            text = (read_bounded(path) if is_json else read_bounded(path, most=LARGEST_TOML)).decode()
    except UnicodeDecodeError:
        raise InvalidParameter("FILE", path, "a file of text in UTF-8") from None
    if not is_json and LONG_KEY.search(text):
        raise InvalidParameter("FILE", path, "keys of at most 50 parts")
    try:
        data = _from_json(text, path) if is_json else tomllib.loads(text, parse_float=_parse_decimal)
    except InvalidParameter:
        raise
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise InvalidParameter("FILE", path, f"a file in {kind}", _reason_of(error, text)) from None
    if not isinstance(data, dict):
        raise InvalidParameter("FILE", path, "a table of keys")
    return data


def read_input(most: int) -> bytes:
    """The bytes of standard input, at most so many."""
    content = sys.stdin.buffer.read(most + 1) if sys.stdin is not None else b""
    if len(content) > most:
        raise InvalidParameter("FILE", STANDARD_INPUT, f"at most {most} bytes on standard input")
    return content


def _reason_of(error: Exception, text: str) -> str:
    """Say why a parser refused a text, with the line that it means."""
    at = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    shown = lines[int(at[1]) - 1].strip()[:80] if at and int(at[1]) <= len(lines) else ""
    return f"{error}: {shown}" if shown else str(error)


class Pairs(dict):
    """A JSON object that remembers a key it had twice, of which the last would have won."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.doubled = next((name for name in names if names.count(name) > 1), None) if len(self) < len(names) else None


def _from_json(text: str, path: str) -> Any:
    """The data of a JSON text; raises :class:`InvalidParameter` naming entry and key where an object has one twice."""
    data = json.loads(text, object_pairs_hook=Pairs, parse_float=_parse_decimal)
    _check_doubled(data, path)
    return data


def _check_doubled(data: Any, where: str) -> None:
    """Raise :class:`InvalidParameter` for a key that an object within the data has twice."""
    if isinstance(data, Pairs) and data.doubled is not None:
        raise InvalidParameter(f"{where}: {data.doubled}", data[data.doubled], "every key once")
    parts = data.items() if isinstance(data, dict) else ()
    for key, value in parts:
        _check_doubled(value, f"{where}: {key}")
        for i, entry in enumerate(value if isinstance(value, list) else ()):
            _check_doubled(entry, f"{where}: {key} {i + 1}")


def _parse_decimal(text: str) -> float:
    """Read a number of a file; raises ValueError where it is not 0 and too small for a double."""
    number = float(text)
    if number == 0.0 and any(c in "123456789" for c in text.lower().split("e")[0]):
        raise ValueError(f"{text} underflows to zero")
    return number


def refuse_same_file(name: str, path: str | None, file: str | None) -> None:
    """Raise :class:`InvalidParameter` where an output would overwrite an input; None is no file."""
    if path is not None and file is not None and Path(path).resolve() == Path(file).resolve():
        raise InvalidParameter(name, path, f"another file than {file}, which is read")


def write_text(path: str, text: str) -> None:
    """Replace a file as a whole; ``-``, which others take for standard output, is refused."""
    if path == STANDARD_INPUT:
        raise InvalidParameter("FILE", path, "the name of a file to write", "./- is one")
    write_atomically(path, lambda file: file.write(text.encode()))


def as_toml(entries: list[dict[str, Any]], table: str = "phase", **shared: Any) -> str:
    """Write entries as TOML tables of one name, after the keys that they share."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in shared.items() if value is not None]
    for entry in entries:
        lines += ["", f"[[{table}]]", *(f"{key} = {_toml_value(value)}" for key, value in entry.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_value(value: Any) -> str:
    """Write a value as TOML in one line; a table is an inline table."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    # JSON's escapes of what lies beyond 16 bits are none of TOML.
    return json.dumps(value, ensure_ascii=False)


def write_data(path: str, data: dict[str, Any], table: str = "phase") -> None:
    """Write the data of a run file, as JSON or TOML by the ending of its name."""
    if path.endswith(".json"):
        write_text(path, json.dumps(data, indent=2) + "\n")
    else:
        shared = {key: value for key, value in data.items() if key != table}
        write_text(path, as_toml(data[table], table, **shared))
