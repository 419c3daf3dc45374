"""Evaluation of numerical functions (kernels) as machine code, by numba.

A kernel is a plain function of floats that uses ``math`` only, and may call other kernels by name, in any module. One
evaluation runs as plain Python and does not import numba. Many evaluations run as machine code from the same source.

numba checks whether the file of a compiled function has changed, but not the files of the functions that it calls. So
the name of a compiled function contains a digest of every function and constant in its machine code: edited code has
another name, and outdated machine code is never used.

Without a working numba, or without a writable cache, every result is still computed, but more slowly.
"""

import hashlib
import math
import os
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from multiprocessing import current_process, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from privproj.numerics.arrays import Array

# Least number of rows for which cached machine code is loaded, because importing numba takes half a second. A row is an
# M2 epsilon, which takes one millisecond in plain Python. Cheaper rows have a smaller weight.
LOAD_ROWS = 400

COMPILE_ROWS = 2000  # Least number of rows for which machine code is compiled and cached, which takes seconds once

# Least number of rows for which machine code is compiled even if each process has to compile it again
COMPILE_ROWS_WITHOUT_CACHE = 20_000

# Rows that one thread computes at a time. A user can interrupt between these chunks.
ROWS_PER_CHUNK = 20_000

# Options of numba for every function. The cache depends on them, because they change the machine code.
OPTIONS = {"nogil": True, "error_model": "numpy"}

# Warning, issued once, that numba cannot cache machine code
CACHE_NOT_WRITABLE = (
    "there is no writable folder for machine code, so every process runs plain Python or compiles again, and large "
    "tables are slower. Set NUMBA_CACHE_DIR to a writable folder."
)

# Weighted rows that this process has computed with each loop
_rows_run: defaultdict[Callable[..., None], float] = defaultdict(float)

_expected_rows: ContextVar[tuple[float, bool]] = ContextVar("expected_rows", default=(0.0, True))


@contextmanager
def expect_rows(count: float, *, may_load: bool = True) -> Iterator[None]:
    """Return a context in which :func:`over_rows` expects ``count`` rows in all calls.

    This total determines whether plain Python or machine code runs.

    Args:
        count: The number of rows (kernel evaluations) that all calls in the context compute together.
        may_load: True if the choice may depend on cached machine code and earlier calls. If False, the same rows always
            give the same digits.
    """
    before = _expected_rows.set((count, may_load))
    try:
        yield
    finally:
        _expected_rows.reset(before)


def over_rows(
    kernel: Callable[[float, Sequence[float]], tuple[float, float]],
    first: Array,
    rows: Array,
    threads: int = 1,
    weight: float = 1.0,
) -> tuple[Array, Array]:
    """Return both values of ``kernel(first_i, rows_i)`` for every ``i``, as two arrays.

    Many rows run as machine code, whose values equal those of plain Python up to rounding.

    Args:
        kernel: A plain function that returns two floats and uses ``math`` only.
        first: The first arguments, of shape ``(n,)``.
        rows: The parameters, of shape ``(n, k)``.
        threads: The number of threads for machine code, which does not affect the values.
        weight: The approximate cost of a row in plain Python, in milliseconds. Machine code runs if the total is large.
    """
    first, rows = np.ascontiguousarray(first, float), np.ascontiguousarray(rows, float)
    loop = _loop_over(kernel)
    if not _needs_machine_code(loop, len(first), weight):
        values = [_plain(kernel, x, row) for x, row in zip(first.tolist(), rows.tolist(), strict=True)]
        pair = np.array(values, float).reshape(len(values), 2)
        return pair[:, 0], pair[:, 1]
    run = compile_kernel(loop)
    one, other = np.empty(len(first)), np.empty(len(first))

    def run_chunk(start: int) -> None:
        part = slice(start, start + ROWS_PER_CHUNK)
        run(first[part], rows[part], one[part], other[part])

    starts = range(0, len(first), ROWS_PER_CHUNK)
    run_chunk(0)  # compiles or loads the machine code before threads share it
    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run_chunk, starts[1:]))
    else:
        for start in starts[1:]:
            run_chunk(start)
    return one, other


def _plain(kernel: Callable[..., tuple[float, float]], x: float, row: list[float]) -> tuple[float, float]:
    try:
        return kernel(x, row)
    except (ArithmeticError, ValueError):  # machine code returns nan instead
        return -math.inf, math.inf


