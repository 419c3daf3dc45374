"""Golden answers: record the answers of many calls at one commit, and compare them at another.

    python -m tests.golden.answers --write FILE
    python -m tests.golden.answers --compare FILE --allow text --rename MAPS --drop REASONS

Only the stored file defines what is compared: it holds the calls and input files of every row. Rules: ``same``
(nothing may differ), ``text`` (prose may differ, data may not) and ``outward:R`` (upper bounds may rise and lower
bounds fall by a relative R, neither moves inward by more than 1e-15, and prose may differ). Data are exit codes, types
of errors, JSON, tables, arrays and names. Prose is every string of several words that is not an enumerated value.
``--rename`` takes the tables of ``renames.py``. ``--drop`` takes a TOML or JSON table from row names, or patterns such
as ``"seed 1*"``, to reasons.
"""

import argparse
import csv
import dataclasses
import hashlib
import importlib
import importlib.resources
import io
import json
import math
import os
import re
import runpy
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

from tests.golden.renames import READERS, Leaf, Renames, load_table

INWARD = 1e-15  # relative move of a bound to the unsafe side that is rounding alone
LOWER_KEYS = re.compile(r"lower|.*_at_least|.*_lower_bound|more_steps|false negative rate.*")
ENUMERATED = ("upper bound", "lower bound", "the true value", "the value of the named bound", "exit code")
NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|-?inf")
VOLATILE = re.compile(r"[\d.]+(?= rows/s)|(?<=steps in )[\d.]+|\b(?<!sha256:)([0-9a-f]{64}|[0-9a-f]{32})\b")
PICTURES = (".png", ".svg", ".pdf")

Row = dict[str, Any]

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # one core for each process, before numpy is imported

# --- replay ---------------------------------------------------------------------------------------


def answer(row: Row) -> dict[str, Any]:
    """Return all that the calls of a row print and return, and the files that they leave."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for name, text in row["files"].items():
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_text(text)
        calls = [command(call) if isinstance(call, list) else python(call) for call in row["calls"]]
        paths = [path for path in sorted(Path().rglob("*")) if path.is_file()]
        left = {str(p): content(p) for p in paths if row["files"].get(str(p), "").encode() != p.read_bytes()}
        return json.loads(json.dumps(settled({"calls": calls, "left": left}, folder)))


def command(arguments: list[str]) -> dict[str, Any]:
    """Run ``python -m privproj`` in this process and return its exit code and streams."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    code: Any = 0
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        warnings.catch_warnings(),
        mock.patch("sys.argv", ["", *arguments]),
    ):
        warnings.simplefilter("ignore")
        try:
            runpy.run_module("privproj", run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        except Exception as error:
            code = f"uncaught:{type(error).__name__}"
    for stream in (out, err):
        stream.flush()
    shown, errors = (stream.buffer.getvalue().decode() for stream in (out, err))  # pyright: ignore
    return {"code": code, "out": structured(shown), "err": errors.splitlines()}


def python(call: dict[str, Any]) -> Any:
    """Evaluate a call of the public API and what is read from its result, or return the type of its error."""
    if "resource" in call:
        return json.loads(importlib.resources.files("privproj").joinpath(call["resource"]).read_text())
    readers = call.get("readers", READERS)
    try:
        found = value_of(call)
        reads = [member(found, name, keywords) for name, keywords in call.get("read", ())]
        return [plain(item, readers) for item in (reads or [found])]
    except Exception as error:
        return {"error_type": type(error).__name__, "error": [str(error)]}


def value_of(argument: Any) -> Any:
    """Return an argument, in which every ``{"call": ...}`` is evaluated."""
    if isinstance(argument, list):
        return [value_of(item) for item in argument]
    if not (isinstance(argument, dict) and "call" in argument):
        return argument
    module, _, name = f"privproj.{argument['call']}".rpartition(".")
    args = [value_of(item) for item in argument.get("args", ())]
    keywords = {key: value_of(item) for key, item in argument.get("keywords", {}).items()}
    return getattr(importlib.import_module(module), name)(*args, **keywords)


def member(found: Any, name: str, keywords: dict[str, Any]) -> Any:
    """Return an attribute of a result, or what its method returns."""
    item = getattr(found, name)
    return item(**{key: value_of(given) for key, given in keywords.items()}) if callable(item) else item


def plain(item: Any, readers: Iterable[str]) -> Any:
    """Return a value in the types of JSON; numbers that are not finite become strings."""
    if isinstance(item, float) and not math.isfinite(item):
        return str(item)
    if item is None or isinstance(item, (bool, int, float)):
        return item
    if isinstance(item, dict):
        return {str(key): plain(value, readers) for key, value in item.items()}
    for reader in readers:
        if hasattr(item, reader):
            return plain(getattr(item, reader)(), readers)
    if isinstance(item, (list, tuple)):
        return [plain(value, readers) for value in item]
    if hasattr(item, "tolist"):
        return plain(item.tolist(), readers)
    if dataclasses.is_dataclass(item):
        fields = [f.name for f in dataclasses.fields(item)]
        return {name: plain(getattr(item, name), readers) for name in fields if not callable(getattr(item, name))}
    return str(getattr(item, "value", item))


def structured(text: str) -> Any:
    """Return JSON, lines of JSON or a CSV table as data; of other text the lines of JSON apart from the rest."""
    lines = text.splitlines()
    for read in (lambda: json.loads(text), lambda: [json.loads(line) for line in lines], lambda: table(text)):
        try:
            if (found := read()) != []:
                return found
        except ValueError:
            pass
    data = [json.loads(line) for line in lines if re.fullmatch(r'\{".*\}', line)]
    return {"json_lines": data, "other_text": re.sub(r'(?m)^\{".*\}$', "", text)} if data else text


def table(text: str) -> list[dict[str, Any]]:
    """Return the rows of a CSV table; raise ValueError where the text is none."""
    header, *rows = csv.reader(io.StringIO(text)) if text else [[]]
    if len(header) < 2 or not rows or any(len(row) != len(header) or "" in header for row in rows):
        raise ValueError
    return [dict(zip(header, map(cell, row), strict=True)) for row in rows]


def cell(text: str) -> Any:
    """Return a cell of a table as a number where it is one."""
    return json.loads(text) if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text) else text or None


