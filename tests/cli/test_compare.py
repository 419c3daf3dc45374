"""Bounds side by side."""

import json

GAUSSIAN = "gaussian --noise-multiplier 1"

M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


def test_compare_lists_promise_free_bounds_first(run):
    _, out, _ = run(f"compare {M2} --columns 512 --delta 1e-5 --json")
    rows = json.loads(out)["results"]
    values = [row["value"] for row in rows if row["status"] == "proved"]
    statuses = [row["status"] for row in rows]
    assert values == sorted(values)
    assert statuses == sorted(statuses, key=["proved", "conditional"].index)
    code, out, _ = run(f"compare {GAUSSIAN} --delta 1e-5")
    assert code == 0 and "classical" in out and "0 < epsilon < 1" in out