@lru_cache(maxsize=64)
def _loop_over(kernel: Callable[..., tuple[float, float]]) -> Callable[..., None]:
    """Return a function that calls the kernel for every row and stores both values."""
    table = {"KERNEL": kernel, "__builtins__": __builtins__, "__name__": __name__}
    return types.FunctionType(_write_rows.__code__, table, f"rows_of_{kernel.__name__}")


def _write_rows(first: Array, rows: Array, one: Array, other: Array) -> None:
    """Write both values of the global ``KERNEL`` for each row to ``one`` and ``other``."""
    for i in range(len(first)):
        one[i], other[i] = KERNEL(first[i], rows[i])  # noqa: F821  # pyright: ignore[reportUndefinedVariable]


# --- whether to use machine code ----------------------------------------------------------------------


def _needs_machine_code(loop: Callable[..., Any], rows: int, weight: float) -> bool:
    expected, may_load = _expected_rows.get()
    count = (expected or rows) * weight
    if may_load:
        # A process that has computed many rows is expected to compute as many again.
        _rows_run[loop] += rows * weight
        count = max(count, _rows_run[loop])
    if count < COMPILE_ROWS:
        return may_load and count >= LOAD_ROWS and _is_cached(loop)
    return count >= COMPILE_ROWS_WITHOUT_CACHE or can_cache()


def _is_cached(function: Callable[..., Any]) -> bool:
    name = f"*.{_cache_name(function)}-*.nbi"
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        return any(Path(folder).glob(f"*/{name}"))
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"
    tree = Path(function.__code__.co_filename).parent / "__pycache__"
    return any(tree.glob(name)) or any(user.glob(f"*/{name}"))


@lru_cache(maxsize=1)
def can_cache() -> bool:
    """Return whether numba works and can write its cache."""
    try:
        import numba
    except Exception:  # a broken installation raises more than ImportError
        return False
    try:
        numba.njit(cache=True)(_write_rows)
    except (RuntimeError, OSError):
        _warn_not_cached()
        return False
    return True


def _warn_not_cached() -> None:
    if parent_process() is None or current_process().name.endswith("-1"):
        warnings.warn(CACHE_NOT_WRITABLE, RuntimeWarning, stacklevel=2)


# --- machine code ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def compile_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return machine code for a kernel, or the kernel itself if numba does not work."""
    try:
        import numba
    except Exception:  # a broken installation raises more than ImportError
        return function
    for callee in _functions_of(function)[1:]:
        _register_callee(callee)
    name = _cache_name(function)
    copy = types.FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    copy.__module__, copy.__qualname__ = function.__module__, name
    entry = numba.njit(cache=can_cache(), **OPTIONS)(copy)

    def run(*arguments: Any) -> Any:
        nonlocal entry
        try:
            return entry(*arguments)
        except OSError:  # the disk is full or was removed
            _warn_not_cached()
            entry = numba.njit(**OPTIONS)(copy)
        except Exception as error:
            warnings.warn(f"{function.__name__} is run as plain Python: {error}", RuntimeWarning, stacklevel=2)
            entry = function
        return entry(*arguments)

    return run


@cache
def _register_callee(function: Callable[..., Any]) -> None:
    from numba.extending import register_jitable

    register_jitable(**OPTIONS)(function)


def _functions_of(function: Callable[..., Any]) -> list[Any]:
    """Return a function and all plain functions that it calls, directly or indirectly."""
    functions: list[Any] = [function]
    for one in functions:  # the list grows during the loop
        called = (value for _, value in _globals_of(one) if isinstance(value, types.FunctionType))
        functions += [value for value in dict.fromkeys(called) if value not in functions]
    return functions


def _globals_of(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the globals that a function reads."""
    names = sorted(set(function.__code__.co_names))
    for name in filter(function.__globals__.__contains__, names):
        value = function.__globals__[name]
        is_module = isinstance(value, types.ModuleType)
        # The value of a module is a list of the attributes that the function may read.
        yield name, [(one, getattr(value, one, None)) for one in names] if is_module else value


@lru_cache(maxsize=64)
def _cache_name(function: Callable[..., Any]) -> str:
    """Return a name for machine code that changes whenever the code may change."""
    functions, digest = _functions_of(function), hashlib.sha256(repr(OPTIONS).encode())
    for one in functions:
        code = one.__code__
        parts = [code.co_code, code.co_consts, code.co_names, code.co_varnames, one.__defaults__, one.__closure__]
        for key, value in _globals_of(one):
            # The repr of a function contains an address; its position in the list does not.
            parts.append((key, functions.index(value) if isinstance(value, types.FunctionType) else value))
        digest.update(repr((one.__qualname__, parts)).encode())
    return f"{function.__name__}_{digest.hexdigest()[:16]}"
