"""Kernels as machine code: made by numba from the plain functions, kept on disk, run over rows.

A kernel is a plain function of floats on ``math``, and what it calls by name are others, of any module. All of them
are rebuilt over globals in which each stands in its compiled form, so that compiled callers call compiled
callees. Only the entry point is kept on disk. numba asks for the age of one file, that of the entry point; so the file
in which machine code is kept is named after a digest of every function and constant that it is made of.

Where numba is missing, broken or cannot write, the answers come all the same, slower. That it cannot write is said.
"""

import hashlib
import inspect
import math
import os
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from multiprocessing import current_process, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from privproj.numerics.arrays import Array

ROWS_WORTH_LOADING = 400
"""From how many rows on machine code that is kept on disk is used; numba takes half a second to import. Speed only.

Rows are counted in epsilons of M2, which take plain Python a millisecond; cheaper ones count less.
"""

ROWS_WORTH_COMPILING = 2000
"""From how many rows on machine code is made that will be kept, which takes seconds, once. Speed only."""

ROWS_WORTH_ONE_PROCESS = 20_000
"""From how many rows on machine code is made that cannot be kept, by every process for itself. Speed only."""

ROWS_PER_TURN = 20_000
"""Rows that one thread takes at a time; between turns a user can interrupt. Speed only."""

NOT_KEPT = (
    "expected a folder in which machine code can be kept, got none that can be written: large tables are slower, since "
    "every process runs plain Python or compiles anew; set NUMBA_CACHE_DIR to a folder that can be written"
)
"""What is said, once, where numba can keep nothing. Contract."""

_rows_run: defaultdict[Callable[..., None], float] = defaultdict(float)
"""Rows that this process was asked for by each loop, in epsilons of M2."""

_work: ContextVar[tuple[float, bool]] = ContextVar("work", default=(0.0, True))


@contextmanager
def rows_to_come(count: float, *, may_load: bool = True) -> Iterator[None]:
    """Within it, kernels are run as is best for so many rows, however few of them come at a time.

    Without ``may_load`` it plays no role what machine code is kept already, so that the same rows always run alike.
    """
    before = _work.set((count, may_load))
    try:
        yield
    finally:
        _work.reset(before)


def over_rows(
    kernel: Callable[[float, Sequence[float]], tuple[float, float]],
    first: Array,
    rows: Array,
    threads: int = 1,
    weight: float = 1.0,
) -> tuple[Array, Array]:
    """Return both values of ``kernel(first_i, rows_i)`` for every ``i``, as two arrays of shape ``(n,)``.

    ``first`` has shape ``(n,)``, ``rows`` has shape ``(n, k)``. Many rows are run by machine code, whose values agree
    with the plain ones up to rounding and do not depend on ``threads``. A row counts ``weight`` times.
    """
    first, rows = np.ascontiguousarray(first, float), np.ascontiguousarray(rows, float)
    loop = _loop_over(kernel)
    if not _is_worth_it(loop, len(first), weight):
        values = [_plain(kernel, x, row) for x, row in zip(first.tolist(), rows.tolist(), strict=True)]
        pair = np.array(values, float).reshape(len(values), 2)
        return pair[:, 0], pair[:, 1]
    run = compiled(loop)
    one, other = np.empty(len(first)), np.empty(len(first))

    def turn(start: int) -> None:
        part = slice(start, start + ROWS_PER_TURN)
        run(first[part], rows[part], one[part], other[part])

    starts = range(0, len(first), ROWS_PER_TURN)
    turn(0)  # compiled, or read from disk, before threads share it
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(turn, starts[1:]))
    else:
        for start in starts[1:]:
            turn(start)
    return one, other


def _is_worth_it(loop: Callable[..., Any], rows: int, weight: float) -> bool:
    """True where machine code of a loop takes less time than all rows that are to come, or than those that came.

    Who has asked for so many rows before will ask again: then the time that plain Python took is lost but once more.
    """
    to_come, may_load = _work.get()
    count = (to_come or rows) * weight
    if may_load:
        _rows_run[loop] = _rows_run.get(loop, 0.0) + rows * weight
        count = max(count, _rows_run[loop])
    if count < ROWS_WORTH_COMPILING:
        return may_load and count >= ROWS_WORTH_LOADING and _is_kept(loop)
    return count >= ROWS_WORTH_ONE_PROCESS or can_be_kept()


def _is_kept(function: Callable[..., Any]) -> bool:
    """True if machine code of a plain function is on disk where numba looks for it; numba is not imported."""
    tree = Path(function.__code__.co_filename).parent / "__pycache__"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    folder = os.environ.get("NUMBA_CACHE_DIR")
    name = f"*.{_entry_name(function)}-*.nbi"
    return any(
        any(place.glob(pattern))
        for place, pattern in (((Path(folder), f"*/{name}"),) if folder else ((tree, name), (user, f"*/{name}")))
    )


