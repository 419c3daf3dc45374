"""A small version of ``benchmarks/large_epsilons.py``: its results agree, and its table marks failures."""

import importlib
import json
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
large_epsilons = importlib.import_module("large_epsilons")
sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.full
def test_quick_large_epsilons_agree_with_dp_accounting():
    (rows,) = large_epsilons.measured(large_epsilons.QUICK_QUERIES, sys.executable, limit=60).values()
    own, pld, rdp = (rows[tool]["value"] for tool in ("privproj", "dp-accounting PLD", "dp-accounting RDP"))
    assert own == pytest.approx(pld, rel=1e-3) and own < rdp


def test_large_epsilons_table_marks_failures():
    failed, found = {"failed": "needs more than 120 s"}, {"value": 2.5, "seconds": 0.25}
    results = {"epsilon": {tool: found if tool == "privproj" else failed for tool in large_epsilons.TOOLS}}
    lines = large_epsilons.large_table(results).splitlines()
    assert "| privproj | 2.5 (0.25 s) |" in lines
    assert sum(line.endswith("| fails: needs more than 120 s |") for line in lines) == len(large_epsilons.TOOLS) - 1


def test_stored_large_epsilons_have_every_tool_and_query():
    stored = json.loads(large_epsilons.RESULTS.read_text())["queries"]
    assert list(stored) == list(large_epsilons.QUERIES)
    assert all(list(rows) == list(large_epsilons.TOOLS) and "value" in rows["privproj"] for rows in stored.values())
