"""Golden answers: what the rows of ``questions.py`` are answered, written down at one commit and compared at another.

    python -m tests.golden.answers --write FILE
    python -m tests.golden.answers --compare FILE --allow outward:1e-9

Rules: ``same`` (default: nothing may differ), ``text`` (words may, numbers may not), and ``outward:R`` (upper ends may
rise and lower ends fall by a relative ``R``; neither moves inward by more than 1e-15). Rows that differ are listed.
"""

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # one core for each process
sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

import privproj  # noqa: E402
from tests.fuzz.laws import inside, measured  # noqa: E402
from tests.golden.questions import GROUPS, Row, rows  # noqa: E402

INWARD = 1e-15
"""How far a number may move to the unsafe side, relatively."""
PRINTED = 2e-3
"""How far a printed number may move when the number behind it may move at all."""
LOWER_ENDS = ("lower", "epsilon_at_least", "log10_delta_at_least")
VOLATILE = (
    r'[\d.]+ rows/s|(?<=steps in )[\d.]+ s|(?<="seconds": )[\d.e-]+|(?<="ledger": ")[0-9a-f]{64}|(?<=time=\\")[\d.]+'
)
"""What a clock says, and what is salted anew."""
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")


# --- asking ---------------------------------------------------------------------------------------


def answer(row: Row) -> dict[str, Any]:
    """All that the calls of a row print and leave, under names that say where it stood."""
    folder = Path(tempfile.mkdtemp())
    found: dict[str, Any] = {}
    try:
        for name, text in row.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        with inside(folder):
            for i, call in enumerate(row.calls):
                found |= {f"{i} {where}": what for where, what in called(call)}
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_file() and name not in row.files:
                found[f"left {name}"] = text_or_digest(path)
    finally:
        shutil.rmtree(folder)
    return json.loads(re.sub(VOLATILE, "0", json.dumps(found).replace(str(folder), "FOLDER")))


def called(call: tuple) -> Iterator[tuple[str, Any]]:
    """One call: exit code and both streams, or the answer or error of :func:`privproj.evaluate`."""
    if call[0] == "evaluate":
        try:
            found = privproj.evaluate(call[1], **call[2])
            yield (
                "answer",
                plain(found.as_dict() | {"assumes": found.assumes} if isinstance(found, privproj.Result) else found),
            )
        except privproj.PrivprojError as error:
            yield "error", f"{type(error).__name__}: {error}"
        return
    seen = measured(list(call))
    yield from (("code", seen.code), ("out", as_data(seen.out)), ("err", seen.err + seen.escaped))


def plain(found: Any) -> Any:
    """A value as JSON holds it: enumerations by their words, what is infinite as text."""
    if isinstance(found, dict):
        return {str(name): plain(value) for name, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [plain(value) for value in found]
    if found is None or isinstance(found, (bool, int)) or (isinstance(found, float) and math.isfinite(found)):
        return found
    return str(getattr(found, "value", found))


def as_data(text: str) -> Any:
    """JSON where it is JSON, or lines of it; else the text."""
    for read in (json.loads, lambda lines: [json.loads(line) for line in lines.splitlines()]):
        try:
            return read(text)
        except ValueError:
            pass
    return text


def text_or_digest(path: Path) -> Any:
    """What a file holds; of a checkpoint the digest of its tensors, as the archive around them has times of its own."""
    if path.suffix == ".pt":
        import torch

        kept = torch.load(path, weights_only=False)
        return hashlib.sha256(repr(sorted(tensors(kept))).encode()).hexdigest()
    try:
        return as_data(path.read_text())
    except UnicodeDecodeError:
        return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors(kept: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """The digest of every tensor in nested containers."""
    if hasattr(kept, "numpy"):
        yield name, hashlib.sha256(kept.detach().contiguous().numpy().tobytes()).hexdigest()
    elif isinstance(kept, (dict, list, tuple)):
        for key, value in kept.items() if isinstance(kept, dict) else enumerate(kept):
            yield from tensors(value, f"{name}/{key}")


# --- comparing ------------------------------------------------------------------------------------


def leaves(found: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with where it stands."""
    if isinstance(found, (dict, list)):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from leaves(value, f"{name}/{key}")
    else:
        yield name, found


def differences(before: Any, after: Any, rule: str) -> list[str]:
    """What differs between two answers and may not."""
    old, new = dict(leaves(before)), dict(leaves(after))
    lower = {"value"} if "lower bound" in (old.get("/0 out/side"), old.get("/0 answer/side")) else set()
    wrong = []
    for where in dict.fromkeys((*old, *new)):
        if where in old and where in new:
            if not allowed(old[where], new[where], rule, where.rpartition("/")[2] in {*LOWER_ENDS, *lower}):
                wrong.append(f"{where}: {old[where]!r} -> {new[where]!r}")
        elif rule != "text" or is_number((old | new)[where]):
            wrong.append(f"{where} is {'new' if where in new else 'gone'}: {(old | new)[where]!r}")
    return wrong


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def allowed(old: Any, new: Any, rule: str, is_lower: bool) -> bool:
    """True where a value may have become this one."""
    if old == new and type(old) is type(new):
        return True
    if rule == "same" or type(old) is not type(new):
        return False
    if isinstance(old, str):
        numbers = [[float(x) for x in NUMBER.findall(text)] for text in (old, new)]
        if rule == "text":
            return sorted(numbers[0]) == sorted(numbers[1])
        near = len(numbers[0]) == len(numbers[1]) and all(
            map(lambda x, y: math.isclose(x, y, rel_tol=PRINTED), *numbers)
        )
        return near and NUMBER.sub("", old) == NUMBER.sub("", new)
    if rule == "text" or not isinstance(old, float):
        return False
    rise = (new - old) / abs(old) if old else math.copysign(math.inf, new)
    outward = -rise if is_lower else rise
    return -INWARD <= outward <= float(rule.partition(":")[2])


# --- the command ----------------------------------------------------------------------------------


def timed(row: Row) -> tuple[str, dict[str, Any], float]:
    start = time.process_time()
    return row.name, answer(row), time.process_time() - start


def ask(asked: list[Row], workers: int) -> Iterator[tuple[str, dict[str, Any], float]]:
    """The answers of all rows, in order."""
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(timed, asked, chunksize=4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FILE", type=Path)
    parser.add_argument("--compare", metavar="FILE", type=Path)
    parser.add_argument("--allow", metavar="RULE", default="same")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    given = parser.parse_args()
    asked = rows(tuple(given.groups))
    if given.write:
        with given.write.open("w") as file:
            for row, (_, found, seconds) in zip(asked, ask(asked, given.workers), strict=True):
                file.write(json.dumps({**asdict(row), "answer": found, "seconds": round(seconds, 3)}) + "\n")
        print(f"{len(asked)} rows written")
        return 0
    known = [json.loads(line) for line in given.compare.read_text().splitlines()]
    names = {row.name for row in asked}
    known = [row for row in known if row["name"] in names]
    again = [Row(row["name"], tuple(map(tuple, row["calls"])), row["files"]) for row in known]
    counts: Counter[str] = Counter()
    for row, (name, found, _) in zip(known, ask(again, given.workers), strict=True):
        wrong = differences(row["answer"], json.loads(json.dumps(found)), given.allow)
        counts["differ" if wrong else "agree"] += 1
        if wrong:
            print(name, *(f"    {line[:300]}" for line in wrong[:8]), sep="\n")
    print(f"{given.allow}: {counts['agree']} rows agree, {counts['differ']} differ")
    return 1 if counts["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
