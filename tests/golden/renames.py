"""Rename maps: rewrite stored calls, input files and answers in the names of the code under test.

A rename file is TOML or JSON with these tables, all optional. Every entry must be used at least once.

    [commands]  epsilon = "eps"; "* m2" = "* projected" (second word); "report run" = "statement"
    [options]   "--old" = "--new"; "report --old" = "--new" (one command); "--style json" = "--json" (with its value);
                "--old" = "command * --new" (the option becomes a command in front)
    [values]    refused = "unsupported"; "bound=exact" = "tight" (under one key, argument, option or command)
    [keys]      old = "new"; old = "new.place"; "numerics.old" = "new" (JSON keys, table columns, files that are left)
    [python]    epsilons = "epsilon_array" (functions, classes, arguments, methods, exceptions)
    [rows]      "regular expression" = "replacement" (row names)
    [removed]   old = "reason"; "numerics.old" = "reason" (a key of the stored answer that has no successor)
    [added]     new = "reason" (a key of the new answer that has no predecessor)
"""

import json
import re
import tomllib
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

SECTIONS = ("commands", "options", "values", "keys", "python", "rows", "removed", "added")
READERS = ("as_dict", "to_dict")  # methods that return a result as plain data
FILE_NAME = re.compile(r"/|\.(json|jsonl|toml|csv|parquet|md|html|txt|xml|svg|pt)$")
VERSION_KEY = re.compile(r"(schema|version)$")  # the only keys whose numbers may be mapped


@dataclass
class Leaf:
    """A plain value of a stored answer, with its kind: ``data``, ``lower`` (a lower bound) or ``prose``."""

    value: Any
    kind: str


def load_table(path: Path | None) -> dict[str, Any]:
    """Return the content of a TOML or JSON file."""
    if path is None:
        return {}
    return json.loads(path.read_text()) if path.suffix == ".json" else tomllib.loads(path.read_text())


def is_option(word: str) -> bool:
    """Return whether a word is an option rather than a value, which may be a negative number."""
    return re.match(r"--?[a-zA-Z]", word) is not None


@dataclass
class Renames:
    """The tables of a rename file, and which of their entries were used."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if unknown := set(self.tables) - set(SECTIONS):
            raise ValueError(f"unknown tables of a rename file: {sorted(unknown)}; known are {SECTIONS}")
        if silent := [name for kind in ("removed", "added") for name, why in self.table(kind).items() if not why]:
            raise ValueError(f"removed or added without a reason: {silent}")

    def table(self, section: str) -> dict[str, Any]:
        return self.tables.get(section, {})

    def unused(self) -> list[str]:
        """Return the entries that changed nothing."""
        return [f"[{s}] {name}" for s in SECTIONS for name in self.table(s) if (s, name) not in self.used]

    def find(self, section: str, *names: str) -> Any:
        """Return the entry of the first of these names that is in a table, or None."""
        for name in names:
            if name in self.table(section):
                self.used.add((section, name))
                return self.table(section)[name]
        return None

    # --- names and values -------------------------------------------------------------------------

    def row_name(self, name: str) -> str:
        for pattern, replacement in self.table("rows").items():
            name, count = re.subn(pattern, replacement, name)
            self.used |= {("rows", pattern)} if count else set()
        return name

    def python(self, name: str) -> str:
        return self.find("python", name) or name

    def value(self, scope: str, old: Any) -> Any:
        """Return the new name of an enumerated value; of ``m2.rank-free`` each part is looked up by itself."""
        if isinstance(old, bool) or not isinstance(old, (str, int)):
            return old
        if isinstance(old, int):
            new = self.find("values", f"{scope}={old}") if VERSION_KEY.search(scope) else None
            return old if new is None else new
        new = self.find("values", f"{scope}={old}", old)
        if new is None and not FILE_NAME.search(old) and re.fullmatch(r"[\w.+ -]+", old):
            part = lambda match: self.find("values", f"{scope}={match[0]}", match[0]) or match[0]  # noqa: E731
            new = re.sub(r"[\w-]+", part, old)
        return old if new is None else new

    # --- data -------------------------------------------------------------------------------------

    def data(self, old: Any, scope: str = "", is_answer: bool = True) -> Any:
        """Return nested data with its keys and enumerated values renamed."""
        if isinstance(old, list):
            return [self.data(item, scope, is_answer) for item in old]
        if isinstance(old, Leaf):
            return old if old.kind == "prose" else Leaf(self.value(scope, old.value), old.kind)
        if not isinstance(old, dict):
            return self.value(scope, old)
        rest, new, moved = copied(old), {}, []
        for path in self.table("removed") if is_answer else ():
            if take(rest, path) is not None:
                self.used.add(("removed", path))
        for path, place in self.table("keys").items():
            if (found := take(rest, path) if "." in path or "." in place else None) is not None:
                self.used.add(("keys", path))
                moved.append((place, self.data(found[0], path.rpartition(".")[2], is_answer)))
        for key, item in rest.items():
            put(new, [self.find("keys", key) or key], self.data(item, key, is_answer))
        for place, item in moved:
            put(new, [place] if "/" in place else place.split("."), item)
        return new

    def without_added(self, new: Any) -> Any:
        """Return a new answer without the keys that are said to be added."""
        if isinstance(new, list):
            return [self.without_added(item) for item in new]
        if not isinstance(new, dict):
            return new
        rest = copied(new)
        for path in self.table("added"):
            if take(rest, path) is not None:
                self.used.add(("added", path))
        return {key: self.without_added(item) for key, item in rest.items()}

    # --- calls and files --------------------------------------------------------------------------

    def call(self, call: Any) -> Any:
        """Return a stored call in the new names: words of the command line, or a call of Python."""
        return self.arguments(call) if isinstance(call, list) else self.python_call(call)

    def arguments(self, old: list[str]) -> list[str]:
        count = next((i for i, word in enumerate(old) if is_option(word)), len(old))
        head, rest = old[:count], old[count:]
        if whole := self.find("commands", " ".join(head[:2])) if len(head) > 1 else None:
            new = whole.split() + [self.value(head[0], word) for word in head[2:]]
        else:
            new = (self.find("commands", *head[:1]) or " ".join(head[:1])).split()
            for word in head[1:]:
                second = self.find("commands", f"* {word}") if word is head[1] else None
                new += second.removeprefix("* ").split() if second else [self.value(head[0], word)]
        rest = [part for word in rest for part in (word.split("=", 1) if re.match(r"--[\w-]+=", word) else [word])]
        command = " ".join(head[:1])
        while rest:
            name = rest.pop(0)
            value = rest.pop(0) if is_option(name) and rest and not is_option(rest[0]) else None
            if value and (pair := self.find("options", f"{command} {name} {value}", f"{name} {value}")) is not None:
                new += pair.split()
                continue
            prefix, _, extra = (self.find("options", f"{command} {name}", name) or name).rpartition("*")
            new[:0] = [word for word in prefix.split() if word not in new]  # "--old" = "command * --new"
            new += extra.split()
            new += [] if value is None else [self.value(name.strip("-").replace("-", "_"), value)]
        return new

    def python_call(self, old: Any) -> Any:
        """Return a call of Python, or an argument of one, in the new names."""
        if isinstance(old, list):
            return [self.python_call(item) for item in old]
        if not isinstance(old, dict):
            return self.value("", old)
        if "call" not in old:
            return old
        return {
            **old,
            "call": self.python(old["call"]),
            "args": [self.python_call(item) for item in old.get("args", ())],
            "keywords": self.keywords(old.get("keywords", {})),
            "read": [[self.python(name), self.keywords(given)] for name, given in old.get("read", ())],
            "readers": [self.python(name) for name in READERS],
        }

    def keywords(self, old: dict[str, Any]) -> dict[str, Any]:
        new = {}
        for name, item in old.items():
            plain = item if isinstance(item, (dict, list)) else self.value(name, item)
            new[self.python(name)] = self.python_call(plain) if isinstance(item, (dict, list)) else plain
        return new

    def file(self, name: str, text: str) -> str:
        """Return an input file with its keys and values renamed; the hash chain of a ledger is computed anew."""
        try:
            if name.endswith(".toml"):
                old: Any = tomllib.loads(text)
                new = self.data(old, is_answer=False)
                return text if new == old else as_toml(new)
            lines = [json.loads(line) for line in text.splitlines()] if text.startswith('{"ledger"') else None
            old = json.loads(text) if lines is None else lines
        except ValueError:
            return text
        new = self.data(old, is_answer=False)
        return text if new == old else json.dumps(new) if lines is None else as_ledger(new)


def copied(old: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of nested tables, which shares lists and plain values."""
    return {key: copied(item) if isinstance(item, dict) else item for key, item in old.items()}