def content(path: Path) -> Any:
    """Return what a file holds; of a picture only that it is there, of a checkpoint the digests of its tensors."""
    if path.suffix == ".pt":
        return dict(tensors(importlib.import_module("torch").load(path, weights_only=False)))
    if path.suffix == ".parquet":
        return importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    if path.suffix == ".toml":
        return importlib.import_module("tomllib").loads(path.read_text())
    if path.suffix == ".xml":
        return elements(ElementTree.parse(path).getroot())
    return "picture" if path.suffix in PICTURES else structured(path.read_text())


def elements(node: ElementTree.Element) -> dict[str, Any]:
    """Return an XML element without the times that it names."""
    named = {key: cell(item) for key, item in node.attrib.items() if key != "time"}
    return {"tag": node.tag, **named, "text": [node.text or ""], "inner": [elements(inner) for inner in node]}


def tensors(kept: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the digest of every tensor and every plain value of a checkpoint, by its place."""
    if hasattr(kept, "numpy"):
        yield name, "sha256:" + hashlib.sha256(kept.detach().contiguous().numpy().tobytes()).hexdigest()
    elif isinstance(kept, (dict, list, tuple)):
        for key, item in kept.items() if isinstance(kept, dict) else enumerate(kept):
            yield from tensors(item, f"{name}/{key}")
    elif isinstance(kept, (bool, int, float, str)):
        yield name, kept


def settled(item: Any, folder: str) -> Any:
    """Return an answer without what differs from run to run: times, hashes with a salt, the temporary folder."""
    if isinstance(item, dict):
        return {key: 0 if key == "seconds" else settled(value, folder) for key, value in item.items()}
    if isinstance(item, list):
        return [settled(value, folder) for value in item]
    return VOLATILE.sub("0", item.replace(folder, "FOLDER")) if isinstance(item, str) else item


# --- comparison -----------------------------------------------------------------------------------


def is_prose(item: Any) -> bool:
    """Return whether a value is prose: several words that are neither an enumerated value nor names joined by +."""
    return isinstance(item, str) and bool(re.search(r"\s", item.replace(" + ", "+"))) and item not in ENUMERATED


def marked(item: Any, is_lower: bool = False) -> Any:
    """Return a stored answer with the kind of every plain value, as its stored keys say it."""
    if isinstance(item, dict):
        below = {"value"} if item.get("side") == "lower bound" else set()
        return {key: marked(value, bool(LOWER_KEYS.fullmatch(key)) or key in below) for key, value in item.items()}
    if isinstance(item, list):
        return [marked(value, is_lower) for value in item]
    return Leaf(item, "prose" if is_prose(item) else "lower" if is_lower else "data")


def leaves(item: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value and every table and list with its path; a key that is a sentence is prose itself."""
    if not isinstance(item, (dict, list)):
        yield path, item
        return
    yield path, type(item).__name__
    for i, (key, value) in enumerate(item.items() if isinstance(item, dict) else enumerate(item)):
        if " " in str(key) and isinstance(value.value if isinstance(value, Leaf) else value, bool):
            yield f"{path}/#{i} key", Leaf(key, "prose")
            key = f"#{i}"
        yield from leaves(value, f"{path}/{key}")


def differences(before: Any, after: Any, rule: str) -> tuple[list[str], list[str]]:
    """Return what differs between a renamed stored answer and a new one: data that may not differ, and prose."""
    old, new = dict(leaves(before)), dict(leaves(after))
    data, prose = [], []
    for path in dict.fromkeys((*old, *new)):
        was = old[path] if isinstance(old.get(path), Leaf) else Leaf(old.get(path), "data")
        now = new[path].value if isinstance(new.get(path), Leaf) else new.get(path)
        if path not in old or path not in new:
            one = now if path in new else was.value
            in_list = path.rpartition("/")[2].isdigit() and is_prose(one)
            (prose if in_list or path.endswith(" key") else data).append(
                f"{path} is {'new' if path in new else 'gone'}: {one!r}"
            )
        elif was.kind == "prose" and isinstance(now, str) and now:
            prose += [f"{path}: {was.value!r} -> {now!r}"] if was.value != now else []
        elif not allowed(was.value, now, rule, was.kind == "lower"):
            data.append(f"{path}: {was.value!r} -> {now!r}")
    return data, prose


def allowed(old: Any, new: Any, rule: str, is_lower: bool) -> bool:
    """Return whether a plain value may have become another under a rule."""
    if old == new and type(old) is type(new):
        return True
    numeric = [not isinstance(x, bool) and NUMBER.fullmatch(str(x)) is not None for x in (old, new)]
    if not rule.startswith("outward:") or type(old) is not type(new) or not all(numeric):
        return False
    x, y = float(old), float(new)
    rise = (y - x) / abs(x) if x and math.isfinite(x) else math.copysign(math.inf, y - x)
    return -INWARD <= (-rise if is_lower else rise) <= float(rule.partition(":")[2])


def dropped(stored: list[Row], reasons: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the reason of every dropped row, and what is wrong with the drop file."""
    found, wrong = {}, []
    for pattern, reason in reasons.items():
        names = [row["name"] for row in stored if row["name"] == pattern or fnmatchcase(row["name"], pattern)]
        found.update(dict.fromkeys(names, reason))
        wrong += [] if names else [f"drop: no stored row is named {pattern!r}"]
        wrong += [] if isinstance(reason, str) and reason.strip() else [f"drop: {pattern!r} has no reason"]
    return found, wrong


def compare(
    stored: list[Row],
    rule: str = "same",
    maps: Renames | None = None,
    drop: dict[str, str] | None = None,
    today: set[str] | None = None,
    replay: Callable[[list[Row]], Iterable[tuple[Any, float]]] | None = None,
) -> tuple[list[str], str]:
    """Replay stored rows and return the violations of the rule, and the summary."""
    maps, counts = maps or Renames(), Counter[str]()
    reasons, wrong = dropped(stored, drop or {})
    kept = [row for row in stored if row["name"] not in reasons]
    again = [
        {
            "name": maps.row_name(row["name"]),
            "calls": [maps.call(call) for call in row["calls"]],
            "files": {name: maps.file(name, text) for name, text in row["files"].items()},
        }
        for row in kept
    ]
    replayed = list((replay or requested)(again))
    for row, new, (found, _) in zip(kept, again, replayed, strict=False):
        old = renamed_answer(row["answer"], maps)
        data, prose = differences(old, maps.without_added(found), rule)
        as_stored = {"name": row["name"], "calls": [Renames().call(c) for c in row["calls"]], "files": row["files"]}
        counts.update(compared=1, renamed=int(new != as_stored), data=int(bool(data)), prose=int(bool(prose)))
        seen = [*data, *(prose if rule == "same" else ())]
        wrong += [f"{new['name']}\n" + "\n".join(f"    {line[:300]}" for line in seen[:8])] if seen else []
    if missing := len(stored) - len(reasons) - counts["compared"]:
        wrong.append(f"{missing} rows not replayed")
    names = {row["name"] for row in again}
    if today is not None:
        wrong += [f"{name}: today's questions have no such row; rename or drop it" for name in sorted(names - today)]
    wrong += [f"rename: {entry} was not used" for entry in maps.unused()]
    why = "".join(f"\n    {count} dropped: {reason}" for reason, count in Counter(reasons.values()).items())
    return wrong, (
        f"{rule}: {len(stored)} rows stored, {counts['compared']} compared, {len(reasons)} dropped, "
        f"{counts['renamed']} renamed; data: {counts['compared'] - counts['data']} agree, {counts['data']} differ; "
        f"prose: {counts['compared'] - counts['prose']} agree, {counts['prose']} differ; "
        f"{len((today or names) - names)} new rows not stored{why}"
    )


def renamed_answer(stored: dict[str, Any], maps: Renames) -> dict[str, Any]:
    """Return a stored answer with marked kinds, in the new names."""
    calls = []
    for call in stored["calls"]:
        if isinstance(call, dict) and "error_type" in call:
            calls.append(marked({**call, "error_type": maps.python(call["error_type"])}))
        elif isinstance(call, dict) and "code" in call:
            calls.append({**marked(call), "out": maps.data(marked(call["out"]))})
        else:
            calls.append(maps.data(marked(call)))
    return {"calls": calls, "left": maps.data(marked(stored["left"]))}


# --- the command ----------------------------------------------------------------------------------


def timed(row: Row) -> tuple[dict[str, Any], float]:
    start = time.process_time()
    return answer(row), round(time.process_time() - start, 3)


def requested(rows: list[Row], workers: int = 0) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield the answers of all rows in order, from so many processes; 0 is this one."""
    if not workers:
        yield from map(timed, rows)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(timed, rows, chunksize=4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FILE", type=Path)
    parser.add_argument("--compare", metavar="FILE", type=Path)
    parser.add_argument("--allow", metavar="RULE", default="same")
    parser.add_argument("--rename", metavar="FILE", type=Path)
    parser.add_argument("--drop", metavar="FILE", type=Path)
    parser.add_argument("--only", metavar="PATTERN", default="*", help="rows to try; the result is partial")
    parser.add_argument("--stored-only", action="store_true", help="do not look at the names of today's questions")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    given = parser.parse_args()
    if not re.fullmatch(r"same|text|outward:[\d.e-]+", given.allow):
        parser.error("--allow must be same, text or outward:R")
    if given.write:
        rows = [row for row in todays() if fnmatchcase(row["name"], given.only)]
        with given.write.open("w") as file:
            for row, (found, seconds) in zip(rows, requested(rows, given.workers), strict=True):
                file.write(json.dumps({**row, "answer": found, "seconds": seconds}) + "\n")
        print(f"{len(rows)} rows written: {dict(Counter(row['group'] for row in rows))}")
        return 0
    stored = [json.loads(line) for line in given.compare.read_text().splitlines()]
    chosen = [row for row in stored if fnmatchcase(row["name"], given.only)]
    today = None if given.stored_only or len(chosen) < len(stored) else {row["name"] for row in todays()}
    maps, replay = Renames(load_table(given.rename)), lambda rows: requested(rows, given.workers)
    wrong, summary = compare(chosen, given.allow, maps, load_table(given.drop), today, replay)
    print(*wrong, summary, sep="\n")
    if len(chosen) < len(stored):
        print(f"PARTIAL: {len(stored) - len(chosen)} of {len(stored)} stored rows left out by --only")
    return 1 if wrong else 0


def todays() -> list[Row]:
    """Return the rows of today's generators, which only recording and the check of names need."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    return importlib.import_module("tests.golden.questions").rows()


if __name__ == "__main__":
    sys.exit(main())
