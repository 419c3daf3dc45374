"""The catalogue of bounds."""

import pytest
from helpers import SECONDS, full_if, ids

from privproj.bounds import registry


@pytest.mark.parametrize("bound", full_if(registry(), lambda b: b.name in SECONDS), ids=ids)
def test_catalogue_example_works(run, bound):
    code, out, _ = run(f"bounds {bound.mechanism.name}.{bound.name}")
    out = " ".join(out.split())
    assert code == 0 and bound.source.split(",")[0] in out and bound.example.split()[-1] in out
    assert run(bound.example.removeprefix("privproj "))[0] == 0
