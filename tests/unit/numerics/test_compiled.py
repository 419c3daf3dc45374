"""Machine code of kernels: the values of the plain functions, and never those of an older callee."""

import importlib
import math
import sys

import numpy as np
import pytest

from privproj.numerics import compiled as module
from privproj.numerics.compiled import (
    ROWS_PER_TURN,
    ROWS_WORTH_COMPILING,
    ROWS_WORTH_LOADING,
    ROWS_WORTH_ONE_PROCESS,
    can_be_kept,
    compiled,
    over_rows,
    rows_to_come,
)
from privproj.numerics.special import log_add

TABLE = (1.0, 2.0, 4.0, 8.0, 16.0)

CALLEE = "def double(x):\n    return {factor} * x\n"

CALLER = "from {callee} import double\n\ndef kernel(x, row):\n    return double(x), row[0]\n"


def gain(x, row):
    """A kernel that calls a function of another module, and reads a table."""
    return log_add(x, row[0]), TABLE[int(row[1])]


def random_rows(count):
    draw = np.random.default_rng(3)
    return draw.normal(0.0, 9.0, count), np.column_stack([draw.normal(0.0, 9.0, count), draw.integers(0, 5, count)])


def test_many_rows_have_the_values_of_one_whatever_the_threads():
    x, rows = random_rows(2 * ROWS_PER_TURN + 7)
    many = over_rows(gain, x, rows)
    shared = over_rows(gain, x, rows, threads=2)
    with rows_to_come(100, may_load=False):
        few = [over_rows(gain, x[i : i + 100], rows[i : i + 100]) for i in (0, len(x) - 100)]
    assert np.array_equal(many, shared)
    np.testing.assert_allclose(np.array(many)[:, :100], few[0], rtol=1e-14)
    np.testing.assert_allclose(np.array(many)[:, -100:], few[1], rtol=1e-14)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An own folder of machine code."""
    config = pytest.importorskip("numba").config
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Let it be found out anew what is compiled, and where it can be kept."""
    compiled.cache_clear()
    can_be_kept.cache_clear()


def run_kernel(folder, turn, factor, count=ROWS_WORTH_COMPILING):
    """The first value of a kernel at 3, whose callee, in another file, multiplies by ``factor``."""
    callee, caller = f"callee_{turn}", f"caller_{turn}"
    (folder / f"{callee}.py").write_text(CALLEE.format(factor=factor))
    (folder / f"{caller}.py").write_text(CALLER.format(callee=callee))
    importlib.invalidate_caches()
    kernel = importlib.import_module(caller).kernel
    found = over_rows(kernel, np.full(count, 3.0), np.ones((count, 1)))
    return found[0][0]


def test_machine_code_is_used_again_until_a_callee_in_another_file_changes(cache, tmp_path):
    assert run_kernel(tmp_path, 1, 2.0) == 6.0
    kept = {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert len(kept) == 2
    assert run_kernel(tmp_path, 2, 2.0) == 6.0
    assert {path.name: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == kept
    assert run_kernel(tmp_path, 3, 5.0) == 15.0
    assert len(list(cache.rglob("*.nb?"))) == 4


@pytest.fixture
def asked(monkeypatch):
    """The names of the loops that are asked for as machine code."""
    names = []
    monkeypatch.setattr(module, "compiled", lambda loop: names.append(loop.__name__) or compiled(loop))
    return names


def test_machine_code_that_is_kept_is_used_for_fewer_rows(cache, tmp_path, asked):
    assert run_kernel(tmp_path, 5, 2.0, ROWS_WORTH_LOADING) == 6.0 and not asked
    assert run_kernel(tmp_path, 6, 2.0) == 6.0 and len(asked) == 1
    assert run_kernel(tmp_path, 7, 2.0, ROWS_WORTH_LOADING) == 6.0 and len(asked) == 2
    assert run_kernel(tmp_path, 8, 2.0, ROWS_WORTH_LOADING - 1) == 6.0 and len(asked) == 2
    with rows_to_come(ROWS_WORTH_LOADING, may_load=False):
        assert run_kernel(tmp_path, 9, 2.0, 10) == 6.0 and len(asked) == 2


def test_rows_asked_for_in_many_calls_are_compiled_as_those_of_one_call(cache, tmp_path, asked):
    """A process loses at most as much time again as it could save; a sweep does not look at what was before."""
    assert run_kernel(tmp_path, 13, 2.0, ROWS_WORTH_LOADING - 1) == 6.0
    kernel, part = importlib.import_module("caller_13").kernel, ROWS_WORTH_LOADING - 1
    calls = 1
    while not asked and calls < 9:
        with rows_to_come(part, may_load=False):
            over_rows(kernel, np.ones(part), np.ones((part, 1)))
        assert not asked
        over_rows(kernel, np.ones(part), np.ones((part, 1)))
        calls += 1
    assert calls * part >= ROWS_WORTH_COMPILING > (calls - 1) * part


def test_where_no_machine_code_can_be_kept_it_is_said_once_and_none_is_made_but_for_large_tables(
    cache, tmp_path, monkeypatch, asked
):
    config = importlib.import_module("numba").config
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", "_UserProvidedCacheLocator", raising=False)
    with pytest.warns(RuntimeWarning) as said:
        for turn in (10, 11):
            assert run_kernel(tmp_path, turn, 2.0) == 6.0
    assert len(said) == 1 and "set NUMBA_CACHE_DIR" in str(said[0].message) and not asked
    assert run_kernel(tmp_path, 12, 2.0, ROWS_WORTH_ONE_PROCESS) == 6.0 and len(asked) == 1


def test_nothing_breaks_without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    x, rows = random_rows(ROWS_WORTH_ONE_PROCESS)
    for count in (ROWS_WORTH_COMPILING, ROWS_WORTH_ONE_PROCESS):
        forget()
        found = over_rows(gain, x[:count], rows[:count])
    forget()
    assert found[0][5] == log_add(x[5], rows[5, 0])


def unsuited(x, row):
    """A kernel that numba refuses."""
    return (math.nan, f"{x}") if row[0] > 1e300 else (x, row[0])


def test_a_kernel_that_cannot_be_compiled_is_run_as_it_is_with_a_warning():
    x, rows = random_rows(ROWS_WORTH_COMPILING)
    with pytest.warns(RuntimeWarning, match="unsuited is run as plain Python"):
        found = over_rows(unsuited, x, rows)
    assert np.array_equal(found[0], x)