def take(table: dict[str, Any], path: str) -> tuple[Any] | None:
    """Remove the item at a dotted path and return it in a tuple, or None where there is none."""
    if path in table:
        return (table.pop(path),)
    first, dot, rest = path.partition(".")
    return take(table[first], rest) if dot and isinstance(table.get(first), dict) else None


def put(table: dict[str, Any], path: list[str], item: Any) -> None:
    """Store an item at a path, merged with a table that is there."""
    for key in path[:-1]:
        table = table.setdefault(key, {})
    if path[-1] not in table:
        table[path[-1]] = item
    elif isinstance(item, dict) and isinstance(table[path[-1]], dict):
        for key, value in item.items():
            put(table[path[-1]], [key], value)
    else:
        raise ValueError(f"two keys become {'.'.join(path)}")


def as_toml(data: dict[str, Any]) -> str:
    """Return TOML with a table or an array of tables for each of the topmost keys, and inline values within."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in item.items()) + "}"
        return "[" + ", ".join(map(value, item)) + "]" if isinstance(item, list) else json.dumps(item)

    def lines(table: dict[str, Any]) -> str:
        return "".join(f"{json.dumps(key)} = {value(item)}\n" for key, item in table.items())

    tables = {key: item for key, item in data.items() if isinstance(item, dict)}
    arrays = {key: i for key, i in data.items() if isinstance(i, list) and i and all(isinstance(x, dict) for x in i)}
    text = lines({key: item for key, item in data.items() if key not in tables and key not in arrays})
    text += "".join(f"[{key}]\n{lines(table)}" for key, table in tables.items())
    return text + "".join(f"[[{key}]]\n{lines(table)}" for key, items in arrays.items() for table in items)


def as_ledger(entries: list[dict[str, Any]]) -> str:
    """Return the lines of a ledger, each with the hash of all bytes before it and of its own entry."""
    before, text = sha256(), ""
    for entry in entries:
        entry, link = {key: item for key, item in entry.items() if key != "chain"}, before.copy()
        link.update(json.dumps(entry).encode())
        line = json.dumps({**entry, "chain": link.hexdigest()[:32]}) + "\n"
        before.update(line.encode())
        text += line
    return text
