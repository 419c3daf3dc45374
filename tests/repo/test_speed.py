"""``benchmarks/speed.py --check`` detects a loss of speed."""

import importlib
import json
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
speed = importlib.import_module("speed")
works = importlib.import_module("works")
sys.path.remove(str(ROOT / "benchmarks"))


def test_slower_names_slow_and_failed_benchmarks():
    kept = {"a": {"ratio": 1.0}, "b": {"ratio": 1.0}, "c": {"ratio": 1.0}, "d": {"failed": "before"}}
    found = {"a": {"ratio": 1.5}, "b": {"ratio": 2.0}, "c": {"failed": "no answer"}, "d": {"ratio": 9.0}}
    assert speed.slower(kept, found) == ["b", "c"]


def test_power_recovers_exponent():
    assert speed.power({size: 3.0 * size**1.5 for size in (10, 100, 1000)}) == pytest.approx(1.5)
    assert speed.power({10: 1.0}) is None


@pytest.mark.slow
def test_measure_here_counts_yardsticks():
    def slow(n):
        return [speed.yardstick() for _ in range(4)]

    assert 3.0 < speed.measure_here(slow)["ratio"] < 6.0


def test_stored_timings_name_existing_benchmarks():
    kept = json.loads(speed.KEPT.read_text())["works"]
    known = {f"cold: {name}" for name in works.COLD} | {f"warm: {name}" for name in works.WARM}
    assert set(kept) <= known and len(kept) > 20


@pytest.mark.parametrize("name", ["gaussian epsilon", "m2 rank-free epsilon", "m2 beta-tail epsilon", "m1 epsilon"])
def test_benchmark_argument_changes_query(name):
    first, second = (works.WARM[name](n) for n in (1.0, 1.01))
    assert first.value != second.value


@pytest.mark.slow
def test_speed_check_passes():
    assert speed.main(["--check"]) == 0
