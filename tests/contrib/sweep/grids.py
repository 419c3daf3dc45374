"""Grids for sweeps, and tables read back."""

import csv

GRID = {
    "query": "delta",
    "mechanism": "m2",
    "epsilon": 1.0,
    "grid": {"dim": [64, 128], "rank": [4, 100], "noise_multiplier": [0.5, 1.0, 2.0, 1e-3]},
}

TEXT = """
query = "{query}"
mechanism = "m2"
epsilon = 1.0
dim = 512
[grid]
rank = [{ranks}]
noise_multiplier = [{noise}]
"""


def written(tmp_path, rows, query="delta"):
    path = tmp_path / "grid.toml"
    noise = ", ".join(f"{0.2 + 0.01 * i:.4g}" for i in range(rows // 4))
    path.write_text(TEXT.format(query=query, ranks="2, 4, 8, 16", noise=noise))
    return path


def table(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))
