"""One call of the command line in this process, and the laws that hold for every call, however hostile.

* No exception escapes, and the call ends within the limits on time and memory.
* The exit code is 0 to 5. With code 2, 3 or 5, standard error is one line that begins with ``error: ``, and with code 2
  standard output is empty. Otherwise standard error is empty or begins with ``warning: ``.
* Output has no control characters, and a line of standard error has a bounded length.
* ``--json`` prints one JSON object without NaN. That of a quantity follows ``schema.json``, has a value exactly for
  codes 0, 1 and 2, and its value is in its domain, within its enclosure and at the safe end of it.
* Text output of a quantity is a number that is not NaN, infinite or negative.
* Input files stay unchanged, except that ``check --update`` changes ``expect``. Output files are complete, exist only
  where an option names them, and are not written by a call that fails.
* No RuntimeWarning of numpy is raised.
"""

import io
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
from privproj_cli.main import exit_code

from tests.differential.command_lines import OUTPUTS, QUANTITIES, Case
from tests.differential.report import Check, distribution_of

MOST_SECONDS = 120.0  # processor seconds of one call
MOST_GROWTH = 1024  # MiB by which one call may raise the peak memory of the process
WAIT = 180.0  # wall-clock seconds, for a call that waits
SAFE_ENDS = {"epsilon": "upper", "delta": "upper", "sigma": "upper", "steps": "lower", "rate": "lower"}


class Overtime(BaseException):
    """Raised by the alarm within a call that exceeds the time limit."""


@dataclass
class Seen:
    """Exit code, streams, resources and files of a call."""

    code: int | None = None
    out: str = ""
    err: str = ""
    seconds: float = 0.0
    growth: float = 0.0
    escaped: str = ""
    warned: list[str] = field(default_factory=list)
    left: dict[str, bytes] = field(default_factory=dict)


# --- calling --------------------------------------------------------------------------------------


def call(case: Case) -> Seen:
    """Run a case in a temporary folder with a time limit."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        for name, data in case.files.items():
            (folder / name).write_bytes(data)
        with inside(folder):
            seen = measured(list(case.arguments))
        seen.left = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        return seen
    finally:
        shutil.rmtree(folder)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Change the working directory for a block."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def alarm() -> Iterator[None]:
    """Raise :class:`Overtime` in the block at the limit of processor or wall-clock time."""

    def ring(*_: object) -> None:
        raise Overtime

    before = signal.signal(signal.SIGPROF, ring), signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])


def stream(errors: str) -> io.TextIOWrapper:
    """Return a text stream in memory."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, newline="\n")


def measured(argv: list[str]) -> Seen:
    """Call the command line and record its outcome."""
    seen, out, err = Seen(), stream("strict"), stream("backslashreplace")
    start, peak = time.process_time(), memory()
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(record=True) as caught:
        seen.code, seen.escaped = attempted(argv)
    seen.seconds, seen.growth = time.process_time() - start, memory() - peak
    seen.out, seen.err = text_of(out), text_of(err)
    seen.warned = [f"{w.category.__name__}: {w.message}" for w in caught if issubclass(w.category, RuntimeWarning)]
    return seen


def attempted(argv: list[str]) -> tuple[int | None, str]:
    """Return the exit code, or a description of the exception that escaped."""
    try:
        with alarm():
            return exit_code(argv), ""
    except Overtime:
        return None, "overtime" + place(sys.exc_info()[2])
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return None, f"{type(error).__name__}: {error}"[:300] + place(error.__traceback__)


def place(trace: object) -> str:
    """Return the place in the package that raised an exception."""
    frames = [f for f in traceback.extract_tb(trace) if "/differential/" not in f.filename]  # pyright: ignore
    own = [f for f in frames if "/privproj/" in f.filename or "/cli/" in f.filename] or frames
    return f" [{Path(own[-1].filename).name}:{own[-1].lineno} {own[-1].name}]" if own else ""


