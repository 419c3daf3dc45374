"""Read files of limited size, write files atomically, and parse TOML and JSON."""

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

from privproj.errors import InvalidParameterError
from privproj.parameters import Kind, quoted

LARGEST_FILE = 1 << 24  # bytes; largest file that is read, except for ledgers, which grow with a run

STANDARD_INPUT = "-"  # file name of standard input


def read_bounded(path: str | Path, name: str = "FILE", most: int = LARGEST_FILE) -> bytes:
    """Return the content of a file, of a pipe, or of standard input for ``-``.

    Raises:
        InvalidParameterError: The file has more than ``most`` bytes, cannot be read, or is a directory or a device.
    """
    with _opened(path, name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InvalidParameterError(name, path, f"a file of at most {most} bytes")
    return content


def sha256_of(path: str | Path, name: str = "FILE") -> str:
    """Return the SHA-256 of a file of any size as hexadecimal digits."""
    with _opened(path, name) as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(path: str | Path, name: str) -> Iterator[Any]:
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise InvalidParameterError(name, path, "an open standard input", "for a file with this name, use ./-")
        yield sys.stdin.buffer
        return
    try:
        # Without O_NONBLOCK, opening a pipe would block until a process writes to it.
        with open(path, "rb", opener=lambda place, flags: os.open(place, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise InvalidParameterError(name, path, "a regular file")
            os.set_blocking(file.fileno(), True)
            yield file
    except OSError as error:
        raise InvalidParameterError(name, path, "a readable file", str(error.strerror)) from None
    except UnicodeError:
        raise InvalidParameterError(name, path, "a readable file", "the file name is invalid") from None


def open_locked(path: str | Path, name: str) -> int:
    """Open a file for reading and appending with an exclusive lock, and return its descriptor.

    Raises:
        InvalidParameterError: The file cannot be opened, or another process holds the lock.
    """
    import fcntl

    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        folder = Path(path).parent
        why = str(error.strerror) if folder.is_dir() else f"create the folder {folder} first"
        raise InvalidParameterError(name, path, "a file that can be written", why) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        noun = name.split(": ")[-1]
        expected = f"a {noun} that no other process is writing"
        raise InvalidParameterError(
            name, path, expected, f"wait for the other process, or use another {noun}"
        ) from None
    return file


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the path of a file to every OSError that is raised in this context."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: str | Path, fill: Callable[[BinaryIO], object], mode: int | None = None) -> None:
    """Replace a file atomically by the content that ``fill`` writes.

    Args:
        path: The file. If it is a link, the target of the link is replaced. A pipe or a device is written directly.
        fill: A function that writes the content to an open file.
        mode: The permissions of the file; None keeps those of the old file.
    """
    with naming(path):
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                fill(file)
            return
        target = Path(os.path.realpath(path))
        if mode is None and target.exists():
            mode = stat.S_IMODE(target.stat().st_mode)
        temporary = target.with_name(f".{target.name[:100]}.{token_hex(4)}")
        # The temporary file must never have more permissions than the final one.
        permissions = 0o666 if mode is None else mode
        try:
            with open(temporary, "xb", opener=lambda place, flags: os.open(place, flags, permissions)) as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


# --- TOML and JSON ------------------------------------------------------------------------------------

KEY = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""  # one part of a key in TOML

# a key with more parts than any file needs; it is rejected, because parsing takes quadratic time and memory
LONG_KEY = re.compile(rf"(?<![\w-]){KEY}(?:[ \t]*+\.[ \t]*+{KEY}){{50}}", re.ASCII)


LARGEST_TOML = 2 << 20  # bytes; for malicious keys the parser needs a hundred times as much memory


def read_data(path: str) -> dict[str, Any]:
    """Return the data of a TOML or JSON file.

    Raises:
        InvalidParameterError: The file cannot be read or is too large, or it is not TOML or a JSON object.
    """
    is_json = path.endswith(".json")
    try:
        text = read_bounded(path, most=LARGEST_FILE if is_json else LARGEST_TOML).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidParameterError("FILE", path, "a UTF-8 text file") from None
    is_json = is_json or (path == STANDARD_INPUT and text.lstrip().startswith("{"))
    if not is_json and LONG_KEY.search(text):
        raise InvalidParameterError("FILE", path, "a file without keys of more than 50 parts")
    try:
        data = parse_json(text, _parse_decimal) if is_json else tomllib.loads(text, parse_float=_parse_decimal)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        raise InvalidParameterError("FILE", path, f"a {kind} file", _reason_of(error, text)) from None
    if not isinstance(data, dict):
        kind = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}.get(type(data), "a number")
        raise InvalidParameterError("FILE", path, "a JSON file with an object", f"this file contains {kind}")
    return data


def _reason_of(error: Exception, text: str) -> str:
    """Return the message of a parser error, with the line of the text that it names."""
    at = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    line = lines[int(at[1]) - 1].strip()[:80] if at and int(at[1]) <= len(lines) else ""
    return f"{error}: {line}" if line else str(error)


def _exact(text: str) -> float:
    """Return the double that a decimal text denotes; raise ValueError if digits are lost."""
    value = float(text)
    if not math.isfinite(value) or Decimal(text, Context(traps=[])) != Decimal(repr(value)):
        raise ValueError(f"the number {quoted(text)} is not a double")
    return value


def parse_json(text: str, number: Callable[[str], float] = _exact) -> Any:
    """Return the value of a JSON text without duplicate keys, nan and infinities.

    ``number`` parses each number with a point or an exponent. By default such a number must be exactly a double.

    Raises:
        ValueError: The text is not JSON, has a duplicate key, nan or an infinity, or ``number`` raises ValueError.
        RecursionError: The text is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_float=number, parse_constant=_refuse_constant)


def read_json(content: bytes | str, name: str, path: str | Path, expected: str) -> Any:
    """Return the value of a JSON text whose numbers are all doubles.

    Raises:
        InvalidParameterError: The text is not valid JSON, has a duplicate key, or has a number that is not a double.
    """
    try:
        return parse_json(content if isinstance(content, str) else content.decode())
    except json.JSONDecodeError:
        raise InvalidParameterError(name, path, expected) from None
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(name, path, expected, str(error)) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        double = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {quoted(double)} appears twice")
    return table


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")


def json_equal(one: object, other: object) -> bool:
    """Return whether two JSON values are equal, including types: 1 differs from 1.0 and true."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def read_table(name: str, table: Any, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Return the values of a JSON object, which must have the keys and types of ``kinds``."""
    if not isinstance(table, dict) or set(table) != set(kinds):
        raise InvalidParameterError(name, quoted(table), "a table with the keys " + ", ".join(kinds))
    for key, kind in kinds.items():
        if not kind.fits(table[key]):
            raise InvalidParameterError(key, quoted(table[key]), kind.description)
    return {key: kind.check(key, table[key]) for key, kind in kinds.items()}


def text_matching(pattern: str, description: str) -> Kind:
    """Return the type of a text that matches a regular expression as a whole."""
    return Kind(description, lambda text: isinstance(text, str) and bool(re.fullmatch(pattern, text)), {})


def _parse_decimal(text: str) -> float:
    """Return the float that a decimal text denotes; raise ValueError if it underflows to 0."""
    number = float(text)
    if number == 0.0 and any(c in "123456789" for c in text.lower().split("e")[0]):
        raise ValueError(f"{text} underflows to zero")
    return number


def check_not_same_file(name: str, path: str | None, file: str | None, used: str = "read") -> None:
    """Raise :class:`InvalidParameterError` if an output path and another path are one file.

    ``name`` is the option of the output, and ``used`` states how the command uses the other file.
    """
    if path is not None and file is not None and Path(path).resolve() == Path(file).resolve():
        raise InvalidParameterError(name, path, f"another file than {file}, which is {used}")


def check_output(path: str, name: str = "FILE") -> None:
    """Raise :class:`InvalidParameterError` if an output path is empty or ``-``."""
    if path in ("", STANDARD_INPUT):
        raise InvalidParameterError(
            name, path or "nothing", "a file name", "to write to a file with this name, use ./-" if path else ""
        )


def write_text(path: str, text: str) -> None:
    """Replace the content of a file by a text, atomically."""
    check_output(path)
    write_atomically(path, lambda file: file.write(text.encode()))


def as_toml(entries: list[dict[str, Any]], table: str = "phase", **shared: Any) -> str:
    """Return keys and an array of tables as TOML; keys with the value None are omitted."""
    lines = [f"{key} = {_toml_value(value)}" for key, value in shared.items() if value is not None]
    for entry in entries:
        lines += ["", f"[[{table}]]", *(f"{key} = {_toml_value(value)}" for key, value in entry.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    # JSON escapes characters beyond 16 bits as surrogate pairs, which TOML does not allow.
    return json.dumps(value, ensure_ascii=False)


def write_data(path: str, data: dict[str, Any], table: str = "phase") -> None:
    """Write the data of a run file as JSON if its name ends in ``.json``, and otherwise as TOML."""
    if path.endswith(".json"):
        write_text(path, json.dumps(data, indent=2) + "\n")
    else:
        shared = {key: value for key, value in data.items() if key != table}
        write_text(path, as_toml(data[table], table, **shared))


# --- verdicts -----------------------------------------------------------------------------------------

# verdict on a file whose claims hold although planned releases are missing
INCOMPLETE = "consistent as far as it goes"


@dataclass(frozen=True)
class Verdict:
    """The result of checking a file: a truth value for each claim about it."""

    claims: dict[str, bool]

    @property
    def missing(self) -> int:
        """The number of planned releases that the file does not record."""
        return 0

    @property
    def holds(self) -> bool:
        """True if every claim about the file holds."""
        return all(self.claims.values())

    @property
    def word(self) -> str:
        """The verdict as text: "fails", "holds" or "consistent as far as it goes".

        The last one means that every claim holds, but planned releases are missing.
        """
        return "fails" if not self.holds else INCOMPLETE if self.missing > 0 else "holds"
