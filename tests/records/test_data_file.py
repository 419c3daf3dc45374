"""Data files: a key given twice is refused and named."""

from fuzz.laws import call
from fuzz.strategies import Case


def test_doubled_keys_are_named():
    text = (
        '{"phase": [{"mechanism": "gaussian", "noise_multiplier": 0.01}, {"steps": 3, "mechanism": "m2", "steps": 4}]}'
    )
    seen = call(Case(("run", "a.json", "--delta", "1e-5"), {"a.json": text.encode()}))
    assert seen.code == 2 and "'steps' twice" in seen.err
    grid = '{"mechanism": "gaussian", "delta": 1e-5, "grid": {"steps": [1, 2], "noise_multiplier": [1], "steps": [3]}}'
    seen = call(Case(("sweep", "a.json", "-o", "o.csv"), {"a.json": grid.encode()}))
    assert seen.code == 2 and "'steps' twice" in seen.err
    toml = "[[phase]]\nmechanism = 'gaussian'\nsteps = 3\nsteps = 4\n"
    seen = call(Case(("run", "a.toml", "--delta", "1e-5"), {"a.toml": toml.encode()}))
    assert seen.code == 2 and "steps = 4" in seen.err