def memory() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def text_of(kept: io.TextIOWrapper) -> str:
    """Return the text that was written to a stream."""
    kept.flush()
    return kept.buffer.getvalue().decode()  # pyright: ignore


# --- laws -----------------------------------------------------------------------------------------


def check_case(case: Case) -> Check:
    """Run a case and check all laws."""
    seen = call(case)
    rules = [(distribution_of(sentence), sentence) for sentence in broken(case, seen)]
    row = case.arguments[0][:20] if case.arguments else ""
    return Check(row, str(case), {f"exit code {seen.code}"}, rules, seen.seconds, seen.growth)


def broken(case: Case, seen: Seen) -> list[str]:
    """Return a sentence for each broken law; the part before the colon names the law."""
    if seen.escaped:
        return [f"traceback: {seen.escaped}"]
    found = [*streams(seen), *bounded(seen), *documents(case, seen), *folders(case, seen)]
    return found + [f"warning on standard error: {text}" for text in seen.warned[:1]]


def streams(seen: Seen) -> Iterator[str]:
    """Check exit code and standard streams."""
    if seen.code not in range(6):
        yield f"exit code: {seen.code}"
    if "Traceback" in seen.err or "please report it" in seen.err:
        yield f"internal error: {seen.err[:300]}"
    if seen.code in (2, 3, 5) and not re.fullmatch(r"error: [^\n]+\n", seen.err):
        yield f"one line on standard error: code {seen.code}, {seen.err[:300]!r}"
    # A curve's numbers may go to a file or a program, so that its warnings stand beside them.
    if seen.code in (0, 1, 4) and seen.err and not seen.err.startswith("warning: "):
        yield f"nothing on standard error: code {seen.code}, {seen.err[:300]!r}"
    if seen.code == 2 and seen.out:
        yield f"nothing on standard output: {seen.out[:300]!r}"
    if not all(map(str.isprintable, (seen.out + seen.err).split("\n"))):
        yield f"no control characters: {seen.out[:300]!r} {seen.err[:300]!r}"
    if len(seen.err) > 20000:
        yield f"a line of bounded length: {len(seen.err)} characters"


def bounded(seen: Seen) -> Iterator[str]:
    """Check time and memory."""
    if seen.seconds > MOST_SECONDS:
        yield f"bounded time: {seen.seconds:.1f} s"
    if seen.growth > MOST_GROWTH:
        yield f"bounded memory: {seen.growth:.0f} MiB"


def documents(case: Case, seen: Seen) -> Iterator[str]:
    """Check that the output is one JSON object or a number."""
    if {"--help", "--help-all"} & set(case.arguments) or seen.code == 2:
        return
    requested = bool(case.arguments) and case.arguments[0] in QUANTITIES
    if "--json" in case.arguments:
        yield from objects(seen, requested)
    elif requested and re.search(r"(=|<) *(nan|inf|-)", (seen.out.splitlines() or [""])[0]):
        yield f"a number: {seen.out.splitlines()[0]!r}"
    elif seen.code in (0, 4) and not seen.out and not set(case.arguments) & set(OUTPUTS):
        yield f"an answer: nothing on standard output, code {seen.code}"


def objects(seen: Seen, requested: bool) -> Iterator[str]:
    """Check that the output is one JSON object without NaN, and check a quantity further."""
    try:
        shown = json.loads(seen.out, parse_constant=lambda name: {}[name])
    except (ValueError, KeyError) as error:
        yield f"one JSON object: code {seen.code}, {type(error).__name__} {error}, {seen.out[:100]!r}"
        return
    if not isinstance(shown, dict):
        yield f"one JSON object: {type(shown).__name__}"
    elif requested:
        yield from answers(seen, shown)