@lru_cache(maxsize=1)
def can_be_kept() -> bool:
    """True if numba is there and has a folder to keep machine code in; where it has none, that is said once."""
    try:
        import numba
    except Exception:  # a broken installation raises more than ImportError
        return False
    try:
        numba.njit(cache=True)(_write_rows)
    except (RuntimeError, OSError):  # no folder that can be written
        _say_not_kept()
        return False
    return True


def _say_not_kept() -> None:
    """Warn that machine code is not kept; of several workers, the first one does."""
    if parent_process() is None or current_process().name.endswith("-1"):
        warnings.warn(NOT_KEPT, RuntimeWarning, stacklevel=2)


def _plain(kernel: Callable[..., tuple[float, float]], x: float, row: list[float]) -> tuple[float, float]:
    """Both values of the kernel; nothing is known where it raises, as where machine code returns nan."""
    try:
        return kernel(x, row)
    except (ArithmeticError, ValueError):
        return -math.inf, math.inf


@lru_cache(maxsize=64)
def _loop_over(kernel: Callable[..., tuple[float, float]]) -> Callable[..., None]:
    """A function that writes both values of the kernel for every row."""
    table = {"KERNEL": kernel, "__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(_write_rows.__code__, table, f"rows_of_{kernel.__name__}")


def _write_rows(first: Array, rows: Array, one: Array, other: Array) -> None:
    """The loop itself; ``KERNEL`` is put in its globals."""
    for i in range(len(first)):
        one[i], other[i] = KERNEL(first[i], rows[i])  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


@lru_cache(maxsize=64)
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the machine code of a plain function and of all that it calls, kept on disk; else the function itself."""
    try:
        import numba
    except Exception:  # a broken installation raises more than ImportError
        return function
    name = _entry_name(function)

    def build(cache: bool) -> Callable[..., Any]:
        return _rebuilt(function, {}, numba.njit(nogil=True, error_model="numpy", cache=cache), name)

    entry = build(cache=can_be_kept())

    def run(*arguments: Any) -> Any:
        nonlocal entry
        try:
            return entry(*arguments)
        except OSError:  # the disk is full, or is no longer there
            _say_not_kept()
            entry = build(cache=False)
        except Exception as error:
            warnings.warn(f"{function.__name__} is run as plain Python: {error}", RuntimeWarning, stacklevel=2)
            entry = function
        return entry(*arguments)

    return run


@lru_cache(maxsize=64)
def _entry_name(function: Callable[..., Any]) -> str:
    """The name under which machine code of a function is kept."""
    return f"{function.__name__}_{_digest_of(function)}"


def _used_globals(function: Any) -> Iterator[tuple[str, Any]]:
    """The globals that a function names, in the order of their names."""
    for name in sorted(set(function.__code__.co_names)):
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _rebuilt(function: Any, done: dict[Any, Any], compiler: Any, name: str | None = None) -> Any:
    """The function compiled over compiled globals; one with a ``name`` is an entry point."""
    if function in done:
        return done[function]
    import numba

    callee = numba.njit(nogil=True, error_model="numpy", no_cpython_wrapper=True)  # pyright: ignore[reportCallIssue]

    def translated(value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return _rebuilt(value, done, callee)
        # A constant tuple with so many entries becomes an array, which machine code indexes in place. Speed only.
        if type(value) is tuple and len(value) >= 4:
            return np.array(value, float)
        return value

    table = {"__builtins__": __builtins__, "__name__": function.__module__}
    table.update((key, translated(value)) for key, value in _used_globals(function))
    copy = types.FunctionType(function.__code__, table, name or function.__name__, function.__defaults__)
    copy.__module__, copy.__qualname__ = function.__module__, name or function.__qualname__
    done[function] = compiler(copy)
    return done[function]


def _digest_of(function: Any) -> str:
    """A digest of the code and the constants that machine code of this function is made of."""
    seen, waiting, digest = {function}, [function], hashlib.sha256()
    while waiting:
        function = waiting.pop()
        code = function.__code__
        parts = (code.co_code, code.co_consts, code.co_names, code.co_varnames, function.__defaults__)
        digest.update(repr((function.__qualname__, parts)).encode())
        for name, value in _used_globals(function):
            if not isinstance(value, types.FunctionType):
                digest.update(repr((name, None if inspect.ismodule(value) else value)).encode())
            elif value not in seen:
                seen.add(value)
                waiting.append(value)
    return digest.hexdigest()[:16]
