"""Reading and writing files of the command line: one clear sentence where they are malformed, never half a file."""

import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter


def read(path: str) -> dict[str, Any]:
    """The data of a TOML or JSON file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidParameter("FILE", path, "a readable file", str(reason)) from None
    try:
        data = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.endswith(".json") else "TOML"
        raise InvalidParameter("FILE", path, f"a file in {kind}", str(error)) from None
    if not isinstance(data, dict):
        raise InvalidParameter("FILE", path, "a table of keys")
    return data


def write(path: str, text: str) -> None:
    """Replace a file as a whole: written and flushed beside it first, so that a kill leaves the old or the new one."""
    target = Path(path)
    handle, beside = tempfile.mkstemp(dir=target.resolve().parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(beside, target.stat().st_mode)
        else:
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(beside, 0o666 & ~mask)
        os.replace(beside, target)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def as_toml(entries: list[dict[str, Any]], table: str = "phase", **shared: Any) -> str:
    """Flat entries as TOML tables of one name, after keys shared by all."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in shared.items() if value is not None]
    for entry in entries:
        lines += ["", f"[[{table}]]", *(f"{key} = {json.dumps(value)}" for key, value in entry.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def saved(path: str, data: dict[str, Any], table: str = "phase") -> None:
    """Write a run file, as JSON or TOML by the ending of its name."""
    if path.endswith(".json"):
        write(path, json.dumps(data, indent=2) + "\n")
    else:
        shared = {key: value for key, value in data.items() if key != table}
        write(path, as_toml(data[table], table, **shared))
