"""Doubled keys name their entry."""

from fuzz.laws import call
from fuzz.strategies import Case


def test_doubled_keys_of_json_name_their_entry():
    text = (
        '{"phase": [{"mechanism": "gaussian", "noise_multiplier": 0.01}, {"steps": 3, "mechanism": "m2", "steps": 4}]}'
    )
    seen = call(Case(("run", "a.json", "--delta", "1e-5"), {"a.json": text.encode()}))
    assert seen.code == 2 and "a.json: phase 2: steps" in seen.err
    grid = '{"mechanism": "gaussian", "delta": 1e-5, "grid": {"steps": [1, 2], "noise_multiplier": [1], "steps": [3]}}'
    seen = call(Case(("sweep", "a.json", "-o", "o.csv"), {"a.json": grid.encode()}))
    assert seen.code == 2 and "grid: steps" in seen.err
    toml = "[[phase]]\nmechanism = 'gaussian'\nsteps = 3\nsteps = 4\n"
    seen = call(Case(("run", "a.toml", "--delta", "1e-5"), {"a.toml": toml.encode()}))
    assert seen.code == 2 and "steps = 4" in seen.err
