"""Machine code has the values of plain kernels, and is never reused after a callee has changed."""

import importlib
import math
import sys
import types

import numpy as np
import pytest

from privproj.numerics import jit
from privproj.numerics.jit import (
    COMPILE_ROWS,
    COMPILE_ROWS_WITHOUT_CACHE,
    LOAD_ROWS,
    ROWS_PER_CHUNK,
    can_cache,
    compile_kernel,
    expect_rows,
    over_rows,
)
from privproj.numerics.root_finding import with_globals
from privproj.numerics.special import log_add

TABLE = (1.0, 2.0, 4.0, 8.0, 16.0)

CALLEE = "FACTOR = {factor}\n\ndef scale(x):\n    return FACTOR * x\n"

CALLER = "from {callee} import scale\n\ndef kernel(x, row):\n    return scale(x), row[0]\n"


def gain(x, row):
    """Call a kernel of another module, and read a table."""
    return log_add(x, row[0]), TABLE[int(row[1])]


def random_rows(count):
    draw = np.random.default_rng(3)
    return draw.normal(0.0, 9.0, count), np.column_stack([draw.normal(0.0, 9.0, count), draw.integers(0, 5, count)])


def test_over_rows_equals_plain_python_for_any_threads():
    x, rows = random_rows(2 * ROWS_PER_CHUNK + 7)
    many = over_rows(gain, x, rows)
    shared = over_rows(gain, x, rows, threads=2)
    with expect_rows(100, may_load=False):
        few = [over_rows(gain, x[i : i + 100], rows[i : i + 100]) for i in (0, len(x) - 100)]
    assert np.array_equal(many, shared)
    np.testing.assert_allclose(np.array(many)[:, :100], few[0], rtol=1e-14)
    np.testing.assert_allclose(np.array(many)[:, -100:], few[1], rtol=1e-14)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of machine code."""
    config = pytest.importorskip("numba").config
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Forget which kernels are compiled, and whether the cache is writable."""
    compile_kernel.cache_clear()
    can_cache.cache_clear()


def run_kernel(folder, turn, factor, count=COMPILE_ROWS):
    """Return the value at 3 of a kernel whose callee, in another file, multiplies by ``factor``."""
    callee, caller = f"callee_{turn}", f"caller_{turn}"
    (folder / f"{callee}.py").write_text(CALLEE.format(factor=factor))
    (folder / f"{caller}.py").write_text(CALLER.format(callee=callee))
    importlib.invalidate_caches()
    kernel = importlib.import_module(caller).kernel
    found = over_rows(kernel, np.full(count, 3.0), np.ones((count, 1)))
    return found[0][0]


def test_over_rows_recompiles_after_change_in_another_file(cache, tmp_path):
    assert run_kernel(tmp_path, 1, 2.0) == 6.0
    kept = {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert len(kept) == 2
    assert run_kernel(tmp_path, 2, 2.0) == 6.0
    assert {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == kept
    assert run_kernel(tmp_path, 3, 5.0) == 15.0
    assert len(list(cache.rglob("*.nb?"))) == 4


def apply(x, row):
    """Apply the global ``F``."""
    return F(x), row[0]  # noqa: F821


def test_over_rows_separates_one_function_over_two_globals(cache):
    kernels = [with_globals(apply, F=function) for function in (math.exp, math.log)]
    values = [over_rows(kernel, np.ones(COMPILE_ROWS), np.ones((COMPILE_ROWS, 1)))[0][0] for kernel in kernels]
    assert values == [math.e, 0.0]
    assert len(list(cache.rglob("*.nbi"))) == 2


def read_table(x, row):
    """Read a constant of the module ``tables``."""
    return tables.MILLS * x, row[0]  # noqa: F821


def test_cache_name_depends_on_constants_of_modules():
    modules = [types.ModuleType("tables"), types.ModuleType("tables")]
    modules[0].MILLS, modules[1].MILLS = 2.0, 3.0
    names = {jit._cache_name(with_globals(read_table, tables=module)) for module in modules}
    assert len(names) == 2


@pytest.fixture
def requested(monkeypatch):
    """Names of the loops that run as machine code."""
    names = []
    monkeypatch.setattr(jit, "compile_kernel", lambda loop: names.append(loop.__name__) or compile_kernel(loop))
    return names


def test_over_rows_loads_cached_code_for_fewer_rows(cache, tmp_path, requested):
    assert run_kernel(tmp_path, 5, 2.0, LOAD_ROWS) == 6.0 and not requested
    assert run_kernel(tmp_path, 6, 2.0) == 6.0 and len(requested) == 1
    assert run_kernel(tmp_path, 7, 2.0, LOAD_ROWS) == 6.0 and len(requested) == 2
    assert run_kernel(tmp_path, 8, 2.0, LOAD_ROWS - 1) == 6.0 and len(requested) == 2
    with expect_rows(LOAD_ROWS, may_load=False):
        assert run_kernel(tmp_path, 9, 2.0, 10) == 6.0 and len(requested) == 2


def test_over_rows_compiles_after_many_small_calls(cache, tmp_path, requested):
    """A sweep (``may_load=False``) ignores earlier calls."""
    assert run_kernel(tmp_path, 13, 2.0, LOAD_ROWS - 1) == 6.0
    kernel, part = importlib.import_module("caller_13").kernel, LOAD_ROWS - 1
    calls = 1
    while not requested and calls < 9:
        with expect_rows(part, may_load=False):
            over_rows(kernel, np.ones(part), np.ones((part, 1)))
        assert not requested
        over_rows(kernel, np.ones(part), np.ones((part, 1)))
        calls += 1
    assert calls * part >= COMPILE_ROWS > (calls - 1) * part


def test_over_rows_warns_once_without_writable_cache(cache, tmp_path, monkeypatch, requested):
    config = importlib.import_module("numba").config
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", "_UserProvidedCacheLocator", raising=False)
    with pytest.warns(RuntimeWarning) as output:
        for turn in (10, 11):
            assert run_kernel(tmp_path, turn, 2.0) == 6.0
    assert len(output) == 1 and "Set NUMBA_CACHE_DIR" in str(output[0].message) and not requested
    assert run_kernel(tmp_path, 12, 2.0, COMPILE_ROWS_WITHOUT_CACHE) == 6.0 and len(requested) == 1


def test_over_rows_works_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    x, rows = random_rows(COMPILE_ROWS_WITHOUT_CACHE)
    for count in (COMPILE_ROWS, COMPILE_ROWS_WITHOUT_CACHE):
        forget()
        found = over_rows(gain, x[:count], rows[:count])
    forget()
    assert found[0][5] == log_add(x[5], rows[5, 0])


def unsuited(x, row):
    """Format a string, which numba does not support."""
    return (math.nan, f"{x}") if row[0] > 1e300 else (x, row[0])


def test_over_rows_runs_unsupported_kernel_in_plain_python():
    x, rows = random_rows(COMPILE_ROWS)
    with pytest.warns(RuntimeWarning, match="unsuited is run as plain Python"):
        found = over_rows(unsuited, x, rows)
    assert np.array_equal(found[0], x)
