"""The catalogue of bounds."""

import pytest
from helpers import SECONDS, full_if, ids

from privproj.mechanisms.registry import registry


@pytest.mark.parametrize("bound", full_if(registry(), lambda b: b.name in SECONDS), ids=ids)
def test_catalogue_example_works(run, bound):
    code, out, _ = run(f"bounds {bound.mechanism.name}.{bound.name}")
    out = " ".join(out.split())
    assert code == 0 and bound.source.split(",")[0] in out and bound.example.split()[-1] in out
    assert run(bound.example.removeprefix("privproj "))[0] == 0


def test_the_name_of_a_mechanism_lists_its_bounds(run):
    code, out, _ = run("bounds sketch-public")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["sketch-public", "rank-free"], ["sketch-public", "exact-rank1"], ["sketch-public", "operator-norm"]
    ]  # fmt: skip
    # gaussian is also the name of a bound of m2
    out = run("bounds gaussian")[1]
    assert "m2.gaussian" in out and "analytic" in out and "rank-free" not in out