def answers(seen: Seen, shown: dict) -> Iterator[str]:
    """Check the JSON object of a quantity against the schema."""
    error = next(validator().iter_errors(shown), None)
    if error is not None:
        yield f"schema: {error.message[:200]}"
    if (shown["value"] is None) != (seen.code in (3, 4, 5)):
        yield f"value null with codes 3, 4, 5 only: code {seen.code}, value {shown['value']}"
    if shown["value"] is not None:
        yield from ends(shown)


def ends(shown: dict) -> Iterator[str]:
    """Check that a value is in its domain and at the safe end of its enclosure."""
    value, lower, upper, quantity = (shown[key] for key in ("value", "lower", "upper", "quantity"))
    top = 1.0 if quantity in ("delta", "rate") else 2.0 if quantity == "misalignment" else math.inf
    if not 0.0 <= value <= top or (value == 0.0 and quantity not in ("epsilon", "delta", "misalignment")):
        yield f"domain: {quantity} {value}"
    if value == 0.0 and quantity == "delta" and shown.get("log10_delta") is None:
        yield "domain: delta 0 without its logarithm"
    if lower is not None and upper is not None and not lower <= upper:
        yield f"ends in order: {lower} > {upper}"
    end = shown[SAFE_ENDS[quantity]] if quantity in SAFE_ENDS else None
    if end is not None and value != end and shown["outcome"] == "ok":
        yield f"the safe end: {quantity} {value}, ends {lower}, {upper}"


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return a validator for the schema that ships with the package."""
    return jsonschema.Draft202012Validator(json.loads((files("privproj") / "schema.json").read_text()))


# --- files ----------------------------------------------------------------------------------------


def folders(case: Case, seen: Seen) -> Iterator[str]:
    """Check that input files are unchanged and that output files are complete and requested."""
    argv = case.arguments
    requested = {argv[i + 1] for i, word in enumerate(argv[:-1]) if word in OUTPUTS}
    requested |= {word.partition("=")[2] for word in argv if word.partition("=")[0] in OUTPUTS}
    updated = set(case.files) if "--update" in argv else set()
    for name in set(case.files) - set(seen.left):
        yield f"a file is gone: {name}"
    for name, data in seen.left.items():
        if data != case.files.get(name):
            formed = argv[0] not in ("report", "curve")
            # A report of checks is written where they fail too, in the place of an earlier one.
            code = 0 if argv[0] == "check" and "--junit" in argv and name in requested else seen.code
            yield from touched(name, data, name in requested | updated, code, formed)
    if updated and argv[:1] == ("check",):
        yield from rewritten(case, seen, requested)


def touched(name: str, data: bytes, allowed: bool, code: int | None, formed: bool) -> Iterator[str]:
    """Check a file that was written; ``formed`` if its suffix states its format."""
    if not allowed:
        yield f"a file without an option: {name}"
    elif code in (2, 3, 5):
        yield f"a file is written and the call fails: {name}, code {code}"
    elif not whole(name if formed else "", data):
        yield f"a partial file: {name}, {data[-60:]!r}"


def whole(name: str, data: bytes) -> bool:
    """Return whether a file is complete in the format of its suffix."""
    readers = {"json": json.loads, "toml": lambda d: tomllib.loads(d.decode()), "xml": ElementTree.fromstring}
    try:
        readers.get(name.rsplit(".", 1)[-1], len)(data)
    except (ValueError, SyntaxError):
        return False
    return bool(data)


def rewritten(case: Case, seen: Seen, requested: set[str]) -> Iterator[str]:
    """Check that ``check --update`` changes ``expect`` only."""
    for name in set(case.files) - requested:
        if seen.left.get(name) != case.files[name] and stripped(seen.left[name]) != stripped(case.files[name]):
            yield f"--update changed more than expect: {name}"


def stripped(data: bytes) -> str:
    """Return the entries of a regression file without ``expect``."""
    content = tomllib.loads(data.decode())
    return repr([{k: v for k, v in entry.items() if k != "expect"} for entry in content["bound"]])
