"""Files: read up to a size, replaced as a whole, and their data in TOML and JSON.

A kill at any moment leaves the old file or the new one. JSON is read strictly: what two readers could understand
differently is refused, as one key twice, nan and infinities. The usual reader keeps the last of two keys unsaid.
"""

import json
import math
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal
from hashlib import file_digest
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from privproj.errors import InvalidParameter
from privproj.parameters import Kind, quoted

LARGEST_FILE = 1 << 24
"""Bytes of a file that is read at most, but for ledgers, which grow with a run. Contract."""

STANDARD_INPUT = "-"
"""The name under which a file is read from standard input. Contract."""


def read_bounded(path: str | Path, name: str = "FILE", most: int = LARGEST_FILE) -> bytes:
    """The bytes of a file, of a pipe, or of standard input for ``-``, that has at most ``most`` bytes.

    Raises :class:`InvalidParameter` under this name for one that has more, cannot be read, or is a folder or a device.
    """
    with _opened(path, name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InvalidParameter(name, path, f"a file of at most {most} bytes")
    return content


def digest_of(path: str | Path, name: str = "FILE") -> str:
    """The SHA-256 of a file of any size, in hexadecimal digits; refused like :func:`read_bounded`."""
    with _opened(path, name) as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(path: str | Path, name: str) -> Iterator[Any]:
    """A file, a pipe or standard input to read from; what is none, or cannot be read, is refused under this name."""
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise InvalidParameter(name, path, "an open standard input", "./- is a file of that name")
        yield sys.stdin.buffer
        return
    try:
        # Opened as usual, a pipe that nobody writes would be waited for.
        with open(path, "rb", opener=lambda place, flags: os.open(place, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise InvalidParameter(name, path, "a file, not a folder or a device")
            os.set_blocking(file.fileno(), True)
            yield file
    except OSError as error:
        raise InvalidParameter(name, path, "a readable file", str(error.strerror)) from None
    except UnicodeError:
        raise InvalidParameter(name, path, "a readable file", "its name cannot be read") from None


def open_alone(path: str | Path, name: str) -> int:
    """The descriptor of a file opened for reading and appending, under a lock that no other process holds.

    Raises :class:`InvalidParameter` under this name where it cannot be opened, or where another process has it.
    """
    import fcntl

    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise InvalidParameter(name, path, "a file that can be written", str(error.strerror)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        expected = f"a {name} that no other process is writing"
        raise InvalidParameter(name, path, expected, f"one {name} belongs to one run at a time") from None
    return file


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let an error of the file system, which often names no file, name this one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: str | Path, fill: Callable[[BinaryIO], object], mode: int | None = None) -> None:
    """Let ``fill`` write a file beside ``path``, flush it to the disk, and put it in the place of ``path``.

    The file gets this ``mode``; with None that of the file that is replaced, or the usual one. A link stays, and what
    it points to is replaced; a pipe or a device cannot be, so it is written to. Raises OSError that names ``path``.
    """
    with naming(path):
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                fill(file)
            return
        target = Path(os.path.realpath(path))
        if mode is None and target.exists():
            mode = stat.S_IMODE(target.stat().st_mode)
        beside = target.with_name(f".{target.name[:100]}.{token_hex(4)}")
        # With no more rights at any moment than it has in the end.
        rights = 0o666 if mode is None else mode
        try:
            with open(beside, "xb", opener=lambda place, flags: os.open(place, flags, rights)) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(beside, mode)
            os.replace(beside, target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


# --- data in TOML and JSON ----------------------------------------------------------------------------

KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
"""A part of a key in TOML."""

LONG_KEY = re.compile(rf"(?<![\w-]){KEY}(?:[ \t]*+\.[ \t]*+{KEY}){{50}}", re.ASCII)
"""A key of more parts than any file needs: the time and the memory that one takes grow with their square."""


LARGEST_TOML = 2 << 20
"""Bytes of a file in TOML: its parser takes a hundred times as much memory for hostile keys. Contract."""


def read_data(path: str) -> dict[str, Any]:
    """Read the data of a TOML or JSON file, of standard input for ``-``, where JSON begins with a brace."""
    is_json = path.endswith(".json")
    try:
        text = read_bounded(path, most=LARGEST_FILE if is_json else LARGEST_TOML).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidParameter("FILE", path, "a file of text in UTF-8") from None
    is_json = is_json or (path == STANDARD_INPUT and text.lstrip().startswith("{"))
    if not is_json and LONG_KEY.search(text):
        raise InvalidParameter("FILE", path, "keys of at most 50 parts")
    try:
        data = parse_json(text, _parse_decimal) if is_json else tomllib.loads(text, parse_float=_parse_decimal)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise InvalidParameter("FILE", path, f"a file in {kind}", _reason_of(error, text)) from None
    if not isinstance(data, dict):
        raise InvalidParameter("FILE", path, "a table of keys")
    return data


def _reason_of(error: Exception, text: str) -> str:
    """Say why a parser refused a text, with the line that it means."""
    at = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    line = lines[int(at[1]) - 1].strip()[:80] if at and int(at[1]) <= len(lines) else ""
    return f"{error}: {line}" if line else str(error)


def _exact(text: str) -> float:
    """The double that says the same digits as the text; raises ValueError where there is none."""
    value = float(text)
    if not math.isfinite(value) or Decimal(text, Context(traps=[])) != Decimal(repr(value)):
        raise ValueError(f"it has the number {quoted(text)}, which is no double")
    return value


def parse_json(text: str, number: Callable[[str], float] = _exact) -> Any:
    """The value of a JSON text, whose numbers with a point or an exponent ``number`` reads.

    Raises ValueError that says why there is none, also for what two readers could understand differently, and
    RecursionError for text that is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_float=number, parse_constant=_refuse_constant)


def read_json(content: bytes | str, name: str, path: str | Path, expected: str) -> Any:
    """The value of a JSON text whose numbers are all doubles; for anything else a refusal of ``path`` by this name."""
    try:
        return parse_json(content if isinstance(content, str) else content.decode())
    except json.JSONDecodeError:
        raise InvalidParameter(name, path, expected) from None
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(name, path, expected, str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; raises ValueError for a key given twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        double = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"it has the key {quoted(double)} twice")
    return table


def _refuse_constant(text: str) -> None:
    """Refuse nan and infinities by raising ValueError."""
    raise ValueError(f"it has {text} for a number")


def same_json(one: object, other: object) -> bool:
    """True for equal JSON values of the same types, whatever the order of keys; 1 is neither 1.0 nor true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def read_table(name: str, table: Any, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The values of an object of exactly these keys, each of its kind and within its range.

    Raises :class:`InvalidParameter` for anything else; ``name`` is that of the object.
    """
    if not isinstance(table, dict) or set(table) != set(kinds):
        raise InvalidParameter(name, quoted(table), "the keys " + ", ".join(kinds))
    for key, kind in kinds.items():
        if not kind.fits(table[key]):
            raise InvalidParameter(key, quoted(table[key]), kind.words)
    return {key: kind.check(key, table[key]) for key, kind in kinds.items()}


def text_like(pattern: str, words: str) -> Kind:
    """Texts of this form, as a message describes them."""
    return Kind(words, lambda text: isinstance(text, str) and bool(re.fullmatch(pattern, text)), {})


def _parse_decimal(text: str) -> float:
    """Read a number of a file; raises ValueError where it is not 0 and too small for a double."""
    number = float(text)
    if number == 0.0 and any(c in "123456789" for c in text.lower().split("e")[0]):
        raise ValueError(f"{text} underflows to zero")
    return number


def refuse_same_file(name: str, path: str | None, file: str | None, used: str = "read") -> None:
    """Raise :class:`InvalidParameter` where an output would overwrite a file that is used otherwise; None is none."""
    if path is not None and file is not None and Path(path).resolve() == Path(file).resolve():
        raise InvalidParameter(name, path, f"another file than {file}, which is {used}")


def check_output(path: str, name: str = "FILE") -> None:
    """Refuse what names no file to write: an empty text, and ``-``, which others take for standard output."""
    if path in ("", STANDARD_INPUT):
        raise InvalidParameter(name, path or "nothing", "the name of a file to write", "./- is one" if path else "")


def write_text(path: str, text: str) -> None:
    """Replace a file as a whole."""
    check_output(path)
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


# --- what checking a file found -----------------------------------------------------------------------

AS_FAR_AS_IT_GOES = "consistent as far as it goes"
"""The verdict on a file in which nothing is wrong and planned releases are missing. Contract."""


@dataclass(frozen=True)
class Verdict:
    """Every claim of a file in words, and whether it holds."""

    claims: dict[str, bool]

    @property
    def missing(self) -> int:
        """The number of releases that were planned and are not there."""
        return 0

    @property
    def holds(self) -> bool:
        """True if every claim of the file holds."""
        return all(self.claims.values())

    @property
    def word(self) -> str:
        """The verdict in words, of which only "holds" is about all planned releases."""
        return "fails" if not self.holds else AS_FAR_AS_IT_GOES if self.missing > 0 else "holds"
