"""A loss of speed is seen: what ``benchmarks/speed.py --check`` compares, and how."""

import importlib
import json
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
speed = importlib.import_module("speed")
works = importlib.import_module("works")
sys.path.remove(str(ROOT / "benchmarks"))


def test_a_work_that_takes_twice_as_long_as_it_did_is_named_and_one_that_fails_too():
    kept = {"a": {"ratio": 1.0}, "b": {"ratio": 1.0}, "c": {"ratio": 1.0}, "d": {"failed": "before"}}
    found = {"a": {"ratio": 1.5}, "b": {"ratio": 2.0}, "c": {"failed": "no answer"}, "d": {"ratio": 9.0}}
    assert speed.slower(kept, found) == ["b", "c"]


def test_a_power_of_the_size_is_found_again():
    assert speed.power({size: 3.0 * size**1.5 for size in (10, 100, 1000)}) == pytest.approx(1.5)
    assert speed.power({10: 1.0}) is None


@pytest.mark.slow
def test_a_work_of_four_yardsticks_is_found_to_be_one():
    def slow(n):
        return [speed.yardstick() for _ in range(4)]

    assert 3.0 < speed.measure_here(slow)["ratio"] < 6.0


def test_every_work_that_was_kept_is_still_a_work():
    kept = json.loads(speed.KEPT.read_text())["works"]
    known = {f"cold: {name}" for name in works.COLD} | {f"warm: {name}" for name in works.WARM}
    assert set(kept) <= known and len(kept) > 20


@pytest.mark.parametrize("name", ["gaussian epsilon", "m2 rank-free epsilon", "m2 beta-tail epsilon", "m1 epsilon"])
def test_a_number_near_one_asks_another_question(name):
    first, second = (works.WARM[name](n) for n in (1.0, 1.01))
    assert first.value != second.value


@pytest.mark.slow
def test_no_work_has_become_slower():
    assert speed.main(["--check"]) == 0
